// Package storetest is the conformance suite of stores: what eventlog promises,
// as tests. Every store calls Run from a test of its own; the suite knows none
// of them.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Store is what the suite wants of a store, and of the test around it.
type Store interface {
	eventlog.Log
	eventlog.Views
	eventlog.Tokens
	eventlog.Secrets
	eventlog.Assets
	eventlog.Snapshots
	eventlog.Nodes

	// Close commits what waits and ends the store. A second call does nothing.
	Close(ctx context.Context) error
	// Findings verifies the store and gives what it found, one text each; with
	// rebuild the derived rows are replaced and the snapshots dropped on the way.
	Findings(ctx context.Context, rebuild bool) ([]string, error)
	// Damage changes what is stored behind the store's back.
	Damage(t *testing.T, d Damage)
}

// Damage says what to change.
type Damage struct {
	Kind   DamageKind
	Stream event.Stream
	Seq    int64 // first event of the row of the log
	Other  int64 // DamageSwap: first event of the other row
	// DamageDerived: a column of the rows that match Key.
	Table derived.Table
	Key   []derived.Col
	Set   derived.Col
	// DamageSnapshot: what the stored snapshot of this session becomes; its
	// version stays.
	Snapshot eventlog.Snapshot
	// DamageBlob: what the stored blob with this owner and reference becomes;
	// without a kind it is removed.
	Blob event.Blob
}

// DamageKind is a kind of damage.
type DamageKind string

// The kinds of damage.
const (
	DamageData     DamageKind = "a byte of a row's data changed"
	DamageMeta     DamageKind = "a byte of a row's envelopes changed"
	DamageRemove   DamageKind = "a row removed"
	DamageSwap     DamageKind = "the places of two rows swapped"
	DamageErase    DamageKind = "content erased without an event that says so"
	DamageDerived  DamageKind = "a derived row changed"
	DamageSnapshot DamageKind = "a snapshot changed: its head, its hash, its state"
	DamageBlob     DamageKind = "a blob changed: its bytes, its kind, or both are gone"
)

// Rules are what a store works by: the suite's own, so that the suite does not
// move with the rules of sessions.
type Rules struct {
	Rows          func(event.Stream, []event.Event) []derived.Change
	CheckSnapshot func(snap eventlog.Snapshot, read func(after int64) ([]event.Event, error)) error
}

// Opener opens the store in a directory. The suite closes what it opens.
type Opener func(t *testing.T, dir string, rules Rules) Store

// Run holds a store to the suite.
func Run(t *testing.T, open Opener) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"append and read", testAppendRead},
		{"concurrent appenders leave no gap", testConcurrent},
		{"two streams, all or nothing", testTwoStreams},
		{"one stream, several sessions", testFollows},
		{"head moved", testHeadMoved},
		{"fence and claim", testFence},
		{"conditions", testConditions},
		{"equal keys commit once", testDuplicates},
		{"a call starts once", testToolStarts},
		{"an event of a connector makes one run", testInbound},
		{"a guarded key freed and taken in one append", testGuardedFreed},
		{"a bad append fails alone", testBadAlone},
		{"refused appends", testMalformed},
		{"context", testContext},
		{"read from everywhere", testReadAnywhere},
		{"bounded reads", testBounded},
		{"facts", testFacts},
		{"large facts", testLargeFacts},
		{"feed", testFeed},
		{"feed filters", testFeedFilters},
		{"blobs", testBlobs},
		{"snapshots", testSnapshots},
		{"snapshots of several versions", testSnapshotVersions},
		{"snapshots are forgotten", testSnapshotsErased},
		{"verify finds damaged snapshots", testDamagedSnapshots},
		{"erase", testErase},
		{"erase in one batch", testEraseConcurrent},
		{"verify finds damage", testDamage},
		{"verify finds damaged blobs", testDamagedBlobs},
		{"rebuild", testRebuild},
		{"reopen", testReopen},
		{"closed", testClosed},
		{"session view", testSessions},
		{"run view", testRuns},
		{"delivery view", testDeliveries},
		{"replays and expiry", testLetters},
		{"jobs", testJobs},
		{"target view", testTargets},
		{"paused targets of which nothing is left", testEmptyTargets},
		{"a look into a lane", testAhead},
		{"an open delivery comes with its body", testAheadOpen},
		{"attempts, and how targets fare", testAttempts},
		{"backlog", testBacklog},
		{"cursors", testCursors},
		{"tokens", testTokens},
		{"secrets", testSecrets},
		{"list of secrets", testSecretList},
		{"secrets under several keys", testSecretKeys},
		{"one version of a secret is written once", testSecretRace},
		{"assets", testAssets},
		{"uses of assets", testAssetUses},
		{"assets used and collected at once", testAssetRace},
		{"nodes live by their leases", testNodes},
		{"holders", testHolders},
		{"takeover", testTakeover},
		{"take", testTake},
		{"take at once", testTakeAtOnce},
		{"rest and yield", testRest},
		{"workspace roots", testRoots},
		{"work after a new start", testNodesReopen},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &suite{t: t, open: open, dir: t.TempDir()}
			s.start()
			test.run(t, s)
			s.stop()
		})
	}
}

// suite is one store in use by one test.
type suite struct {
	Store
	t    *testing.T
	open Opener
	dir  string
}

func (s *suite) start() {
	s.Store = s.open(s.t, s.dir, Rules{Rows: Rows, CheckSnapshot: CheckSnapshot})
	store := s.Store
	s.t.Cleanup(func() { store.Close(context.Background()) })
}

func (s *suite) stop() {
	s.t.Helper()
	if err := s.Close(s.t.Context()); err != nil {
		s.t.Fatalf("close: %v", err)
	}
}

// sound fails the test when the store does not verify.
func (s *suite) sound() {
	s.t.Helper()
	found, err := s.Findings(s.t.Context(), false)
	if err != nil || len(found) != 0 {
		s.t.Fatalf("verify: %v, findings %q", err, found)
	}
}

// must appends, or fails the test.
func (s *suite) must(a eventlog.Append) []eventlog.Stamp {
	s.t.Helper()
	stamps, err := s.Append(s.t.Context(), a)
	if err != nil {
		s.t.Fatalf("append: %v", err)
	}
	return stamps
}

// session makes a session of a user and gives its id.
func (s *suite) session(user string) event.SessionID {
	s.t.Helper()
	id := newID(s.t, event.NewSessionID)
	s.must(command(id.Stream(), draft(user, id, "", &event.SessionCreated{Settings: event.Settings{Title: "first"}})))
	return id
}

// run makes a run of a session and gives its id.
func (s *suite) run(user string, id event.SessionID) event.RunID {
	s.t.Helper()
	run := newID(s.t, event.NewRunID)
	s.must(command(id.Stream(), draft(user, id, run, runCreated("hello"))))
	return run
}

func (s *suite) head(stream event.Stream) eventlog.Head {
	s.t.Helper()
	h, err := s.Head(s.t.Context(), stream)
	if err != nil {
		s.t.Fatalf("head: %v", err)
	}
	return h
}

// readAll reads a stream to its end in small steps and checks that it is
// gap-free and chained. // I-01 I-04
func (s *suite) readAll(stream event.Stream) []event.Event {
	s.t.Helper()
	var all []event.Event
	for {
		events, err := s.Read(s.t.Context(), stream, int64(len(all)), 7)
		if err != nil {
			s.t.Fatalf("read: %v", err)
		}
		if len(events) == 0 {
			break
		}
		all = append(all, events...)
	}
	var prev event.Digest
	for i := range all {
		e := &all[i]
		if e.Seq != int64(i+1) || e.Stream != stream {
			s.t.Fatalf("event %d of %s is %s#%d", i+1, stream, e.Stream, e.Seq)
		}
		if want := e.ChainHash(prev); e.Hash != want {
			s.t.Fatalf("event %d of %s: hash %v does not follow", e.Seq, stream, e.Hash)
		}
		prev = e.Hash
	}
	if h := s.head(stream); h.Seq != int64(len(all)) || h.Hash != prev {
		s.t.Fatalf("head of %s is %d, its last event %d, or their hashes differ", stream, h.Seq, len(all))
	}
	return all
}

func newID[T ~string](t testing.TB, make func(io.Reader) (T, error)) T {
	t.Helper()
	id, err := make(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// draft is an event before it is appended.
func draft(user string, session event.SessionID, run event.RunID, data event.Data) event.Event {
	return event.Event{UserID: user, SessionID: session, RunID: run, Data: data}
}

// command is an append to one stream from anybody.
func command(stream event.Stream, events ...event.Event) eventlog.Append {
	return eventlog.Append{Entries: []eventlog.Entry{{Stream: stream, Expect: eventlog.AnyHead, Events: events}}}
}

// owned is an append to one stream by its owner.
func owned(stream event.Stream, head, epoch int64, events ...event.Event) eventlog.Append {
	return eventlog.Append{Entries: []eventlog.Entry{{Stream: stream, Expect: head, Epoch: epoch, Events: events}}}
}

func runCreated(text string) *event.RunCreated {
	return &event.RunCreated{
		Input: []event.InputItem{{Type: "text", Content: event.TextContent(text)}},
		Kind:  "message", Source: "api", Route: event.Route{Model: "m", Name: "default", Provider: "p"}, OnDoubt: event.DoubtAsk,
	}
}

func textEnded(text string) *event.TextEnded {
	return &event.TextEnded{MessageID: "msg", Content: event.TextContent(text)}
}

// refused fails the test unless err is want.
func refused(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// within ends with the test's context or after a generous time, so that a store
// that hangs fails its test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// inParallel runs f n times at once and waits.
func inParallel(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var all []error
	for range n {
		if err := <-errs; err != nil {
			all = append(all, err)
		}
	}
	if len(all) > 3 {
		all = append(all[:3], fmt.Errorf("and %d more", len(all)-3))
	}
	return errors.Join(all...)
}
