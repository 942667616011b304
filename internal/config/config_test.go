package config

import (
	"strings"
	"testing"
	"time"
)

const good = `
listen: 127.0.0.1:0
routes:
  main: {provider: openai_compatible, base_url: http://127.0.0.1:1/v1, model: m, api_key: {env: HF_TEST_KEY}}
  demo: {provider: scripted, script: ./demo.yaml}
default_route: main
secrets:
  hook: {env: HF_TEST_HOOK}
targets: {signing_secret: hook, allow_private: [127.0.0.0/8]}
tools:
  workspace: {type: workspace, root: ./work, allow: [read_file]}
  charge:
    {type: http, url: "https://pay.example/charge", side_effect: external_effect, policy: allow,
     input_schema: {type: object, properties: {cents: {type: number}}, required: [cents], additionalProperties: false}}
delivery: {initial_backoff: 2s}
`

func TestParse(t *testing.T) {
	c, err := Parse([]byte(good), "holdfast.yaml", "/etc/hf")
	if err != nil {
		t.Fatal(err)
	}
	if c.Delivery.InitialBackoff.Or(0) != 2*time.Second || c.Path("./work") != "/etc/hf/work" || c.DataDir != DefaultDataDir {
		t.Errorf("read wrongly: %+v", c)
	}
	t.Setenv("HF_TEST_KEY", "k-1")
	if v, err := c.Secret(*c.Routes["main"].APIKey); err != nil || v != "k-1" {
		t.Errorf("secret: %q, %v", v, err)
	}
}

// Each mistake is told with its place, its rule and the way out.
func TestMistakes(t *testing.T) {
	for _, tc := range []struct{ name, from, to, want string }{
		{"unknown key", "listen:", "lisen:", "2:1: "},
		{"unknown nested key", "initial_backoff", "initial_back", `:15:`},
		{"duration", "2s", "soon", "no duration"},
		{"not loopback", "127.0.0.1:0", "0.0.0.0:80", "holdfast.yaml:2:9: listen: 0.0.0.0 is not a loopback address"},
		{"provider", "scripted, script", "sripted, script", `routes.demo.provider: "sripted" is no provider`},
		{"provider of later", "scripted, script", "anthropic, script", "not available yet"},
		{"later key", "delivery:", "mcp_servers: {}\ndelivery:", "MCP servers are not available yet"},
		{"secret as value", "{env: HF_TEST_HOOK}", "plain", "8:"},
		{"two references", "{env: HF_TEST_HOOK}", "{env: A, file: b}", "exactly one of env, file or secret"},
		{"unknown default", "default_route: main", "default_route: none", `no route is named "none"`},
		{"ambiguous default", "default_route: main", "", "the default must be named"},
		{"network", "127.0.0.0/8", "127.0.0.1", "no network such as"},
		{"level", "external_effect", "wild", "tools.charge.side_effect: must be none"},
		{"policy", "policy: allow", "policy: review", "review is not available yet"},
		{"workspace tool", "[read_file]", "[rm_rf]", `"rm_rf" is not a workspace tool`},
		{"two documents", "delivery:", "---\ndelivery:", "more than one document"},
		{"repeated key", "listen: 127.0.0.1:0", "listen: a\nlisten: b", ":3:1:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(good, tc.from) {
				t.Fatal("the case changes nothing")
			}
			_, err := Parse([]byte(strings.Replace(good, tc.from, tc.to, 1)), "holdfast.yaml", "/")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("{}")
	f.Add(`{"routes":{"a":{"provider":"scripted","script":"x"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse([]byte(text), "f", "/"); err == nil && c.DefaultRoute == "" {
			t.Error("accepted without a route")
		}
	})
}
