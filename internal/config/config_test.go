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
		{"duration", "2s", "soon", `holdfast.yaml:15:29: delivery.initial_backoff: "soon" is no duration such as 30s or 5m`},
		{"duration without unit", "2s", "2", "holdfast.yaml:15:29: delivery.initial_backoff: a duration has a unit"},
		{"negative duration", "2s", "-2s", "15:29: delivery.initial_backoff: "},
		{"duration of another type", "2s", "[2s]", "delivery.initial_backoff: want a duration such as 30s or 5m, got a list"},
		{"number", "delivery: {", "delivery: {slots: many, ", "holdfast.yaml:15:19: delivery.slots: want a whole number, got a string"},
		{"fraction", "delivery: {", "delivery: {slots: 1.5, ", "delivery.slots: want a whole number, got a number"},
		{"large number", "delivery: {", "delivery: {slots: 18446744073709551615, ", "15:19: delivery.slots: "},
		{"reserve past its bound", "delivery: {", "store: {reserve: 1099511627777}\ndelivery: {", "store.reserve: must be bytes, from 1 to 1099511627776"},
		{"many attempts of a model", "delivery: {", "model_retries: {max_attempts: 101}\ndelivery: {", "model_retries.max_attempts: must be at most 100"},
		{"a wait of nothing", "delivery: {", "model_retries: {initial_backoff: 10us}\ndelivery: {", "model_retries.initial_backoff: must be at least 1ms"},
		{"a long wait for a model", "provider: scripted,", "provider: scripted, retries: {max_backoff: 25h},", "routes.demo.retries.max_backoff: must be at most 24h0m0s"},
		{"a wait that shrinks", "provider: scripted,", "provider: scripted, retries: {backoff_factor: 0.5},", "routes.demo.retries.backoff_factor: must be from 1 to 10"},
		{"fewer attempts than none", "provider: scripted,", "provider: scripted, retries: {max_attempts: -1},", "routes.demo.retries.max_attempts: must not be negative"},
		{"negative reserve", "delivery: {", "store: {reserve: -1}\ndelivery: {", "store.reserve: must be bytes"},
		{"negative bound of snapshots", "delivery: {", "files: {keep: -1}\ndelivery: {", "files.keep: must not be negative"},
		{"what snapshots leave out", "delivery: {", "files: {ignore: [ok, 'a\\b']}\ndelivery: {", "files.ignore[1]: the pattern holds a backslash"},
		{"negative number", "delivery: {", "delivery: {slots: -1, ", "holdfast.yaml:15:19: delivery.slots: must not be negative"},
		{"truth", "{type: workspace,", "{type: workspace, shared: 7,", "holdfast.yaml:11:40: tools.workspace.shared: want true or false, got a whole number"},
		{"list", "[127.0.0.0/8]", "127.0.0.0/8", "holdfast.yaml:9:48: targets.allow_private: want a list, got a string"},
		{"element", "[127.0.0.0/8]", "[{}]", "targets.allow_private[0]: want a string, got a mapping"},
		{"string", "model: m", "model: [m]", "holdfast.yaml:4:79: routes.main.model: want a string, got a list"},
		{"mapping", "delivery: {initial_backoff: 2s}", "delivery: 2s", "holdfast.yaml:15:11: delivery: want a mapping of keys, got a string"},
		{"names", "targets:", "routes: 7\ntargets:", "routes"},
		{"missing member", "base_url: http://127.0.0.1:1/v1, ", "", "holdfast.yaml:4:9: routes.main: openai_compatible wants base_url and model"},
		{"key of a circuit", "delivery: {", "delivery: {circuit: {failure: 3}, ", `unknown field "failure"`},
		{"an override of nothing", "targets: {", "targets: {overrides: [{order: none}], ", "targets.overrides[0]: says of no target: it wants target_id or origin"},
		{"an override of two things", "targets: {", "targets: {overrides: [{target_id: tgt_1, origin: 'https://a'}], ", "targets.overrides[0].target_id: is one target"},
		{"an id that is none", "targets: {", "targets: {overrides: [{target_id: ses_1}], ", "is not the id of a target"},
		{"an origin with a path", "targets: {", "targets: {overrides: [{origin: 'https://a.example/x'}], ", "targets.overrides[0].origin: is scheme, host and"},
		{"an origin with the usual port", "targets: {", "targets: {overrides: [{origin: 'https://a.example:443'}], ", "targets.overrides[0].origin: is scheme, host and"},
		{"a path that does not begin", "targets: {", "targets: {overrides: [{origin: 'https://a.example', path_prefix: x}], ", "targets.overrides[0].path_prefix: must begin with /"},
		{"an order", "targets: {", "targets: {overrides: [{origin: 'https://a.example', order: any}], ", "targets.overrides[0].order: must be strict or none"},
		{"several in order", "targets: {", "targets: {overrides: [{origin: 'https://a.example', in_flight: 2}], ", "targets.overrides[0].in_flight: wants order: none"},
		{"too many in flight", "targets: {", "targets: {overrides: [{origin: 'https://a.example', order: none, in_flight: 5}], ", "targets.overrides[0].in_flight: must be at most 4"},
		{"a status of success", "targets: {", "targets: {overrides: [{origin: 'https://a.example', retry_statuses: [404, 200]}], ", "retry_statuses[1]: 200 is not a status of a failure"},
		{"a bound of an override", "targets: {", "targets: {overrides: [{origin: 'https://a.example', timeout: 11m}], ", "targets.overrides[0].timeout: must be at most 10m0s"},
		{"attempts", "delivery: {", "delivery: {max_attempts: 1001, ", "delivery.max_attempts: must be at most 1000"},
		{"a longest wait", "delivery: {", "delivery: {max_backoff: 169h, ", "delivery.max_backoff: must be at most 168h0m0s"},
		{"an age", "delivery: {", "delivery: {max_age: 8761h, ", "delivery.max_age: must be at most 8760h0m0s"},
		{"a factor", "delivery: {", "delivery: {backoff_factor: 0.5, ", "delivery.backoff_factor: must be from 1 to 10"},
		{"a wait that is asked for", "delivery: {", "delivery: {retry_after_limit: 25h, ", "delivery.retry_after_limit: must be at most 24h0m0s"},
		{"a connect", "delivery: {", "delivery: {connect_timeout: 2m, ", "delivery.connect_timeout: must be at most 1m0s"},
		{"slots", "delivery: {", "delivery: {slots: 4097, ", "delivery.slots: must be at most 4096"},
		{"slots of failing targets", "delivery: {", "delivery: {failing_slots: -1, ", "delivery.failing_slots: must not be negative"},
		{"a slow attempt", "delivery: {", "delivery: {slow_after: 61s, ", "delivery.slow_after: must be at most 1m0s"},
		{"a payload", "delivery: {", "delivery: {payload_bytes: 16777217, ", "delivery.payload_bytes: must be at most 16777216"},
		{"an answer", "delivery: {", "delivery: {response_bytes: 16777217, ", "delivery.response_bytes: must be at most 16777216"},
		{"an excerpt", "delivery: {", "delivery: {excerpt_bytes: 65537, ", "delivery.excerpt_bytes: must be at most 65536"},
		{"a cooldown", "delivery: {", "delivery: {circuit: {cooldown: 25h}, ", "delivery.circuit.cooldown: must be at most 24h0m0s"},
		{"failures of a circuit", "delivery: {", "delivery: {circuit: {failures: -3}, ", "15:32: delivery.circuit.failures: must not be negative"},
		{"key as value", "{env: HF_TEST_KEY}", "sk-literal", "holdfast.yaml:4:91: routes.main.api_key: a secret is a reference and never a value: write {env: NAME}"},
		{"not loopback", "127.0.0.1:0", "0.0.0.0:80", "holdfast.yaml:2:9: listen: 0.0.0.0 is not a loopback address: name a certificate (tls), or the proxy"},
		{"every address", "127.0.0.1:0", "':80'", "holdfast.yaml:2:9: listen: every address is not a loopback address"},
		{"a name", "127.0.0.1:0", "example.com:80", "listen: example.com is not a loopback address"},
		{"no port", "127.0.0.1:0", "127.0.0.1", "listen: \"127.0.0.1\" is neither host:port nor unix:PATH"},
		{"name of a port", "127.0.0.1:0", "127.0.0.1:http", "has no number for a port"},
		{"half of a certificate", "delivery: {", "tls: {cert: c.pem}\ndelivery: {", "holdfast.yaml:15:6: tls: wants both cert and key"},
		{"two certificates", "delivery: {", "tls: {cert: c.pem, key: k.pem, acme: {domains: [a.test], agree_terms: true}}\ndelivery: {", "tls: wants either cert and key, or acme"},
		{"ACME without a name", "delivery: {", "tls: {acme: {agree_terms: true}}\ndelivery: {", "tls.acme.domains: at least one name"},
		{"ACME without agreement", "delivery: {", "tls: {acme: {domains: [a.test]}}\ndelivery: {", "tls.acme.agree_terms: the authority"},
		{"ACME for an address", "delivery: {", "tls: {acme: {domains: [10.0.0.5], agree_terms: true}}\ndelivery: {", "tls.acme.domains[0]: \"10.0.0.5\" is no name"},
		{"ACME in the clear", "delivery: {", "tls: {acme: {domains: [a.test], agree_terms: true, directory: 'http://ca.test'}}\ndelivery: {", "tls.acme.directory: want an https URL"},
		{"nobody's name", "listen: 127.0.0.1:0", "tls: {cert: c.pem, key: k.pem}\nlisten: 0.0.0.0:443", "public_names: with listen: 0.0.0.0:443 it must be said by which names"},
		{"a URL for a name", "delivery: {", "public_names: ['https://a.test']\ndelivery: {", "public_names[0]: \"https://a.test\" is no name of a host"},
		{"a proxy without a name", "delivery: {", "behind_proxy: true\ndelivery: {", "holdfast.yaml:15:15: behind_proxy: name the proxies"},
		{"everybody is the proxy", "delivery: {", "behind_proxy: true\nproxies: [0.0.0.0/0]\ndelivery: {", "proxies[0]: 0.0.0.0/0 is everybody"},
		{"no network", "delivery: {", "behind_proxy: true\nproxies: [nginx]\ndelivery: {", "proxies[0]: \"nginx\" is no address or network"},
		{"proxies alone", "delivery: {", "proxies: [10.0.0.7]\ndelivery: {", "proxies: only with behind_proxy: true"},
		{"another header", "delivery: {", "behind_proxy: true\nproxies: [10.0.0.7]\nproxy_header: X-Real-IP\ndelivery: {", "proxy_header: must be X-Forwarded-For or Forwarded"},
		{"a socket behind a proxy", "listen: 127.0.0.1:0", "listen: unix:s\nbehind_proxy: true\nproxies: [10.0.0.7]", "behind_proxy: who opens the unix socket needs no token"},
		{"TLS on a socket", "listen: 127.0.0.1:0", "listen: unix:s\ntls: {cert: c.pem, key: k.pem}", "tls: a unix socket speaks no TLS"},
		{"short expiry", "delivery: {", "tokens: {expiry: 1s}\ndelivery: {", "tokens.expiry: must be 1m or more"},
		{"expiry past its bound", "delivery: {", "tokens: {expiry: 3h, max_expiry: 2h}\ndelivery: {", "tokens.expiry: is longer than tokens.max_expiry"},
		{"negative rate", "delivery: {", "limits: {token_rate: -1}\ndelivery: {", "limits.token_rate: must not be negative"},
		{"a rate that is none", "delivery: {", "limits: {peer_rate: 1000001}\ndelivery: {", "limits.peer_rate: must be 1000000 or less"},
		{"provider", "scripted, script", "sripted, script", `routes.demo.provider: "sripted" is no provider`},
		{"provider without a model", "scripted, script", "anthropic, script", "routes.demo: anthropic wants model"},
		{"effort", "scripted, script", "openai, model: m, reasoning: {effort: huge}, script", "routes.demo.reasoning.effort: must be minimal"},
		{"structured", "scripted, script", "openai, model: m, capabilities: {structured: maybe}, script", "capabilities.structured: must be none"},
		{"hosted tool", "scripted, script", "openai, model: m, hosted_tools: [web_search], script", "hosted_tools[0]: want an object"},
		{"hosted tool of a script", "scripted, script", "scripted, hosted_tools: [{type: x}], script", "hosted_tools: a scripted model runs no tools"},
		{"betas", "scripted, script", "openai, model: m, betas: [x], script", "routes.demo.betas: betas are of anthropic"},
		{"quirks", "scripted, script", "openai, model: m, quirks: {developer_role: true}, script", "quirks are of openai_compatible"},
		{"quirk", "scripted, script", "openai_compatible, base_url: http://x, model: m, quirks: {max_tokens: most}, script", "quirks.max_tokens: must be max_tokens"},
		{"context", "scripted, script", "openai, model: m, capabilities: {context: -1}, script", "capabilities.context: must not be negative"},
		{"later key", "delivery:", "mcp_servers: {}\ndelivery:", "MCP servers are not available yet"},
		{"secret as value", "{env: HF_TEST_HOOK}", "plain", "holdfast.yaml:8:9: secrets.hook: a secret is a reference"},
		{"two references", "{env: HF_TEST_HOOK}", "{env: A, file: b}", "exactly one of env, file or secret"},
		{"unknown default", "default_route: main", "default_route: none", `no route is named "none"`},
		{"ambiguous default", "default_route: main", "", "the default must be named"},
		{"price", "model: m", "model: m, price: {input: -1}", "routes.main.price.input: must be from 0 to 1000000 US dollars"},
		{"price without end", "model: m", "model: m, price: {output: .inf}", "routes.main.price.output: "},
		{"price that is none", "model: m", "model: m, price: {output: .nan}", "routes.main.price.output: "},
		{"price as text", "model: m", "model: m, price: {cache_read: cheap}", "routes.main.price.cache_read: want a number, got a string"},
		{"collector", "delivery:", "telemetry: {otlp_endpoint: localhost:4318}\ndelivery:", "15:28: telemetry.otlp_endpoint: want an absolute http or https URL"},
		{"credentials in a URL", "delivery:", "telemetry: {otlp_endpoint: 'http://a:b@localhost'}\ndelivery:", "telemetry.otlp_endpoint: want an absolute"},
		{"no collector", "delivery:", "telemetry: {sample: 0.5}\ndelivery:", "telemetry: without otlp_endpoint nothing is sent"},
		{"share", "delivery:", "telemetry: {otlp_endpoint: 'http://a', sample: 1.5}\ndelivery:", "telemetry.sample: must be from 0 to 1"},
		{"share that is none", "delivery:", "telemetry: {otlp_endpoint: 'http://a', sample: .nan}\ndelivery:", "telemetry.sample: must be from 0 to 1"},
		{"interval", "delivery:", "telemetry: {otlp_endpoint: 'http://a', interval: 1ms}\ndelivery:", "telemetry.interval: must be 1s or more"},
		{"header as value", "delivery:", "telemetry: {otlp_endpoint: 'http://a', headers: {authorization: abc}}\ndelivery:", "telemetry.headers.authorization: a secret is a reference"},
		{"header of ours", "delivery:", "telemetry: {otlp_endpoint: 'http://a', headers: {Host: {env: A}}}\ndelivery:", "telemetry.headers.Host: this header is set by the daemon"},
		{"bus", "delivery:", "bus_url: redis://h:1\ndelivery:", "holdfast.yaml:15:10: bus_url: want a URL such as nats://host:4222"},
		{"bus of two", "delivery:", "bus_url: 'nats://h, h:2'\ndelivery:", "bus_url: want a URL such as nats://host:4222"},
		{"bus with a path", "delivery:", "bus_url: nats://h/x\ndelivery:", "bus_url: want a URL"},
		{"bus of many", "delivery:", "bus_url: nats://h" + strings.Repeat(",nats://h", 16) + "\ndelivery:", "bus_url: it names more than 16 servers"},
		{"bus with a secret", "delivery:", "bus_url: 'nats://a:hunter2@h'\ndelivery:", "15:10: bus_url: a URL with a user, password or token is a secret"},
		{"bus as a number", "delivery:", "bus_url: 4222\ndelivery:", "bus_url: want a URL, or a reference to one"},
		{"bus as two references", "delivery:", "bus_url: {env: A, file: b}\ndelivery:", "bus_url: a secret is a reference: exactly one"},
		{"bus as an unknown reference", "delivery:", "bus_url: {enf: A}\ndelivery:", `unknown field "enf"`},
		{"bus of a secret that is not there", "delivery:", "bus_url: {secret: nats}\ndelivery:", `bus_url: no secret is named "nats"`},
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

// A value that stands where a reference must is not repeated: it is a secret.
func TestMistakeHoldsNoSecret(t *testing.T) {
	_, err := Parse([]byte(strings.Replace(good, "{env: HF_TEST_KEY}", "sk-literal", 1)), "holdfast.yaml", "/")
	if err == nil || strings.Contains(err.Error(), "sk-literal") {
		t.Error(err)
	}
}

// Whoever needs a value that cannot be read is told so, and so is the operator.
func TestReferences(t *testing.T) {
	c, err := Parse([]byte(good), "holdfast.yaml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var keys, told []string
	c.Unreadable = func(at Reference, err error) { told = append(told, at.Key+" "+at.Ref.String()+": "+err.Error()) }
	t.Setenv("HF_TEST_KEY", "k-1")
	t.Setenv("HF_TEST_HOOK", "")
	for _, at := range c.References() {
		keys = append(keys, at.Key)
		if v, err := c.Use(at); (err == nil) != (v == "k-1") {
			t.Errorf("%s: %q, %v", at.Key, v, err)
		}
	}
	if got := strings.Join(keys, " "); got != "routes.main.api_key secrets.hook" {
		t.Error(got)
	}
	if len(told) != 1 || told[0] != "secrets.hook env HF_TEST_HOOK: the environment variable HF_TEST_HOOK is not set" {
		t.Error(told)
	}
}

// An alias still works; what is wrong behind it is told by the decoder, in words of the file.
func TestAliases(t *testing.T) {
	const text = "delivery: {timeout: &t 3s, max_age: *t}\nroutes: {s: {provider: scripted, script: x}}\n"
	c, err := Parse([]byte(text), "f", "/")
	if err != nil || c.Delivery.MaxAge.Or(0) != 3*time.Second {
		t.Error(c, err)
	}
	if _, err = Parse([]byte(strings.Replace(text, "max_age", "slots", 1)), "f", "/"); err == nil || !strings.Contains(err.Error(), "want a whole number, got a string") {
		t.Error(err)
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

func TestCluster(t *testing.T) {
	t.Setenv("HF_TEST_DB", "postgres://hf:secret@db/hf")
	read := func(text string) (*Config, error) {
		return Parse([]byte(text+"\nroutes: {main: {provider: scripted, script: s.yaml}}\n"), "holdfast.yaml", "/etc/hf")
	}
	c, err := read("database_url: postgres://hf@127.0.0.1:5432/hf?sslmode=disable\nlease: {ttl: 2s}")
	if err != nil {
		t.Fatal(err)
	}
	if u, err := c.Database(); err != nil || u != "postgres://hf@127.0.0.1:5432/hf?sslmode=disable" || c.Lease.TTL.Or(0) != 2*time.Second {
		t.Errorf("%q, %v, %v", u, err, c.Lease)
	}
	if c, err = read("database_url: \"postgres://db/hf?a=1\\u0026b=2\"\nbus_url: nats://db:4222"); err != nil || c.DatabaseURL.Text != "postgres://db/hf?a=1&b=2" || c.BusURL.Text != "nats://db:4222" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = read("database_url: {env: HF_TEST_DB}"); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Database(); err != nil || u != "postgres://hf:secret@db/hf" || !c.DatabaseURL.Set() || c.References()[0].Key != "database_url" {
		t.Errorf("%q, %v", u, err)
	}
	for text, want := range map[string]string{
		"database_url: postgres://hf:secret@db/hf":            "1:15: database_url: a URL with a password is a secret",
		"database_url: postgres://db/hf?password=secret":      "1:15: database_url: a URL with a password is a secret",
		"database_url: postgres://db/hf?sslpassword=secret":   "1:15: database_url: a URL with a password is a secret",
		"database_url: mysql://db/hf":                         "1:15: database_url: want a URL that begins with postgres://",
		"database_url: {env: A, file: b}":                     "database_url: a secret is a reference: exactly one",
		"database_url: [1]":                                   "1:15: database_url: want a URL, or a reference",
		"lease: {ttl: 5s}":                                    "1:14: lease.ttl: without database_url there is one node",
		"database_url: postgres://db/hf\nlease: {ttl: 500ms}": "2:14: lease.ttl: must be from 1s to 10m",
		"database_url: postgres://db/hf\nlease: {ttl: 500}":   "2:14: lease.ttl: a duration has a unit",
	} {
		_, err := read(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
