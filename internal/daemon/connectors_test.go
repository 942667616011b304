package daemon_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// withHub configures a connector for GitHub, each of whose events has a session
// of its own, and one for Slack, whose threads have. Their answers go to the receiver.
func withHub(w *world, c map[string]any) {
	c["session_templates"] = map[string]any{"triage": map[string]any{
		"instructions": "Answer.", "tools": []string{}, "reply_targets": []any{map[string]any{"type": "webhook", "url": w.hookSrv.URL + "/hub"}},
	}}
	secrets := map[string]any{"secrets": []any{map[string]any{"env": envSecret}}}
	c["connectors"] = map[string]any{
		"hub":  map[string]any{"type": "github", "auth": secrets, "session": map[string]any{"template": "triage"}},
		"chat": map[string]any{"type": "slack", "auth": secrets, "session": map[string]any{"key": "{{thread}}", "template": "triage"}},
	}
}

func hubMAC(parts ...string) string {
	mac := hmac.New(sha256.New, []byte(crashSecret))
	for _, p := range parts {
		mac.Write([]byte(p))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// issueOf is a webhook of GitHub about an order, and the headers that sign it.
func issueOf(delivery string, order int) (json.RawMessage, []string) {
	body := fmt.Sprintf(`{"action":"opened","issue":{"number":%d,"title":"order %d","body":"it is late","user":{"login":"mona"},"html_url":"https://github.com/octo/shop/issues/%d"},"repository":{"id":1296269,"full_name":"octo/shop"},"sender":{"login":"mona","type":"User"}}`, order, order, order)
	return json.RawMessage(body), []string{"X-GitHub-Event", "issues", "X-GitHub-Delivery", delivery, "X-Hub-Signature-256", "sha256=" + hubMAC(body)}
}

// mentionOf is a request of Slack about an order, signed now.
func mentionOf(id string, order int) (json.RawMessage, []string) {
	body := fmt.Sprintf(`{"token":"x","team_id":"T1","api_app_id":"A1","type":"event_callback","event_id":"%s","event_time":1,"event":{"type":"app_mention","user":"U1","text":"order %d","ts":"%d.1","channel":"C1"}}`, id, order, order)
	at := fmt.Sprint(time.Now().Unix())
	return json.RawMessage(body), []string{"X-Slack-Request-Timestamp", at, "X-Slack-Signature", "v0=" + hubMAC("v0:", at, ":", body)}
}

// posted posts n times the same event, spread over callers, and gives the one
// run and session that there are then.
func posted(ctx context.Context, t *testing.T, on []*caller, connector string, n int, event func() (json.RawMessage, []string)) api.Received {
	t.Helper()
	got, errs := make([]api.Received, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			body, headers := event()
			a, err := on[i%len(on)].do(ctx, http.MethodPost, "/v1/connectors/"+connector, body, headers...)
			if err == nil {
				err = a.into(&got[i])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	accepted := 0
	for i := range got {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if got[i].RunID == "" || got[i].RunID != got[0].RunID || got[i].SessionID != got[0].SessionID {
			t.Errorf("I-07: one event gives %+v and %+v", got[0], got[i])
		}
		if got[i].Outcome == api.InboundAccepted {
			accepted++
		}
	}
	if accepted > 1 {
		t.Errorf("I-07: %d senders were told that theirs made the run", accepted)
	}
	return got[0]
}

// The daemon dies on either side of the append of an event: the senders come
// again, and there is one run, in one session, with one answer (C53, C56).
func TestCrashConnectors(t *testing.T) { // I-07
	for _, side := range []string{"before", "after"} {
		t.Run(side, func(t *testing.T) {
			s := newStage(t, withHub)
			s.w.answer = storyAnswer
			l := s.k.start(&killAt{Side: side, N: 1, Type: event.TypeRunCreated})
			next := s.next(l)
			on := []*caller{s.c}
			one := posted(s.ctx, t, on, "hub", 20, func() (json.RawMessage, []string) { return issueOf("d-1", 13) })
			l = next()
			run := s.completes(one.RunID)
			if run.Outputs[0].Content != "done 13" || run.Request.Source != "connector" {
				t.Errorf("%+v", run)
			}
			s.k.kill(l)
			l = s.k.start(nil)
			if again := posted(s.ctx, t, on, "hub", 1, func() (json.RawMessage, []string) { return issueOf("d-1", 13) }); again.RunID != one.RunID || again.Outcome != api.InboundRepeated {
				t.Errorf("after a restart: %+v, want the run %s", again, one.RunID)
			}
			said := posted(s.ctx, t, on, "chat", 20, func() (json.RawMessage, []string) { return mentionOf("Ev1", 14) })
			s.completes(said.RunID)
			_, err := s.c.deliveries(s.ctx, 2)
			s.must(err)
			if h := s.history(l); len(h.runs) != 2 || len(h.heads) != 3 { // two sessions and their one target
				t.Errorf("I-07: %d runs in %d streams", len(h.runs), len(h.heads))
			}
		})
	}
}

// Two nodes, the same events at both, and one of them dies at the append.
func TestClusterConnectors(t *testing.T) { // I-07, C53
	c := newCluster(t, 2, func(_ int, w *world, m map[string]any) { withHub(w, m) })
	c.start()
	one := posted(c.ctx, t, c.on, "hub", 20, func() (json.RawMessage, []string) { return issueOf("d-1", 13) })
	two := posted(c.ctx, t, c.on, "chat", 20, func() (json.RawMessage, []string) { return mentionOf("Ev1", 14) })
	c.arm(0, killAt{Side: "after", N: 1, Type: event.TypeRunCreated})
	dies := c.nodes[0].life()
	var wg sync.WaitGroup
	wg.Go(func() {
		<-dies.gone
		c.nodes[0].restart(nil)
	})
	three := posted(c.ctx, t, c.on[:1], "hub", 10, func() (json.RawMessage, []string) { return issueOf("d-3", 15) })
	wg.Wait()
	if again := posted(c.ctx, t, c.on, "hub", 10, func() (json.RawMessage, []string) { return issueOf("d-3", 15) }); again.RunID != three.RunID {
		t.Errorf("%+v and %+v", three, again)
	}
	for _, r := range []api.Received{one, two, three} {
		c.completes(1, r.RunID)
	}
	c.delivered(1, 3)
	if h, _ := c.history(); len(h.runs) != 3 || len(h.heads) != 4 {
		t.Errorf("I-07: %d runs in %d streams", len(h.runs), len(h.heads))
	}
}

// Mistakes of connectors and templates are told with their place, also those that
// only the intake sees; what works and may not be meant is warned of.
func TestConnectorConfig(t *testing.T) {
	dir := t.TempDir()
	const good = `
routes: {main: {provider: openai_compatible, base_url: "http://127.0.0.1:1/v1", model: m}}
`
	open := func(text string) error {
		cfg, err := config.Parse([]byte(good+text), "holdfast.yaml", dir)
		if err != nil {
			return err
		}
		d, err := daemon.Open(t.Context(), cfg, daemon.Options{})
		if err == nil {
			err = d.Stop(context.Background())
		}
		return err
	}
	const hub = "connectors: {hub: {auth: {type: bearer, secrets: [{env: HUB}]}, event_id: {digest: true}, session: {template: t}}}\n"
	for text, want := range map[string]string{
		hub + "session_templates: {t: {tools: [gone]}}\n":                                                                       "holdfast.yaml:4:24: session_templates.t: no configured tool is named gone",
		hub + "session_templates: {t: {reply_targets: [{type: webhook, url: \"http://127.0.0.1/\"}]}}":                          "session_templates.t: 127.0.0.1 is no public address",
		strings.Replace(hub, "session:", "reply_targets: [{type: pigeon, url: x}], session:", 1) + "session_templates: {t: {}}": "connectors.hub.reply_targets: the type of a reply target must be one of",
		hub + "session_templates: {t: {title: fine}}\n":                                                                         "",
	} {
		if err := open(text); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\ngives %v\nwant %s", text, err, want)
		}
	}
	t.Setenv("SHORT", "abc")
	cfg, err := config.Parse([]byte(good+`
session_templates: {t: {}}
connectors:
  door: {unauthenticated: true, event_id: {digest: true}, session: {template: t}}
  short: {auth: {type: bearer, secrets: [{env: SHORT}]}, event_id: {digest: true}, session: {template: t}}
  std: {auth: {type: standard_webhooks, secrets: [{env: SHORT}]}, session: {template: t}}
  away: {type: github, auth: {secrets: [{env: AWAY_FROM_HERE}]}, session: {template: t}}
`), "holdfast.yaml", dir)
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := daemon.Check(cfg)
	all := strings.Join(warnings, "\n")
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"connectors.door: everybody", "connectors.short: env SHORT is shorter", "connectors.std: env SHORT has not the form", "connectors.away.auth.secrets[0]: the environment variable AWAY_FROM_HERE is not set"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in\n%s", want, all)
		}
	}
	if strings.Contains(all, "abc") { // I-33
		t.Error("a secret is in the warnings")
	}
}
