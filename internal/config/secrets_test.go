package config

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

const oneRoute = "routes: {a: {provider: scripted, script: s.yaml}}\n"

func TestSecretKeys(t *testing.T) {
	for text, want := range map[string]string{
		"secrets: {k: {env: A, hosts: [API.example.com, '*.example.org:8443']}}": "", "secrets: {k: {env: A, hosts: []}}": "", "secrets: {k: {env: A, shared: true}}": "",
		"master_key: {file: k, former: [{env: OLD}, {file: old}]}": "", "master_key: {env: K, kms: {command: [/bin/kms, --key, x], pass_env: [AWS_PROFILE], timeout: 5m}}": "",
		"slots: {former_for: 168h, per_owner: 10000}": "", "targets: {signing_secret: a_slot}": "",
		"secrets: {k: {env: A, hosts: [http://x]}}":        "1:30: secrets.k.hosts: hosts[0] is no host",
		"secrets: {'a b': {env: A}}":                       "secrets.a b: a secret's name is",
		"secrets: {k: {hosts: [x.test]}}":                  "secrets.k: a secret is a reference: exactly one",
		"secrets: {k: {secret: other}}":                    `unknown field "secret"`,
		"master_key: {file: k, env: K}":                    "1:13: master_key: the current key is one: file or env",
		"master_key: {former: [{secret: k}]}":              "master_key.former[0]: the master key is referred to by env or file",
		"master_key: {former: [{}]}":                       "master_key.former[0]: a secret is a reference",
		"master_key: {former: [abc]}":                      "a secret is a reference and never a value",
		"master_key: {kms: {timeout: 1s}}":                 "master_key.kms: command is missing",
		"master_key: {kms: {command: [x], timeout: 301s}}": "master_key.kms.timeout: must be at most 5m0s",
		"slots: {former_for: 169h}":                        "slots.former_for: must be at most 168h0m0s",
		"slots: {per_owner: 10001}":                        "slots.per_owner: must be from 1 to 10000",
		"slots: {per_owner: -1}":                           "slots.per_owner: must be from 1 to 10000",
		"targets: {signing_secret: 'a b'}":                 "targets.signing_secret: a secret's name is",
		"database_url: {secret: slot}":                     "a slot cannot stand here, since it is in the database",
		"targets: {allow_private: [127.0.0.1]}":            "targets.allow_private[0]: \"127.0.0.1\" is no network",
		"tools: {t: {type: http, url: 'http://x', side_effect: read, input_schema: {type: object}, allow_private: [x]}}": "tools.t.allow_private[0]: \"x\" is no network",
		"telemetry: {otlp_endpoint: 'http://x', allow_private: [x]}":                                                     "telemetry.allow_private[0]",
	} {
		_, err := Parse([]byte(text+"\n"+oneRoute), "f", "/")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n  %v\n  want %s", text, err, want)
		}
	}
	for route, want := range map[string]string{
		"proxy: 'http://proxy.test:3128'": "", "allow_private: [127.0.0.0/8]": "", "proxy: 'http://proxy.test'": "routes.b.proxy: want a URL such as", "proxy: 'http://u:p@proxy.test:1'": "routes.b.proxy: want a URL",
		"proxy: 'socks5://proxy.test:1'": "routes.b.proxy: want a URL", "allow_private: [x]": "routes.b.allow_private[0]",
	} {
		text := "default_route: b\nroutes: {b: {provider: openai_compatible, base_url: 'http://x.test/v1', model: m, " + route + "}}\n"
		_, err := Parse([]byte(text), "f", "/")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", route, err, want)
		}
	}
	two := "default_route: b\nroutes: {b: {provider: openai, model: m, proxy: 'http://p.test:1'}, c: {provider: openai, model: n}}\n"
	if _, err := Parse([]byte(two), "f", "/"); err == nil || !strings.Contains(err.Error(), "one host has one proxy") {
		t.Errorf("%v", err)
	}
}

// A secret of the file is bound by its hosts also without a daemon (a doctor asks so).
func TestUseFor(t *testing.T) {
	t.Setenv("HF_TEST_USE", "value-of-the-variable")
	c, err := Parse([]byte("secrets: {free: {env: HF_TEST_USE}, bound: {env: HF_TEST_USE, hosts: [api.test]}, nowhere: {env: HF_TEST_USE, hosts: []}}\n"+oneRoute), "f", "/")
	if err != nil {
		t.Fatal(err)
	}
	c.Known = new(secret.Known)
	for _, test := range []struct {
		ref  Ref
		host string
		ok   bool
	}{
		{Ref{Env: "HF_TEST_USE"}, "any.test:443", true}, {Ref{Secret: "free"}, "any.test:443", true}, {Ref{Secret: "bound"}, "api.test:443", true}, {Ref{Secret: "bound"}, "", true},
		{Ref{Secret: "bound"}, "evil.test:443", false}, {Ref{Secret: "nowhere"}, "api.test:443", false}, {Ref{Secret: "nowhere"}, "", true},
	} {
		got, err := c.UseFor(t.Context(), Reference{"k", test.ref}, test.host)
		if (err == nil) != test.ok || test.ok && got[0] != "value-of-the-variable" || !test.ok && !problem.Is(err, "secret_not_for_host") {
			t.Errorf("%s for %q: %v %v", test.ref, test.host, got, err)
		}
	}
	if got := c.Known.Scrub("a value-of-the-variable"); got != "a [redacted]" {
		t.Error(got)
	}
	if !c.Slotted(Ref{Secret: "slot"}) || c.Slotted(Ref{Secret: "free"}) || c.Slotted(Ref{Env: "slot"}) {
		t.Error("Slotted")
	}
	if c.MasterKeyFile() != "/holdfast-data.key" || time.Duration(c.Slots.FormerFor) != 0 {
		t.Error(c.MasterKeyFile())
	}
}
