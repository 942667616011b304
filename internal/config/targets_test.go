package config

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/replyto"
)

const waysOut = `
routes: {main: {provider: scripted, script: s}}
secrets: {hook: {env: HF_TEST_HOOK}}
targets:
  max_hops: 3
  folders: {answers: ./answers}
  stdout: true
  mail:
    office: {address: "smtp.example.com:587", from: holdfast@example.com, recipients: [ann@example.com, "*@team.test", "*"], username: ann, password: {secret: hook}}
    local: {address: "127.0.0.1:25", tls: none, from: a@b.c, recipients: ["*"]}
  nats:
    main: {url: "nats://h:4222", subjects: [answers.>, a.*.b], jetstream: true}
    other: {url: {secret: hook}, subjects: [a]}
  plugins: {pager: {command: [./pager, -v], secrets: {token: {secret: hook}}, timeout: 5s}}
  fallback:
    - {type: webhook, url: "https://hook.test"}
    - {type: mail, server: office, to: [ann@example.com], subject: Answer}
`

func TestTargets(t *testing.T) {
	t.Setenv("HF_TEST_HOOK", "nats://ann:hunter2@h")
	c, err := Parse([]byte(waysOut), "holdfast.yaml", "/etc")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Targets.Fallback[1].Target(); got.Type != event.TargetMail || got.To[0] != "ann@example.com" || got.Subject != "Answer" {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]string{"main": "nats://h:4222", "other": "nats://ann:hunter2@h"} {
		if got, err := c.NATS(name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	keys := map[string]bool{}
	for _, r := range c.References() {
		keys[r.Key] = true
	}
	for _, key := range []string{"targets.mail.office.password", "targets.nats.other.url", "targets.plugins.pager.secrets.token"} {
		if !keys[key] {
			t.Errorf("%s is no reference of the file", key)
		}
	}
	t.Setenv("HF_TEST_HOOK", "redis://hunter2")
	if _, err := c.NATS("other"); err == nil || strings.Contains(err.Error(), "hunter2") { // I-33
		t.Errorf("%v", err)
	}
}

// Where the URL of a NATS server in a secret leads, the secret must be bound to, each
// of several servers; the port that is not written counts.
func TestNATSSecretsAreBound(t *testing.T) {
	const text = `
listen: 127.0.0.1:0
data_dir: data
default_route: main
routes: {main: {provider: scripted, script: x}}
bus_url: {secret: bus}
secrets: {bus: {env: HF_TEST_HOOK, hosts: ["nats.test:4222", b.test]}}
targets: {nats: {named: {url: {secret: bus}, subjects: [a]}, slot: {url: {secret: in_a_slot}, subjects: [a]}}}
`
	c, err := Parse([]byte(text), "holdfast.yaml", "/etc")
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	for url, ok := range map[string]bool{
		"nats://ann:hunter2@nats.test": true, "tls://ann:hunter2@NATS.test.:4222, nats://b.test:1": true,
		"nats://ann:hunter2@evil.test": false, "nats://ann:hunter2@nats.test:4223": false, "nats://ann:hunter2@nats.test,nats://evil.test": false, "nats://nats.test@evil.test": false,
	} {
		t.Setenv("HF_TEST_HOOK", url)
		c.Resolve = nil
		if _, err := c.Bus(); ok != (err == nil) {
			t.Errorf("bus_url %s: %v", url, err)
		}
		if got, err := c.NATS("named"); ok != (err == nil && got == url) || err != nil && (!problem.Is(err, "secret_not_for_host") || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %q, %v", url, got, err)
		}
		c.Resolve = func(_ context.Context, name, host string) ([]string, error) {
			asked[host] = true
			if host != "" && name == "in_a_slot" {
				return nil, problem.New(problem.Forbidden, "secret_not_for_host", "no")
			}
			return []string{url}, nil
		}
		if got, err := c.NATS("slot"); !problem.Is(err, "secret_not_for_host") {
			t.Errorf("%s: a slot that is bound to no host gives %q, %v", url, got, err)
		}
	}
	if !asked["nats.test:4222"] || !asked["evil.test:4222"] {
		t.Errorf("asked for %v", asked)
	}
}

// Every member of a target that a caller may say can stand in the fallback, save a
// session.
func TestFallbackMembers(t *testing.T) {
	var f ReplyTarget
	v := reflect.ValueOf(&f).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x" + v.Type().Field(i).Name)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"a"}))
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		}
	}
	got := f.Target()
	shown := reflect.ValueOf(replyto.Show(&got))
	for i, typ := 0, reflect.TypeFor[api.ReplyTarget](); i < typ.NumField(); i++ {
		name := typ.Field(i).Name
		told := name == "Origin" || name == "From" || name == "Session"
		if shown.Field(i).IsZero() != told {
			t.Errorf("%s: %v", name, shown.Field(i))
		}
	}
}

func TestTargetsThatAreMistakes(t *testing.T) {
	for _, row := range []struct{ from, to, want string }{
		{"max_hops: 3", "max_hops: 101", "holdfast.yaml:5:13: targets.max_hops: must be at most 100"},
		{"max_hops: 3", "max_hops: -1", "targets.max_hops: must not be negative"},
		{"{answers: ./answers}", "{answers: ''}", "targets.folders.answers: want the path of a folder"},
		{"{answers: ./answers}", "{'a b': ./answers}", "a name is"},
		{"smtp.example.com:587", "smtp.example.com", "9:23: targets.mail.office.address: want host:port"},
		{"smtp.example.com:587", "smtp.example.com:0", "want host:port"},
		{"from: holdfast@example.com", "from: 'Holdfast <h@example.com>'", "targets.mail.office.from: want a bare mail address"},
		{"from: holdfast@example.com, ", "", "targets.mail.office: a mail server wants address, from and recipients"},
		{`"*@team.test"`, `"*@*"`, "targets.mail.office.recipients[1]: want an address"},
		{"username: ann, ", "", "targets.mail.office: username and password go together"},
		{"username: ann", "tls: none, username: ann", "targets.mail.office.tls: with a password"},
		{"username: ann", "tls: ssl, username: ann", "targets.mail.office.tls: must be starttls"},
		{"password: {secret: hook}", "password: hunter2", "a secret is a reference and never a value"},
		{"nats://h:4222", "nats://a:b@h:4222", "targets.nats.main.url: a URL with a user"},
		{"nats://h:4222", "http://h:4222", "targets.nats.main.url: want a URL such as nats://"},
		{", subjects: [a]", "", "targets.nats.other: a NATS server wants url and subjects"},
		{"a.*.b", "$SYS.>", "targets.nats.main.subjects[1]: want a pattern"},
		{"command: [./pager, -v]", "command: []", "targets.plugins.pager: a plugin wants command"},
		{"timeout: 5s", "timeout: 16s", "targets.plugins.pager.timeout: must be at most delivery.timeout, 15s"},
		{"{token: {secret: hook}}", "{token: {env: A, file: b}}", "targets.plugins.pager.secrets.token: a secret is a reference: exactly one"},
		{"type: webhook, url", "type: session, url", "targets.fallback[0].type: a session is one user's"},
		{"type: webhook, url", "type: post, url", "targets.fallback[0]: the type of a reply target must be one of"},
		{"server: office, to", "server: office, path: x, to", "targets.fallback[1]: a target of type mail has no member path"},
		{"subject: Answer", "session: x", `unknown field "session"`},
	} {
		if !strings.Contains(waysOut, row.from) {
			t.Errorf("%s changes nothing", row.from)
			continue
		}
		_, err := Parse([]byte(strings.Replace(waysOut, row.from, row.to, 1)), "holdfast.yaml", "/")
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.to, err, row.want)
		}
	}
}
