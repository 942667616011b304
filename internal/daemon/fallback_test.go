package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
)

// Whose secrets a fallback names is pinned with it: what waits for its next attempt
// is sent with the daemon's, though the configuration has no fallback any more. // I-08
func TestFallbackThatLeft(t *testing.T) {
	o := newOutlets(t, "fallback: [{type: webhook, url_secret: address}]")
	o.fails["/"+pathCanary] = 1 << 30
	s := o.session(&api.CreateSession{UserID: "ann"})
	run, _, err := o.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.c.Wait(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	if err := o.d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.fails["/"+pathCanary] = 0
	o.mu.Unlock()
	o.cfg.Targets.Fallback = nil
	o.open()
	_, list := o.settled(run.ID)
	if len(list) != 1 || list[0].Status != api.DeliveryDelivered {
		t.Errorf("%+v", list)
	}
}

// A fallback whose secret is a slot that is not set yet does not stop the start,
// since slots are set over a running daemon: what would use it is refused until then.
func TestFallbackWaitsForItsSlot(t *testing.T) {
	for name, fallback := range map[string]string{
		"address": "{type: webhook, url_secret: later}", "key": `{type: webhook, url: "http://127.0.0.1:1/", secret: later}`,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutlets(t, "fallback: [{type: file, folder: answers, path: a}, "+fallback+"]")
			if warnings, err := daemon.Check(o.cfg); err != nil || !strings.Contains(strings.Join(warnings, "\n"), "targets.fallback[1]: the secret later is a slot") {
				t.Errorf("%q, %v", warnings, err)
			}
			if logs := o.logs.String(); !strings.Contains(logs, "holdfast secrets set later") || !strings.Contains(logs, "targets.fallback[1]") {
				t.Errorf("nothing is said at the start:\n%s", logs)
			}
			s := o.session(&api.CreateSession{UserID: "ann"})
			_, _, err := o.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
			if client.Code(err) != "secret_unavailable" || !strings.Contains(err.Error(), "holdfast secrets set later") {
				t.Errorf("%v", err)
			}
			if _, d := o.run(s.ID, &api.SubmitRun{Content: api.Text("go"), ReplyTargets: &[]api.ReplyTarget{}}); len(d) != 0 {
				t.Errorf("%+v", d)
			}
			value := signingSecret
			if name == "address" {
				value = o.hooks.URL + "/later"
			}
			if _, err := o.c.SetSecret(t.Context(), "later", &api.PutSecret{Value: value, Hosts: []string{strings.TrimPrefix(o.hooks.URL, "http://")}}); err != nil {
				t.Fatal(err)
			}
			run, _, err := o.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
			if err != nil {
				t.Fatal(err)
			}
			if name == "address" {
				if _, d := o.settled(run.ID); len(d) != 2 || d[0].Status != api.DeliveryDelivered || d[1].Status != api.DeliveryDelivered || len(o.got("/later")) != 1 {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// A mistake in a fallback is told at the start, whatever waits for a slot before it.
func TestFallbackMistakeBehindASlot(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(`rules: [{reply: {text: x}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]byte("routes: {main: {provider: scripted, script: script.yaml}}\ntargets:\n  fallback: [{type: webhook, url_secret: later}, {type: stdout}]"), "holdfast.yaml", dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = daemon.Open(t.Context(), cfg, daemon.Options{})
	if err == nil || !strings.Contains(err.Error(), "targets.fallback[1]") {
		t.Errorf("%v", err)
	}
}
