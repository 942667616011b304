package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// populate makes sessions, runs and deliveries in every state.
func (s *suite) populate() (event.SessionID, event.TargetID) {
	s.t.Helper()
	target := event.TargetIDFor("ann", "webhook", "https://example.com")
	var first event.SessionID
	for i := range 4 {
		id := s.session("ann")
		if first == "" {
			first = id
		}
		var runs []event.RunID
		for range 3 {
			runs = append(runs, s.run("ann", id))
		}
		s.must(command(id.Stream(), draft("ann", id, runs[0], &event.RunStarted{}), draft("ann", id, runs[0], textEnded("an answer"))))
		s.enqueue(id, runs[0], target)
		s.must(command(id.Stream(), draft("ann", id, runs[0], &event.RunCompleted{})))
		s.must(command(id.Stream(), draft("ann", id, runs[1], &event.RunStarted{})))
		s.must(command(id.Stream(), draft("ann", id, "", &event.SessionUpdated{Settings: event.Settings{Title: fmt.Sprint("title ", i)}})))
		if i == 2 {
			s.must(erasing("ann", id))
		}
	}
	return first, target
}

// enqueue emits a run's output and its delivery to a target.
func (s *suite) enqueue(id event.SessionID, run event.RunID, target event.TargetID) event.DeliveryID {
	s.t.Helper()
	d := event.DeliveryIDFor(run, target, 0)
	s.must(eventlog.Append{Entries: []eventlog.Entry{
		{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{draft("ann", id, run, &event.OutputEmitted{OutputKind: event.OutputText})}},
		{Stream: target.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{draft("ann", id, run, &event.DeliveryEnqueued{DeliveryID: d, Type: "webhook"})}},
	}})
	return d
}

// I-03 I-04
func testDamage(t *testing.T, s *suite) {
	for _, c := range []struct {
		damage Damage
		where  string // part of the finding
	}{
		{Damage{Kind: DamageData, Seq: 3}, "#3"},
		{Damage{Kind: DamageData, Seq: 5}, "#5"},
		{Damage{Kind: DamageMeta, Seq: 5}, "#5"},
		{Damage{Kind: DamageRemove, Seq: 5}, "#7"},
		{Damage{Kind: DamageRemove, Seq: 1}, "#2"},
		{Damage{Kind: DamageRemove, Seq: 10}, "ends at 9"},
		{Damage{Kind: DamageSwap, Seq: 2, Other: 3}, "#"},
		{Damage{Kind: DamageErase, Seq: 3}, "session.erased"},
		{Damage{Kind: DamageDerived, Table: derived.Sessions, Set: derived.Col{Name: "title", Value: "another title"}}, "title"},
		{Damage{Kind: DamageDerived, Table: derived.Sessions, Set: derived.Col{Name: "session_id", Value: "ses_another"}}, "ses_another"},
		{Damage{Kind: DamageDerived, Table: derived.Queue, Set: derived.Col{Name: "created_seq", Value: int64(77)}}, "created_seq"},
	} {
		t.Run(string(c.damage.Kind), func(t *testing.T) {
			s := &suite{t: t, open: s.open, dir: t.TempDir()}
			s.start()
			id, _ := s.populate()
			s.sound()
			c.damage.Stream = id.Stream()
			c.damage.Key = []derived.Col{{Name: "session_id", Value: string(id)}}
			s.Damage(t, c.damage)
			found, err := s.Findings(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(found, "\n"), c.where) {
				t.Fatalf("found %q, want something with %q", found, c.where)
			}
			for _, f := range found {
				if strings.Contains(f, "an answer") || strings.Contains(f, "another title") {
					t.Errorf("a finding shows content: %q", f)
				}
			}
			s.stop()
		})
	}
}

func testDamagedBlobs(t *testing.T, s *suite) {
	id, gone := s.session("ann"), s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "https://example.com")
	text, state, tools := []byte("a long text"), []byte("a state"), []byte("tools")
	keep := func(owner event.SessionID, kind event.BlobKind, bytes []byte, to event.Stream, data ...event.Data) {
		t.Helper()
		var events []event.Event
		for _, d := range data {
			events = append(events, draft("ann", owner, "", d))
		}
		a := command(to, events...)
		a.Blobs = []event.Blob{event.NewBlob(owner, kind, bytes)}
		s.must(a)
	}
	content := event.Content{Ref: event.RefOf(text), Bytes: len(text)}
	keep(id, event.BlobContent, text, id.Stream(), &event.TextEnded{Content: content}, &event.ToolCompleted{OutputPaths: []string{content.Ref}})
	keep(id, event.BlobSealed, state, id.Stream(), &event.ReasoningEnded{State: event.RefOf(state)})
	keep(id, event.BlobToolset, tools, id.Stream(), &event.RunCreated{Toolset: event.RefOf(tools)})
	// Equal bytes are one blob, whatever they are for.
	keep(id, event.BlobContent, state, id.Stream(), &event.TextEnded{Content: event.Content{Ref: event.RefOf(state)}})
	// What only looks like a reference is none.
	s.must(command(id.Stream(), draft("ann", id, "", &event.ToolRequested{Name: "look", Arguments: canonjson.Value(`{"ref":"` + event.RefOf([]byte("x")) + `"}`)})))
	// The body of a delivery goes with its session, and the event that names it stays.
	keep(gone, event.BlobDelivery, []byte("body"), target.Stream(), &event.DeliveryEnqueued{DeliveryID: "dlv_1", Body: event.RefOf([]byte("body"))})
	s.must(erasing("ann", gone))
	s.sound()
	for _, c := range []struct {
		becomes event.Blob
		want    string
	}{
		{event.Blob{Ref: content.Ref}, "missing"},
		{event.Blob{Ref: event.RefOf(state)}, "missing"},
		{event.Blob{Ref: content.Ref, Kind: event.BlobContent, Bytes: []byte("another text")}, "digest"},
		{event.Blob{Ref: content.Ref, Kind: event.BlobSealed, Bytes: text}, "kind"},
		{event.Blob{Ref: event.RefOf(tools), Kind: event.BlobContent, Bytes: tools}, "kind"},
		{event.Blob{Ref: event.RefOf(state), Kind: event.BlobContract, Bytes: state}, "kind"},
		{event.Blob{Ref: event.RefOf([]byte("nobody's")), Kind: event.BlobContent, Bytes: []byte("nobody's")}, "no event"},
	} {
		before, kind, err := s.Blob(t.Context(), id, c.becomes.Ref)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			t.Fatal(err)
		}
		c.becomes.Owner = string(id)
		s.Damage(t, Damage{Kind: DamageBlob, Blob: c.becomes})
		found, err := s.Findings(t.Context(), false)
		if err != nil || len(found) != 1 || !strings.Contains(found[0], c.becomes.Ref) || !strings.Contains(found[0], c.want) {
			t.Errorf("%s as %q: found %q %v, want one with %q", c.becomes.Ref, c.becomes.Kind, found, err, c.want)
		}
		s.Damage(t, Damage{Kind: DamageBlob, Blob: event.Blob{Owner: string(id), Ref: c.becomes.Ref, Kind: kind, Bytes: before}})
		s.sound()
	}
}

// I-03
func testRebuild(t *testing.T, s *suite) {
	id, target := s.populate()
	for _, d := range []Damage{
		{Table: derived.Sessions, Set: derived.Col{Name: "status", Value: "odd"}},
		{Table: derived.Runs, Set: derived.Col{Name: "output_seq", Value: int64(1)}},
		{Table: derived.Queue, Set: derived.Col{Name: "session_id", Value: "ses_another"}},
	} {
		d.Kind, d.Key = DamageDerived, []derived.Col{{Name: "session_id", Value: string(id)}}
		s.Damage(t, d)
	}
	s.Damage(t, Damage{Kind: DamageDerived, Table: derived.Outbox, Key: []derived.Col{{Name: "target_id", Value: string(target)}},
		Set: derived.Col{Name: "body", Value: "another"}})
	found, err := s.Findings(t.Context(), true)
	if err != nil || len(found) < 4 {
		t.Fatalf("found %q %v", found, err)
	}
	s.sound()
	if row, err := s.Session(t.Context(), id); err != nil || row.Status != "open" || row.Title != "title 0" || row.SettingsVersion != 2 {
		t.Fatalf("session %+v %v", row, err)
	}
	if found, err := s.Findings(t.Context(), true); err != nil || len(found) != 0 {
		t.Fatalf("second rebuild found %q %v", found, err)
	}
	// A damaged log rebuilds nothing.
	s.Damage(t, Damage{Kind: DamageDerived, Table: derived.Sessions, Key: []derived.Col{{Name: "session_id", Value: string(id)}},
		Set: derived.Col{Name: "status", Value: "odd"}})
	s.Damage(t, Damage{Kind: DamageData, Stream: id.Stream(), Seq: 1})
	if found, err := s.Findings(t.Context(), true); err != nil || len(found) == 0 {
		t.Fatalf("found %q %v", found, err)
	}
	if row, err := s.Session(t.Context(), id); err != nil || row.Status != "odd" {
		t.Fatalf("session %+v %v", row, err)
	}
}

func testReopen(t *testing.T, s *suite) {
	id, target := s.populate()
	claim := eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Claim: true,
		Events: []event.Event{draft("ann", id, "", &event.OwnerClaimed{Owner: "node"})}}}}
	s.must(claim)
	before := s.readAll(id.Stream())
	feed, end := s.feedAll(0, 100, eventlog.FeedFilter{})
	row, err := s.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.start()
	after := s.readAll(id.Stream())
	if len(after) != len(before) || after[len(after)-1].Hash != before[len(before)-1].Hash {
		t.Fatalf("%d events, then %d", len(before), len(after))
	}
	if items, at := s.feedAll(0, 100, eventlog.FeedFilter{}); len(items) != len(feed) || at != end {
		t.Fatalf("feed of %d to %d, then of %d to %d", len(feed), end, len(items), at)
	}
	if again, err := s.Session(t.Context(), id); err != nil || again != row {
		t.Fatalf("session %+v, then %+v %v", row, again, err)
	}
	if targets, err := s.PendingTargets(t.Context()); err != nil || len(targets) != 1 || targets[0] != target {
		t.Fatalf("targets %v %v", targets, err)
	}
	if stamps := s.must(claim); stamps[0].Epoch != 2 || stamps[0].Head != int64(len(before))+1 {
		t.Fatalf("claim after reopening: %+v", stamps)
	}
	s.sound()
}
