package session_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

const (
	sessionID = event.SessionID("ses_1")
	user      = "ann"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a session with a log, a blob store and tables, all in memory: what
// the engine and a store do around the rules, without the time.
type world struct {
	t      tester
	s      *session.State
	log    []event.Event // as read back from rows
	batch  []int         // events of each append
	now    time.Time
	epoch  int64
	hash   event.Digest
	blobs  map[string][]byte
	tables tables
	random *rand.ChaCha8
}

// tester is a test or a draw of a property.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newWorld(t tester) *world {
	return &world{
		t: t, s: &session.State{}, now: start, epoch: 1, blobs: map[string][]byte{}, tables: tables{},
		random: rand.NewChaCha8([32]byte{1}),
	}
}

// append stores drafts the way the log does, folds them, and returns them as
// they read back. What an owner appends is folded as the engine does it: before
// the texts of the drafts move to the blob store.
func (w *world) append(drafts ...event.Event) []event.Event {
	w.t.Helper()
	ahead := w.s.Clone()
	owned := slices.ContainsFunc(drafts, func(e event.Event) bool { return e.StepID != "" })
	for i := range drafts {
		e := &drafts[i]
		if e.Stream, e.Seq, e.Epoch = sessionID.Stream(), ahead.Head+1, w.epoch; !owned {
			continue
		}
		if err := ahead.Apply(e); err != nil {
			w.t.Fatalf("fold ahead: %v", err)
		}
	}
	for _, b := range event.Externalize(sessionID, drafts) {
		w.blobs[b.Ref] = b.Bytes
	}
	sealed, err := event.Seal(sessionID.Stream(), drafts, w.random)
	if err != nil {
		w.t.Fatalf("seal: %v", err)
	}
	row := sealed.Stamp(w.s.Head, w.epoch, w.hash, w.now)
	w.hash = row.Hash
	if err := w.tables.exec(session.Rows(sealed.Events)); err != nil {
		w.t.Fatalf("rows: %v", err)
	}
	for i := range sealed.Events {
		if err := w.s.Apply(&sealed.Events[i]); err != nil {
			w.t.Fatalf("fold: %v", err)
		}
	}
	if owned {
		w.s = ahead
	}
	read, err := row.Events()
	if err != nil {
		w.t.Fatalf("read: %v", err)
	}
	for i := range read {
		if err := read[i].Decode(); err != nil {
			w.t.Fatalf("decode: %v", err)
		}
	}
	w.log = append(w.log, read...)
	w.batch = append(w.batch, len(read))
	return read
}

// command makes a draft that is not of the owner.
func command(run event.RunID, d event.Data) event.Event {
	return event.Event{SessionID: sessionID, UserID: user, RunID: run, Data: d}
}

func (w *world) crash() []event.Event {
	w.epoch++
	return w.append(command("", &event.OwnerClaimed{Owner: fmt.Sprintf("life %d", w.epoch)}))
}

// decide folds what the rules decide by themselves until they ask for
// something from outside, and gives that. each sees every append.
func (w *world) decide(each func(wait time.Duration, events []event.Event)) []session.Action {
	w.t.Helper()
	for range 100 {
		acts := session.Next(w.s)
		if again := session.Next(w.s); !reflect.DeepEqual(acts, again) {
			w.t.Fatalf("the same state asks for\n%#v\nand for\n%#v", acts, again)
		}
		if len(acts) == 0 {
			return nil
		}
		switch a := acts[0].(type) {
		case session.Append:
			if len(acts) != 1 || len(a.Events) == 0 {
				w.t.Fatalf("an append stands alone and says something: %#v", acts)
			}
			var wait time.Duration
			if a.NotBefore != "" {
				at, err := event.ParseTime(a.NotBefore)
				if err != nil {
					w.t.Fatal(err)
				}
				wait = at.Sub(w.now)
				w.now = at
			}
			events := w.append(a.Events...)
			if each != nil {
				each(wait, events)
			}
		case session.Resolve:
			w.s.Resolve(a.Ref, string(w.blobs[a.Ref]))
		default:
			return acts
		}
	}
	w.t.Fatal("the rules do not come to rest")
	return nil
}

// refold reads the whole log anew.
func (w *world) refold() *session.State { return fold(w.t, w.log) }

func fold(t tester, log []event.Event) *session.State {
	t.Helper()
	s := &session.State{}
	for i := range log {
		if err := s.Apply(&log[i]); err != nil {
			t.Fatalf("fold again: %v", err)
		}
	}
	return s
}

func sameState(a, b *session.State) bool { return reflect.DeepEqual(a.Clone(), b.Clone()) }

func (w *world) text(_ context.Context, ref string) ([]byte, error) {
	b, ok := w.blobs[ref]
	if !ok {
		return nil, fmt.Errorf("no blob %s", ref)
	}
	return b, nil
}

func (w *world) request() *llm.Request {
	w.t.Helper()
	build := w.s.Request
	if w.s.Window.Open != nil {
		build = w.s.SummaryRequest
	}
	req, err := build(context.Background(), session.Sources{
		Text: w.text, File: func(context.Context, event.AssetID) ([]byte, error) { return []byte("bytes"), nil },
		Takes: func(media string) bool { return media != "image/webp" },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return req
}

// tools are what every run of these tests has captured.
var tools = []event.CapturedTool{
	{Name: "think", Level: "none", Source: "local", Digest: "d"},
	{Name: "look", Level: "read", Source: "local", Digest: "d"},
	{Name: "note", Level: "write", Confined: true, Source: "local", Digest: "d"},
	{Name: "charge", Level: "external_effect", Policy: "allow", Source: "http", Digest: "d"},
	{Name: "pay", Level: "external_effect", Policy: "allow", Idempotent: true, Source: "http", Digest: "d"},
	{Name: "mail", Level: "external_effect", Source: "http", Digest: "d"},
	{Name: "wipe", Level: "irreversible", Policy: "deny", Source: "http", Digest: "d"},
}

func (w *world) create(settings event.Settings) []event.Event {
	return w.append(command("", &event.SessionCreated{Alias: "box", Settings: settings}))
}

func (w *world) submit(run event.RunID, text string, change func(*event.RunCreated)) []event.Event {
	d := &event.RunCreated{
		Input: []event.InputItem{{Type: "text", Content: event.TextContent(text)}}, Kind: "task", MaxTurns: session.DefaultMaxTurns,
		OnDoubt: event.DoubtAsk, Route: event.Route{Name: "main", Provider: "scripted", Model: "m"},
		SettingsVersion: w.s.SettingsVersion, Source: "api", TextPreview: canonjson.CutRunes(text, 32), Tools: tools,
	}
	if change != nil {
		change(d)
	}
	return w.append(command(run, d), command(run, &event.RunQueued{}))
}
