package config

import (
	"slices"
	"strings"
	"testing"
)

// The URL of the bus is read when it is needed, and what it holds is in no error (I-33).
func TestBus(t *testing.T) {
	parse := func(line string) *Config {
		t.Helper()
		c, err := Parse([]byte(line+"\nroutes: {a: {provider: scripted, script: s.yaml}}\nsecrets: {nats: {env: HF_TEST_BUS}}\n"), "f", "/")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if parse("listen: 127.0.0.1:0").BusURL.Set() {
		t.Error("there is none")
	}
	for _, text := range []string{"nats://127.0.0.1:4222", "tls://a.example:4222,tls://b.example", "nats://[::1]:4222"} {
		c := parse("bus_url: '" + text + "'")
		if got, err := c.Bus(); err != nil || got != text || !c.BusURL.Set() || len(c.References()) != 1 {
			t.Errorf("%q, %v", got, err)
		}
	}
	for _, line := range []string{"bus_url: {env: HF_TEST_BUS}", "bus_url: {secret: nats}"} {
		c := parse(line)
		if !slices.ContainsFunc(c.References(), func(r Reference) bool { return r.Key == "bus_url" }) {
			t.Error("a reference that config check does not know of")
		}
		told := 0
		c.Unreadable = func(Reference, error) { told++ }
		t.Setenv("HF_TEST_BUS", "")
		if _, err := c.Bus(); err == nil || told != 1 {
			t.Errorf("%v, told %d times", err, told)
		}
		for _, text := range []string{"nats://a:hunter2@h", "tls://hunter2@h:4222"} {
			t.Setenv("HF_TEST_BUS", text)
			if got, err := c.Bus(); err != nil || got != text {
				t.Errorf("%q, %v", got, err)
			}
		}
		for _, text := range []string{"http://a:hunter2@h", "nats://a:hunter2@h%zz", "hunter2"} {
			t.Setenv("HF_TEST_BUS", text)
			if _, err := c.Bus(); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v", err)
			}
		}
	}
}
