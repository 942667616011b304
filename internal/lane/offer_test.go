package lane_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/lane"
	"github.com/holdfast-dev/holdfast/internal/session"
)

var errNo = errors.New("no")

// command is an append that a test knows again.
func command(id event.SessionID) eventlog.Append {
	return eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead}}}
}

// rested works on a session once, so that its state is kept.
func rested(l *lane.Lane, ids ...event.SessionID) {
	for _, id := range ids {
		l.Wake(id)
	}
	rest(time.Minute)
}

func take(err error) func(*eventlog.Offer) {
	return func(o *eventlog.Offer) {
		if o.Take() {
			o.Settle(err)
		}
	}
}

// What is offered goes to the driver of a session at rest, and the driver's answer
// to who offers: made, failed, or not taken. A driver that says nothing has not taken it.
func TestOffer(t *testing.T) {
	for name, row := range map[string]struct {
		takes func(*eventlog.Offer)
		drive error
		taken bool
		err   error
	}{
		"made":                     {takes: take(nil), taken: true},
		"failed":                   {takes: take(errNo), taken: true, err: errNo},
		"declined":                 {takes: (*eventlog.Offer).Decline},
		"not answered":             {},
		"taken and not answered":   {takes: func(o *eventlog.Offer) { o.Take() }},
		"made, and then it failed": {takes: take(nil), drive: errNo, taken: true},
		"not answered, and failed": {drive: errNo},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				l := newLane(d, nil)
				defer l.Stop(t.Context())
				rested(l, "ses_1")
				if !rests(l, "ses_1") {
					t.Fatal("it does not rest")
				}
				d.takes = row.takes
				d.answer = func(event.SessionID, int) (time.Time, error) { return time.Time{}, row.drive }
				taken, err := l.Offer(t.Context(), "ses_1", command("ses_1"))
				if taken != row.taken || !errors.Is(err, row.err) {
					t.Errorf("taken %v, %v", taken, err)
				}
				if len(d.offered) != 1 || d.offered[0].Append.Entries[0].Stream != "session:ses_1" || d.count("ses_1") != 2 || d.loaded("ses_1") != 1 {
					t.Errorf("offered %d times; %d drives, %d loads", len(d.offered), d.count("ses_1"), d.loaded("ses_1"))
				}
				rest(3 * time.Second)
				if got := rests(l, "ses_1"); got != (row.drive == nil) { // a state whose driver failed is not kept
					t.Errorf("afterwards it rests: %v", got)
				}
			})
		})
	}
}

// A session that is not known to be at rest is offered nothing, and nobody is woken
// for that: one that nobody has worked on here, that is worked on, that waits for its
// time, that wants something, or whose run waits for a person, behind which others
// queue up.
func TestOfferToOneThatDoesNotRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.takes = take(nil)
		d.shape = func(st *session.State) {
			switch st.ID {
			case "ses_wants":
				st.Queue = []*session.Queued{{Created: &event.RunCreated{}}}
			case "ses_waits":
				st.Active = &session.Run{Waiting: true, Step: &session.Step{Calls: []*session.Call{{State: session.CallDone, InDoubt: true}}}}
			}
		}
		d.answer = func(id event.SessionID, _ int) (time.Time, error) {
			switch id {
			case "ses_due":
				return time.Now().Add(time.Hour), nil
			case "ses_failed":
				return time.Time{}, eventlog.ErrFenced
			}
			return time.Time{}, nil
		}
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		rested(l, "ses_due", "ses_wants", "ses_waits", "ses_failed", "ses_works")
		l.Wake("ses_works")
		synctest.Wait()
		began := d.began()
		for _, id := range []event.SessionID{"ses_new", "ses_due", "ses_wants", "ses_waits", "ses_failed", "ses_works"} {
			taken, err := l.Offer(t.Context(), id, command(id))
			if taken || err != nil {
				t.Errorf("%s: taken %v, %v", id, taken, err)
			}
			if id != "ses_due" && rests(l, id) { // that it waits for its time its driver alone knows
				t.Errorf("%s rests", id)
			}
		}
		rest(time.Minute)
		if d.began() != began {
			t.Errorf("%d drives began", d.began()-began)
		}
		for _, id := range []event.SessionID{"ses_new", "ses_wants", "ses_waits", "ses_failed", "ses_works"} {
			l.Wake(id)
		}
		rest(2 * time.Hour)
		if len(d.offered) != 0 {
			t.Errorf("%d offers came, which those who made them have made otherwise by now", len(d.offered))
		}
	})
}

// Of what is offered to one session at once, while others wake it, at most one is
// taken; who offers is told what its driver knows, and nobody waits for a worker that
// does not come. // I-06
func TestOffersAtOnce(t *testing.T) {
	d := newDriver()
	d.took = 0
	var made atomic.Int64
	d.takes = func(o *eventlog.Offer) {
		if o.Take() {
			made.Add(1)
			o.Settle(nil)
		}
	}
	l := newLane(d, nil)
	defer l.Stop(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.Wake("ses_1")
	var before int64
	for range 3000 {
		for !rests(l, "ses_1") {
			runtime.Gosched()
		}
		var told atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				taken, err := l.Offer(ctx, "ses_1", command("ses_1"))
				if err != nil {
					t.Error(err)
				}
				if taken {
					told.Add(1)
				}
			})
		}
		all.Go(func() { l.Wake("ses_1") })
		all.Wait()
		now := made.Load()
		if told.Load() != now-before {
			t.Fatalf("%d were told that theirs is made, of %d", told.Load(), now-before)
		}
		before = now
	}
	if before == 0 {
		t.Error("none was taken")
	}
}

// Who offers and leaves does not wait, and what its driver has not taken by then it
// does not take.
func TestOfferIsLeft(t *testing.T) {
	for name, early := range map[string]bool{"before it is taken": false, "when it is taken": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				var took bool
				d.takes = func(o *eventlog.Offer) {
					if early {
						took = o.Take()
					}
					time.Sleep(time.Minute)
					took = o.Take()
					o.Settle(nil)
				}
				l := newLane(d, nil)
				defer l.Stop(t.Context())
				rested(l, "ses_1")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				taken, err := l.Offer(ctx, "ses_1", command("ses_1"))
				if !taken || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
					t.Errorf("taken %v, %v after %v", taken, err, time.Since(began))
				}
				rest(2 * time.Minute)
				if took != early {
					t.Errorf("its driver took it: %v", took)
				}
			})
		})
	}
}

// Without a lease nothing is taken, nor by a lane that stops, nor by one that has no
// place or its share: who offers it makes it, and is told so at once. // I-11
func TestOfferWhereNothingBegins(t *testing.T) {
	for name, trouble := range map[string]func(*lane.Lane, *term){
		"the lease has ended": func(_ *lane.Lane, store *term) { store.end() },
		"it stops":            func(l *lane.Lane, _ *term) { l.Stop(context.Background()) },
		"there is no place":   func(l *lane.Lane, _ *term) { l.Wake("ses_2"); l.Wake("ses_3") },
		"it has its share":    func(_ *lane.Lane, store *term) { store.share = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, store := newDriver(), newTerm()
				d.takes = take(nil)
				l := newLane(d, func(c *lane.Config) { c.Tenure, c.Take, c.MaxActive = store, store.take, 2 })
				defer l.Stop(t.Context())
				l.Start()
				rested(l, "ses_1")
				trouble(l, store)
				synctest.Wait()
				began := time.Now()
				taken, err := l.Offer(t.Context(), "ses_1", command("ses_1"))
				if taken || err != nil || time.Since(began) > 0 {
					t.Errorf("taken %v, %v after %v", taken, err, time.Since(began))
				}
				rest(time.Minute)
				if d.count("ses_1") != 1 {
					t.Errorf("drives %v", d.drives)
				}
				store.begin()
				store.share = 9
				l.Wake("ses_1")
				rest(time.Minute)
				if len(d.offered) != 0 {
					t.Errorf("%d offers came, which those who made them have made otherwise by now", len(d.offered))
				}
			})
		})
	}
}

// A lane that stops lets go of who waits for an answer.
func TestOfferEndsWithItsDrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.took = time.Hour
		l := newLane(d, nil)
		rested(l, "ses_1")
		rest(time.Hour)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if taken, err := l.Offer(context.Background(), "ses_1", command("ses_1")); taken || err != nil {
				t.Errorf("taken %v, %v", taken, err)
			}
		}()
		synctest.Wait()
		if len(d.offered) != 1 {
			t.Fatal("it was not offered")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		l.Stop(ctx)
		<-done
	})
}

func rests(l *lane.Lane, id event.SessionID) bool {
	_, ok := l.Rests(id)
	return ok
}

func (d *driver) loaded(id event.SessionID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loads[id]
}
