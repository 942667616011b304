package engine_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/scripted"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// house is the rooms over a real store, in a bubble.
type house struct {
	t     *testing.T
	store *sqlite.Store
	adm   *admission.Admission
	eng   *engine.Engine
	model llm.Model
	hub   live.Hub
}

func newHouse(t *testing.T, script string, tools ...tool.Tool) *house {
	t.Helper()
	h := &house{t: t}
	var err error
	h.store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		t.Fatal(err)
	}
	if h.model, err = scripted.Parse("test", []byte(script)); err != nil {
		t.Fatal(err)
	}
	set, err := tool.NewSet(tools...)
	if err != nil {
		t.Fatal(err)
	}
	h.adm = admission.New(admission.Config{
		Store: h.store, Tools: set, Random: rand.Reader,
		Route: func(string, string) (event.Route, error) {
			return event.Route{Name: "main", Provider: "scripted", Model: "scripted"}, nil
		},
		CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) { return t, nil },
		Compaction:  &event.Compaction{Auto: true},
	})
	h.eng = h.engine(set, "gen_1")
	return h
}

func (h *house) engine(set *tool.Set, owner string) *engine.Engine {
	return engine.New(engine.Config{
		Log: h.store, Hub: &h.hub, Tools: set, Node: eventlog.NodeID(owner), Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil },
	})
}

// forever is the term of a node that is alone.
type forever struct{}

func (forever) Held() bool                  { return true }
func (forever) Await(context.Context) error { return nil }
func (forever) Context() context.Context    { return context.Background() }

func (h *house) close() {
	if err := h.store.Close(context.Background()); err != nil {
		h.t.Error(err)
	}
}

func (h *house) session(req *api.CreateSession) eventlog.SessionRow {
	h.t.Helper()
	id, err := h.adm.CreateSession(h.t.Context(), admission.Caller{}, req)
	if err != nil {
		h.t.Fatal(err)
	}
	row, err := h.store.Session(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return row
}

func (h *house) submit(s eventlog.SessionRow, text string) event.RunID {
	h.t.Helper()
	id, created, err := h.adm.Submit(h.t.Context(), admission.Caller{}, s, &api.SubmitRun{Content: api.Text(text)}, "")
	if err != nil || !created {
		h.t.Fatalf("submit: created %v, %v", created, err)
	}
	return id
}

// drive works until nothing is asked for, waiting for what is due.
func (h *house) drive(eng *engine.Engine, id event.SessionID) {
	h.t.Helper()
	st, err := eng.Load(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	for {
		var due time.Time
		st, due, _, err = eng.Drive(h.t.Context(), forever{}, st, nil, nil, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		if due.IsZero() {
			return
		}
		<-time.After(time.Until(due))
	}
}

func (h *house) types(id event.SessionID) []string {
	h.t.Helper()
	events, err := h.store.Read(h.t.Context(), id.Stream(), 0, 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, e := range events {
		out = append(out, string(e.Type))
	}
	return out
}

func (h *house) run(id event.RunID) eventlog.RunRow {
	h.t.Helper()
	row, err := h.store.Run(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return row
}

func TestOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, `rules: [{reply: {text: "hello", usage: {input: 3, output: 1}}}]`)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "hi")
		h.drive(h.eng, s.ID)
		if row := h.run(id); row.Status != "completed" || row.OutputSeq == 0 || !strings.Contains(row.Totals, `"input":3`) {
			t.Errorf("run: %+v", row)
		}
		t.Log(h.types(s.ID))
	})
}
