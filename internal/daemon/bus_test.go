package daemon_test

import (
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/bus"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// natsServer starts a server on loopback.
func natsServer(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

// eventually waits for something that comes by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(*patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

// A daemon whose bus is away works as any other; when it comes, another node
// hears what the model says, from the first word to the last (I-17).
func TestBusComesLater(t *testing.T) {
	const answer = "one two three four five six seven eight nine ten"
	stub := chatstub.New(func(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: answer} })
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	t.Setenv("HF_TEST_BUS", "")
	h := &house{t: t, stub: stub}
	h.begin("bus_url: {env: HF_TEST_BUS}\nroutes: {main: {provider: openai_compatible, base_url: '"+vendor.URL+"/v1', model: m}}", "found")
	metrics := func(line string) bool {
		text, err := h.c.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\n"+line+"\n")
	}
	if _, err := h.c.Ready(t.Context()); err != nil {
		t.Errorf("a bus that is away makes a node unready: %v", err)
	}
	session := h.session(nil)
	if r := h.submit(session, &api.SubmitRun{Content: api.Text("go")}); r.Status != api.RunCompleted {
		t.Fatalf("%+v", r)
	}
	if !metrics("holdfast_bus_configured 1") || !metrics("holdfast_bus_connected 0") {
		t.Error("the metrics do not say that the bus is away")
	}
	broker := natsServer(t)
	url := broker.ClientURL()
	t.Setenv("HF_TEST_BUS", url)
	eventually(t, "connected", func() bool { return metrics("holdfast_bus_connected 1") })

	var hub live.Hub
	other, err := bus.New(bus.Config{URL: func() (string, error) { return url, nil }, Hub: &hub, Node: "other"})
	if err != nil {
		t.Fatal(err)
	}
	other.Start()
	defer other.Close()
	sub := hub.Subscribe(event.SessionID(session).Stream())
	defer sub.Close()
	eventually(t, "known to each other", func() bool { return metrics("holdfast_bus_peers 1") })
	eventually(t, "subscribed, as the server knows", func() bool { // else the daemon is told that nobody is there, and begins later
		all, err := broker.Connz(&server.ConnzOptions{Subscriptions: true})
		return err == nil && slices.ContainsFunc(all.Conns, func(c *server.ConnInfo) bool {
			return slices.ContainsFunc(c.Subs, func(subject string) bool { return strings.HasSuffix(subject, "."+session) })
		})
	})
	run := h.submit(session, &api.SubmitRun{Content: api.Text("go")})
	var text string
	number := int64(0)
	eventually(t, "heard", func() bool {
		for d := sub.Delta(); d != nil; d = sub.Delta() {
			if number++; d.Number != number || d.RunID != run.ID || d.Epoch == 0 || d.After == 0 {
				t.Fatalf("%+v, want number %d", d.Delta, number)
			}
			text += d.Text
		}
		return text == answer
	})
	if sub.Lost() != live.None {
		t.Error("something was lost")
	}
	enough := errors.New("enough")
	err = h.c.StreamSession(t.Context(), session, 0, func(m client.Message) error {
		if m.Synced == nil {
			return nil
		}
		if m.Synced.Live != api.LiveLocal {
			t.Errorf("a node that shares its store with nobody says %+v", m.Synced)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}
