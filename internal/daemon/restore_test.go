package daemon_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/backup"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// A data directory that is restored from a backup made in the middle of work: its
// daemon answers and takes commands, and begins nothing until it is released.
// Then what was in flight at the time of the backup is in doubt by the rules of
// a crash, what waited goes on, and a message that had been sent after the
// backup comes again under the same id with the same bytes. // I-13 I-24 I-26
func TestRestoredDaemon(t *testing.T) {
	hold, called := make(chan struct{}), make(chan struct{}, 8)
	var charges atomic.Int64
	charge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges.Add(1)
		called <- struct{}{}
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		w.Write([]byte("charged"))
	}))
	defer charge.Close()
	k := &hook{came: make(chan int, 16), play: []func(http.ResponseWriter, *http.Request){func(http.ResponseWriter, *http.Request) {}}}
	receiver := httptest.NewServer(k)
	defer receiver.Close()
	var sink atomic.Bool // the receiver is down at the time of the backup
	sink.Store(true)
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sink.Load() {
			w.WriteHeader(503)
			return
		}
		k.ServeHTTP(w, r)
	}))
	defer gate.Close()
	script := func(_ int, req chatstub.Request) chatstub.Reply {
		if last := req.Messages[len(req.Messages)-1]; last.Role == "user" && last.Text() == "charge" {
			return chatstub.Reply{Calls: []chatstub.Call{{Name: "charge", Arguments: "{}"}}}
		}
		return chatstub.Reply{Text: "done"}
	}
	stub := chatstub.New(script)
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	routes := `routes: {main: {provider: openai_compatible, base_url: "` + vendor.URL + `/v1", model: m}}`
	h := &house{t: t, stub: stub, more: "  charge: {type: http, url: \"" + charge.URL + "\", side_effect: external_effect, policy: allow, input_schema: {type: object, properties: {}, additionalProperties: false}}\n"}
	h.begin(routes, "found")
	ctx := t.Context()
	s := h.session(&api.CreateSession{})
	inFlight, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("charge")})
	if err != nil {
		t.Fatal(err)
	}
	waits, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	<-called
	answered := h.run(&api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: gate.URL}}}, api.Text("hello"))
	message := answered.Deliveries[0].ID

	to := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Make(ctx, backup.Options{DataDir: h.dir + "/holdfast-data", To: to}); err != nil {
		t.Fatal(err)
	}
	sink.Store(false)
	<-k.came // sent after the backup
	close(hold)
	if r, err := h.c.Wait(ctx, waits.ID); err != nil || r.Status != api.RunCompleted {
		t.Fatalf("%+v, %v", r, err)
	}

	again := &house{t: t, more: h.more}
	again.restored = func(dir string) {
		r, err := backup.Restore(ctx, backup.RestoreOptions{From: to, DataDir: dir})
		if err != nil || !r.Held || r.Runs != 2 || r.Deliveries != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	asked := len(stub.Requests())
	again.begin(routes, "found")
	if status(t, "http://"+again.address+"/readyz") != 503 {
		t.Error("a restored daemon is ready before it is released")
	}
	third, _, err := again.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("hello again")})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := again.c.Run(ctx, waits.ID); err != nil || r.Status != "queued" || len(stub.Requests()) != asked || charges.Load() != 1 {
		t.Errorf("before the release: %+v, %v", r, err)
	}
	if was, err := backup.Release(again.dir + "/holdfast-data"); err != nil || !was {
		t.Fatal(was, err)
	}
	if n := <-k.came; n != 2 {
		t.Errorf("message %d", n)
	}
	again.delivered(message)
	if k.heads[0].Get("webhook-id") != message || k.heads[1].Get("webhook-id") != message || string(k.body[0]) != string(k.body[1]) {
		t.Errorf("the message came as %s and %s", k.heads[0].Get("webhook-id"), k.heads[1].Get("webhook-id"))
	}
	r, err := again.c.Wait(ctx, inFlight.ID)
	if err != nil || r.Status != api.RunNeedsAttention {
		t.Fatalf("the run that was in flight: %+v, %v", r, err)
	}
	if charges.Load() != 1 {
		t.Errorf("%d charges", charges.Load())
	}
	if _, err := again.c.Cancel(ctx, inFlight.ID, "it was charged"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{waits.ID, third.ID} {
		if r, err := again.c.Wait(ctx, id); err != nil || r.Status != api.RunCompleted {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
