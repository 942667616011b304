package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// class is how an append was refused, as far as its caller can tell.
func class(err error) string {
	var condition *eventlog.ConditionError
	var duplicate *eventlog.DuplicateError
	var held *eventlog.HeldError
	switch {
	case err == nil:
		return "stored"
	case errors.As(err, &condition):
		return fmt.Sprintf("condition %d found %v", condition.Index, condition.Found)
	case errors.As(err, &duplicate):
		return fmt.Sprintf("duplicate %s %v", duplicate.Table, duplicate.Key)
	case errors.As(err, &held):
		return fmt.Sprintf("held %s by %s", held.Stream, held.By)
	case errors.Is(err, eventlog.ErrFenced):
		return "fenced"
	case errors.Is(err, eventlog.ErrHeadMoved):
		return "head moved"
	case eventlog.Refusal(err) != "":
		return eventlog.Refusal(err)
	}
	return err.Error()
}

// chance draws appends that meet each other in every way.
type chance struct {
	*rand.Rand
	sessions []event.SessionID
	heads    map[event.Stream]eventlog.Head // as they were before the batch
}

func pick[T any](c *chance, list ...T) T { return list[c.IntN(len(list))] }

func (c *chance) append() eventlog.Append {
	id := pick(c, c.sessions...)
	e := event.Event{SessionID: id, UserID: pick(c, "ann", "ben")}
	run := event.RunID(fmt.Sprintf("run_%s_%d", string(id[len(id)-4:]), c.IntN(4)))
	withRun := func(d event.Data) { e.RunID, e.Data = run, d }
	where := []derived.Col{{Name: "session_id", Value: string(id)}}
	var a eventlog.Append
	switch c.IntN(12) {
	case 0:
		e.Data = &event.SessionCreated{Settings: event.Settings{Title: fmt.Sprint(c.IntN(100))}}
	case 1:
		e.Data = &event.SessionUpdated{Settings: event.Settings{Title: fmt.Sprint(c.IntN(100))}}
	case 2:
		e.Data = &event.SessionClosed{}
	case 3, 4:
		d := &event.RunCreated{Kind: "message"}
		if c.IntN(2) == 0 {
			d.Idempotency = &event.IdempotencyKey{Operation: "submit", KeyHash: fmt.Sprint(c.IntN(5)), Fingerprint: string(run)}
		}
		withRun(d)
	case 5:
		withRun(&event.RunStarted{})
	case 6:
		withRun(&event.RunCompleted{})
	case 7:
		e.CallID = event.CallID(fmt.Sprint("call_", c.IntN(6)))
		withRun(&event.ToolStarted{})
	default:
		e.Data = &event.TextEnded{Content: event.Content{Text: fmt.Sprint(c.IntN(100))}}
	}
	entry := eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{e}}
	for range c.IntN(3) {
		entry.Events = append(entry.Events, event.Event{SessionID: id, UserID: e.UserID, Data: &event.StateEntered{}})
	}
	if c.IntN(3) == 0 {
		entry.Expect = c.heads[entry.Stream].Seq + int64(c.IntN(4))
	}
	if c.IntN(2) == 0 {
		entry.Node, entry.Claim, entry.Rest = pick[eventlog.NodeID](c, "a", "b"), c.IntN(2) == 0, c.IntN(3) == 0
	}
	if c.IntN(3) == 0 {
		entry.Epoch = max(c.heads[entry.Stream].Epoch+int64(c.IntN(3))-1, 0)
	}
	a.Entries = append(a.Entries, entry)
	if other := pick(c, c.sessions...); other != id && c.IntN(4) == 0 {
		a.Entries = append(a.Entries, eventlog.Entry{Stream: other.Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{SessionID: other, UserID: "ann", Data: &event.TextEnded{}}}})
	}
	switch c.IntN(6) {
	case 0:
		a.Require = append(a.Require, eventlog.Condition{Table: derived.Sessions, Where: where, Column: "status", In: []any{"open"}})
	case 1:
		a.Require = append(a.Require, eventlog.Condition{Table: derived.Runs, Where: append(where[:1:1], derived.Col{Name: "run_id", Value: string(run)}),
			Column: "status", In: []any{pick(c, "queued", "running", "completed")}})
	case 2:
		a.Require = append(a.Require, eventlog.Condition{Table: derived.Queue, Where: where, Absent: true})
	case 3:
		a.Require = append(a.Require, eventlog.Condition{Table: derived.Sessions, Where: where, Column: "settings_version", In: []any{int64(1 + c.IntN(3))}})
	}
	return a
}

// store is what both have.
type store interface {
	eventlog.Log
	eventlog.Views
	eventlog.Nodes
}

// What many do at once in one transaction comes to the same here as on SQLite,
// one after the other: the same refusals, the same rows. // I-32
func TestAsOnSQLite(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			here := open(t, Config{})
			there, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Rows: storetest.Rows, Sync: sqlite.SyncNormal})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { there.Close(context.Background()) })
			c := &chance{Rand: rand.New(rand.NewPCG(seed, 7)), heads: map[event.Stream]eventlog.Head{}}
			for range 3 {
				c.sessions = append(c.sessions, newSession(t))
			}
			for _, s := range []store{here, there} {
				for _, id := range []eventlog.NodeID{"a", "b"} {
					if _, err := s.Beat(t.Context(), eventlog.Node{ID: id}, time.Hour); err != nil {
						t.Fatal(err)
					}
				}
			}
			stored := 0
			for batch := range 12 {
				var appends []eventlog.Append
				for range 2 + c.IntN(10) {
					appends = append(appends, c.append())
				}
				errs := asOneBatch(t, here, appends...)
				for i, a := range appends {
					_, err := there.Append(t.Context(), a)
					if got, want := class(errs[i]), class(err); got != want {
						t.Fatalf("batch %d, append %d of %d: %s (%v), on SQLite %s (%v)", batch, i, len(appends), got, errs[i], want, err)
					}
					if err == nil {
						stored++
					}
				}
				for _, id := range c.sessions {
					c.heads[id.Stream()] = sameStream(t, here, there, id)
				}
			}
			if stored < 10 {
				t.Errorf("%d appends were stored: too few meet each other", stored)
			}
			for _, id := range []eventlog.NodeID{"a", "b"} {
				x, err := here.Take(t.Context(), id, eventlog.Sessions, 9, true)
				y, err2 := there.Take(t.Context(), id, eventlog.Sessions, 9, true)
				if err != nil || err2 != nil || !reflect.DeepEqual(set(x), set(y)) {
					t.Errorf("%s takes %v %v, on SQLite %v %v", id, x, err, y, err2)
				}
			}
			mustVerify(t, here)
		})
	}
}

func set(list []event.Stream) map[event.Stream]bool {
	m := map[event.Stream]bool{}
	for _, s := range list {
		m[s] = true
	}
	return m
}

// sameStream holds what is told of a session here against what is told there,
// save times and hashes.
func sameStream(t *testing.T, here, there store, id event.SessionID) eventlog.Head {
	t.Helper()
	var heads [2]eventlog.Head
	var told [2]string
	for i, s := range []store{here, there} {
		h, err := s.Head(t.Context(), id.Stream())
		if err != nil {
			t.Fatal(err)
		}
		heads[i] = eventlog.Head{Seq: h.Seq, Epoch: h.Epoch}
		events, err := s.Read(t.Context(), id.Stream(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			told[i] += fmt.Sprintln(e.Seq, e.Epoch, e.Type, e.RunID, string(e.Raw))
		}
		row, err := s.Session(t.Context(), id)
		row.CreatedAt, row.UpdatedAt = "", ""
		told[i] += fmt.Sprintln(row, errors.Is(err, eventlog.ErrNotFound))
		runs, _, err := s.Runs(t.Context(), eventlog.RunFilter{SessionID: id}, eventlog.Page{})
		if err != nil {
			t.Fatal(err)
		}
		found := map[event.RunID]string{}
		for _, r := range runs {
			r.SubmittedAt, r.UpdatedAt, r.StartedAt, r.FinishedAt = "", "", "", ""
			found[r.ID] = fmt.Sprint(r)
		}
		told[i] += fmt.Sprintln(found)
	}
	if heads[0] != heads[1] || told[0] != told[1] {
		t.Fatalf("%s: %+v here, %+v on SQLite\n%s\n---\n%s", id, heads[0], heads[1], told[0], told[1])
	}
	return heads[0]
}
