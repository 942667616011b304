package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/jobs"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

// A job passes over what may not be sent to, and over nothing because it could not
// be told just now: whether a secret is there is asked again by the attempt. // I-24
func TestWhatCannotBeToldIsNotSkipped(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		done int64
	}{
		"usable":      {nil, 1},
		"not allowed": {problem.New(problem.Invalid, "target_not_allowed", "no"), 0},
		"not bound":   {problem.New(problem.Forbidden, "secret_not_for_host", "no"), 0},
		"no key yet":  {problem.New(problem.Unavailable, "secret_unavailable", "the disk is away"), 1},
		"unreadable":  {problem.New(problem.Conflict, "secret_unavailable", "the database is away"), 1},
		"our fault":   {errors.New("the database is away"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows})
				if err != nil {
					t.Fatal(err)
				}
				id := letter(t, store)
				stop := work(t, store, jobs.Config{
					CheckTarget: func(_ context.Context, _ string, to event.ReplyTarget) (event.ReplyTarget, error) { return to, row.err }})
				<-time.After(time.Minute)
				got, err := store.Job(t.Context(), id)
				if err != nil || got.Status != job.Completed || got.Done != row.done || got.Skipped != 1-row.done {
					t.Errorf("%+v %v", got, err)
				}
				stop()
			})
		})
	}
}

// Where nothing may begin, on a disk that is full or in a data directory that was
// restored, nothing is replayed; a person can end the job all the same.
func TestHeld(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows})
			if err != nil {
				t.Fatal(err)
			}
			id := letter(t, store)
			var free atomic.Bool
			stop := work(t, store, jobs.Config{Held: func() bool { return !free.Load() }})
			<-time.After(time.Minute)
			got, err := store.Job(t.Context(), id)
			if err != nil || got.Status != job.Running || got.Done != 0 {
				t.Errorf("held: %+v %v", got, err)
			}
			want := job.Completed
			if cancelled {
				want = job.Cancelled
				if _, err := store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead,
					Events: []event.Event{{UserID: "ann", Data: &event.JobCancelRequested{Actor: "ann"}}}}}}); err != nil {
					t.Fatal(err)
				}
			} else {
				free.Store(true)
			}
			<-time.After(time.Minute)
			if got, err = store.Job(t.Context(), id); err != nil || got.Status != want {
				t.Errorf("after: %+v %v, want %s", got, err, want)
			}
			stop()
		})
	}
}

// work opens the room over a store, which stop closes too.
func work(t *testing.T, store *sqlite.Store, cfg jobs.Config) (stop func()) {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	lease := tenure.New(tenure.Config{Nodes: store, Node: eventlog.Node{ID: "n1"}, Logger: cfg.Logger})
	if err := lease.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Store, cfg.Tenure = store, lease
	room := jobs.New(cfg)
	room.Start()
	return func() {
		t.Helper()
		room.Stop(t.Context())
		lease.Stop(t.Context())
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// letter makes a dead letter, and a job that is started and replays it.
func letter(t *testing.T, store *sqlite.Store) event.JobID {
	t.Helper()
	const ses, user, url = event.SessionID("ses_1"), "ann", "https://a.test/"
	target := event.TargetIDFor(user, "webhook", url)
	put := func(s event.Stream, blobs []event.Blob, datas ...event.Data) {
		t.Helper()
		var events []event.Event
		for _, d := range datas {
			e := event.Event{UserID: user, Data: d}
			if s != event.JobID("job_1").Stream() {
				e.SessionID, e.RunID = ses, "run_1"
			}
			events = append(events, e)
		}
		if _, err := store.Append(t.Context(), eventlog.Append{Blobs: blobs, Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: events}}}); err != nil {
			t.Fatal(err)
		}
	}
	address, err := json.Marshal(event.ReplyTarget{Type: "webhook", URL: url}, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	body, at := event.NewBlob(ses, event.BlobDelivery, []byte(`{}`)), event.NewBlob(ses, event.BlobDelivery, address)
	put(ses.Stream(), nil, &event.SessionCreated{})
	put(target.Stream(), []event.Blob{body, at}, &event.DeliveryEnqueued{Address: at.Ref, Body: body.Ref, DeliveryID: "dlv_1", Type: "webhook"},
		&event.DeliveryDeadLettered{DeliveryID: "dlv_1", Attempts: 1, Code: "http_400"})
	row, err := store.Delivery(t.Context(), "dlv_1")
	if err != nil {
		t.Fatal(err)
	}
	items := []event.JobItem{{DeliveryID: "dlv_1", LaneSeq: row.LaneSeq, TargetID: target}}
	put(event.JobID("job_1").Stream(), nil, &event.JobPlanned{Actor: "ann", Count: 1, Digest: job.Digest(items), Kind: job.Replay, Limit: 1},
		&event.JobItemsAdded{Items: items}, &event.JobStarted{Actor: "ann"})
	return "job_1"
}
