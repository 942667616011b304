package admission_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// desk is the room over a real store.
type desk struct {
	*admission.Admission
	t      *testing.T
	dir    string
	store  *sqlite.Store
	tools  []tool.Tool
	routes map[string]event.Route
	limits admission.Limits
	takes  func(event.Route, string) bool
	owner  admission.Owner
	wrap   func(admission.Store) admission.Store

	fallback []event.ReplyTarget
	try      func(ctx context.Context, user string, id event.DeliveryID, t event.ReplyTarget, body []byte) admission.Tried
}

type named struct{ def tool.Definition }

func (n named) Definition() tool.Definition { return n.def }
func (n named) Run(context.Context, tool.Call) (tool.Result, error) {
	return tool.Result{}, errors.New("no tool runs here")
}

func toolNamed(name, description string) tool.Tool {
	return named{tool.Definition{Name: name, Description: description, Level: tool.Read, Source: tool.Local, InputSchema: canonjson.Value(`{"type":"object"}`)}}
}

func newDesk(t *testing.T, limits admission.Limits) *desk {
	t.Helper()
	d := &desk{
		t: t, dir: t.TempDir(), limits: limits, tools: []tool.Tool{toolNamed("look", "looks"), toolNamed("note", "notes")},
		routes: map[string]event.Route{"": {Name: "main", Provider: "p", Model: "m"}, "side": {Name: "side", Provider: "q", Model: "n"}},
	}
	d.open()
	t.Cleanup(func() { d.store.Close(context.Background()) })
	return d
}

// open begins a process life: nothing is remembered but what is stored.
func (d *desk) open() {
	d.t.Helper()
	var err error
	if d.store, err = sqlite.Open(context.Background(), sqlite.Config{Dir: d.dir, Sync: sqlite.SyncNormal, Rows: eventlog.Rows}); err != nil {
		d.t.Fatal(err)
	}
	d.remake()
}

// remake makes the room anew over the same store.
func (d *desk) remake() {
	d.t.Helper()
	set, err := tool.NewSet(d.tools...)
	if err != nil {
		d.t.Fatal(err)
	}
	var store admission.Store = d.store
	if d.wrap != nil {
		store = d.wrap(store)
	}
	d.Admission = admission.New(admission.Config{
		Store: store, Tools: set, Random: rand.Reader, Limits: d.limits, Takes: d.takes, Owner: d.owner, Fallback: func(context.Context) ([]event.ReplyTarget, error) { return d.fallback, nil }, TryTarget: d.try,
		Route: func(name, model string) (event.Route, error) {
			r, ok := d.routes[name]
			if !ok {
				return r, problem.New(problem.Invalid, "unknown_route", "no route %q", name)
			}
			if model != "" {
				r.Model = model
			}
			return r, nil
		},
		CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) {
			if t.Type != "webhook" {
				return t, problem.New(problem.Invalid, "invalid_reply_target", "no webhook")
			}
			return t, nil
		},
	})
}

func (d *desk) restart() {
	d.t.Helper()
	if err := d.store.Close(context.Background()); err != nil {
		d.t.Fatal(err)
	}
	d.open()
}

func (d *desk) session(req *api.CreateSession) eventlog.SessionRow {
	d.t.Helper()
	id, err := d.CreateSession(d.t.Context(), admission.Caller{Actor: "tester"}, req)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.row(id)
}

func (d *desk) row(id event.SessionID) eventlog.SessionRow {
	d.t.Helper()
	row, err := d.store.Session(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return row
}

func (d *desk) update(id event.SessionID, ch admission.Change, err error) {
	d.t.Helper()
	if err == nil {
		err = d.Update(d.t.Context(), admission.Caller{}, id, ch)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// submit expects a run: new, or the one that exists.
func (d *desk) submit(row eventlog.SessionRow, req *api.SubmitRun, key string, created bool) event.RunID {
	d.t.Helper()
	id, is, err := d.Submit(d.t.Context(), admission.Caller{Actor: "tester"}, row, req, key)
	if err != nil || is != created {
		d.t.Fatalf("submit: %s, created %v, %v", id, is, err)
	}
	return id
}

// refused expects an edge error of a code, and that the log is as it was.
func (d *desk) refused(code string, row eventlog.SessionRow, req *api.SubmitRun, key string) *problem.Error {
	d.t.Helper()
	before := d.everything()
	_, _, err := d.Submit(d.t.Context(), admission.Caller{}, row, req, key)
	if !problem.Is(err, code) {
		d.t.Fatalf("submit: %v, want %s", err, code)
	}
	if after := d.everything(); after != before {
		d.t.Fatalf("%s left something:\n%s", code, strings.TrimPrefix(after, before))
	}
	return problem.Of(err)
}

func (d *desk) feed() []event.Event {
	d.t.Helper()
	feed, _, err := d.store.Feed(d.t.Context(), 0, 10_000, eventlog.FeedFilter{})
	if err != nil {
		d.t.Fatal(err)
	}
	events := make([]event.Event, len(feed))
	for i := range feed {
		events[i] = feed[i].Event
	}
	return events
}

// everything is the whole log and all rows of runs, as text.
func (d *desk) everything() string {
	d.t.Helper()
	var b bytes.Buffer
	for _, e := range d.feed() {
		fmt.Fprintf(&b, "%s\n", e.AppendWire(nil))
	}
	rows, _, err := d.store.Runs(d.t.Context(), eventlog.RunFilter{}, eventlog.Page{Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	fmt.Fprintf(&b, "%+v\n", rows)
	return b.String()
}

func (d *desk) created(row eventlog.SessionRow, id event.RunID) *event.RunCreated {
	d.t.Helper()
	events, err := d.store.Read(d.t.Context(), row.ID.Stream(), 0, 10_000)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := range events {
		if events[i].RunID == id && events[i].Type == event.TypeRunCreated {
			if err := events[i].Decode(); err != nil {
				d.t.Fatal(err)
			}
			return events[i].Data.(*event.RunCreated)
		}
	}
	d.t.Fatalf("no run.created of %s", id)
	return nil
}

func (d *desk) verify() {
	d.t.Helper()
	report, err := d.store.Verify(d.t.Context(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		d.t.Errorf("verify: %v %+v", err, report.Findings)
	}
}

const schemaQ = `{"type":"object","properties":{"n":{"type":"number"},"q":{"type":"string"}},"required":["n"],"additionalProperties":false}`

func withInput() *api.CreateSession {
	return &api.CreateSession{InputContract: &api.InputContract{Schema: api.Raw(schemaQ)}}
}

func text(s string) *api.SubmitRun { return &api.SubmitRun{Content: api.Text(s)} }

// A submission that breaks the input contract leaves no run and no event (I-07).
func TestInputContract(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(withInput())
	for content, path := range map[string]string{
		`{"n":"x"}`: "$.n", `{}`: "$.n", `{"n":1,"z":2}`: "$.z", `plain`: "$", `{"n":1}{"n":2}`: "$", `{"n":1,"n":2}`: "$",
	} {
		p := d.refused(admission.CodeInputContract, s, text(content), "")
		if len(p.Issues) != 1 || !strings.HasPrefix(p.Issues[0].Path, path) || p.Kind != problem.Invalid {
			t.Errorf("%s: %+v", content, p)
		}
		d.refused(admission.CodeInputContract, s, text(content), "a-key")
	}
	// The parsed value travels in the envelope, canonical; raw JSON and its text are the same.
	for _, req := range []*api.SubmitRun{
		text("{ \"q\": \"x\", \"n\": 1.0 }"), {Content: api.Raw(`{"n":1,"q":"x"}`)},
		{InputItems: []api.InputItem{{Type: "text", Text: `{"n":1,`}, {Type: "text", Text: `"q":"x"}`}}},
	} {
		c := d.created(s, d.submit(s, req, "", true))
		if len(c.Input) != 1 || string(c.Input[0].Value) != `{"n":1,"q":"x"}` || !c.Input[0].Structured || c.InputContract == "" {
			t.Errorf("input %+v", c.Input)
		}
	}
	long := `{"n":1,"q":"` + strings.Repeat("x", 20<<10) + `"}`
	c := d.created(s, d.submit(s, text(long), "", true))
	blob, _, err := d.store.Blob(t.Context(), s.ID, c.Input[0].Content.Ref)
	if err != nil || string(blob) != long || !c.Input[0].Structured {
		t.Errorf("a large value stands by reference: %v %+v", err, c.Input)
	}
	d.verify()
}

// The order at submit: a known key counts before the contract, the contract
// before what is captured.
func TestOrderAtSubmit(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(withInput())
	id := d.submit(s, text(`{"n":1}`), "k", true)
	ch, err := d.SetInputContract(&api.InputContract{Schema: api.Raw(`{"type":"object","properties":{"other":{"type":"string"}},"required":["other"],"additionalProperties":false}`)})
	d.update(s.ID, ch, err)
	s = d.row(s.ID)
	if again := d.submit(s, text(`{ "n": 1 }`), "k", false); again != id {
		t.Errorf("the retry got %s, not %s", again, id)
	}
	d.refused("idempotency_conflict", s, text(`{"n":2}`), "k")       // another under the old contract
	d.refused("idempotency_conflict", s, text(`{"other":"x"}`), "k") // one that the new contract takes
	d.refused(admission.CodeInputContract, s, text(`{"n":1}`), "k2")
	bad := text(`{"n":1}`)
	bad.Route = "nowhere"
	d.refused(admission.CodeInputContract, s, bad, "")
	bad.Content = api.Text(`{"other":"x"}`)
	d.refused("unknown_route", s, bad, "")
	d.update(s.ID, admission.Change{Names: []string{"input_contract"}}, nil)
	s = d.row(s.ID)
	if again := d.submit(s, text(`{"n":1.0}`), "k", false); again != id {
		t.Error("without a contract a known key is still read under its own")
	}
	if err := d.Close(t.Context(), admission.Caller{}, s, ""); err != nil {
		t.Fatal(err)
	}
	for _, row := range []eventlog.SessionRow{s, d.row(s.ID)} { // also with a row from before
		if again := d.submit(row, text(`{"n":1}`), "k", false); again != id {
			t.Error("a closed session still knows its keys")
		}
		d.refused("session_closed", row, text("more"), "")
		d.refused("session_closed", row, text("more"), "k3")
	}
}

// Equal keys with equal requests give one run, also at once and after a restart (I-07, C53).
func TestIdempotency(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	ids := make([]event.RunID, 20)
	var created sync.Map
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			id, is, err := d.Submit(t.Context(), admission.Caller{}, s, text("go"), "one-key")
			if err != nil {
				t.Error(err)
			}
			if ids[i] = id; is {
				created.Store(i, id)
			}
		})
	}
	wg.Wait()
	n := 0
	created.Range(func(any, any) bool { n++; return true })
	for _, id := range ids {
		if id != ids[0] || n != 1 {
			t.Fatalf("runs %v, %d of them created", ids, n)
		}
	}
	if rows, _, err := d.store.Runs(t.Context(), eventlog.RunFilter{SessionID: s.ID}, eventlog.Page{Limit: 50}); err != nil || len(rows) != 1 {
		t.Fatalf("%d runs (%v)", len(rows), err)
	}
	d.restart()
	if again := d.submit(s, text("go"), "one-key", false); again != ids[0] {
		t.Error("a restart forgot the key")
	}
	d.refused("idempotency_conflict", s, text("go "), "one-key") // the exact content, without a contract
	other := d.session(&api.CreateSession{})
	d.submit(other, text("go"), "one-key", true) // a key belongs to its session
	d.submit(s, text("go"), "", true)
	d.submit(s, text("go"), "", true)
	if strings.Contains(d.everything(), "one-key") {
		t.Error("the key itself is stored")
	}
	d.verify()
}

func TestKeyForms(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	for key, good := range map[string]bool{
		"!": true, "~": true, strings.Repeat("k", 255): true, strings.Repeat("k", 256): false, "a b": false, "ä": false, "a\n": false, "\x7f": false, " ": false,
	} {
		if good {
			d.submit(s, text("go"), key, true)
		} else {
			d.refused("invalid_idempotency_key", s, text("go"), key)
		}
	}
}

// Each member that shapes the run is part of the fingerprint; metadata is not.
func TestFingerprint(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	targets := []api.ReplyTarget{{Type: "webhook", URL: "http://a.test/", Headers: map[string]string{"X-A": "1", "X-B": "2"}}}
	base := func() *api.SubmitRun {
		return &api.SubmitRun{Content: api.Text("go"), Route: "side", Model: "m1", MaxTurns: 5, ReplyTargets: &targets, Metadata: api.Raw(`{"trace":1}`)}
	}
	id := d.submit(s, base(), "k", true)
	for range 5 { // maps have no order
		if again := d.submit(s, base(), "k", false); again != id {
			t.Fatal("the same request is another")
		}
	}
	for name, change := range map[string]func(*api.SubmitRun){
		"content": func(r *api.SubmitRun) { r.Content = api.Text("stay") },
		"items": func(r *api.SubmitRun) {
			r.Content, r.InputItems = nil, []api.InputItem{{Type: "text", Text: "g"}, {Type: "text", Text: "o"}}
		},
		"route":      func(r *api.SubmitRun) { r.Route = "" },
		"model":      func(r *api.SubmitRun) { r.Model = "m2" },
		"max_turns":  func(r *api.SubmitRun) { r.MaxTurns = 6 },
		"no targets": func(r *api.SubmitRun) { r.ReplyTargets = &[]api.ReplyTarget{} },
		"session's":  func(r *api.SubmitRun) { r.ReplyTargets = nil },
		"target url": func(r *api.SubmitRun) {
			r.ReplyTargets = &[]api.ReplyTarget{{Type: "webhook", URL: "http://b.test/", Headers: targets[0].Headers}}
		},
		"target header": func(r *api.SubmitRun) {
			r.ReplyTargets = &[]api.ReplyTarget{{Type: "webhook", URL: targets[0].URL, Headers: map[string]string{"X-A": "1", "X-B": "3"}}}
		},
		"target secret": func(r *api.SubmitRun) {
			r.ReplyTargets = &[]api.ReplyTarget{{Type: "webhook", URL: targets[0].URL, Secret: "s", Headers: targets[0].Headers}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := base()
			change(req)
			d.refused("idempotency_conflict", s, req, "k")
		})
	}
	same := base()
	same.Metadata = api.Raw(`{"trace":2}`)
	d.submit(s, same, "k", false)
	same.Content, same.InputItems = nil, []api.InputItem{{Type: "text", Text: "go"}}
	d.submit(s, same, "k", false)
}
