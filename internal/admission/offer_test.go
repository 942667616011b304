package admission_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// owner is one that does with an offer what a test says.
type owner struct {
	rests  bool
	knows  eventlog.Resting // of any session
	offer  func(ctx context.Context, a eventlog.Append) (bool, error)
	offers []eventlog.Append
}

func (o *owner) Rests(event.SessionID) (eventlog.Resting, bool) { return o.knows, o.rests }

func (o *owner) Offer(ctx context.Context, _ event.SessionID, a eventlog.Append) (bool, error) {
	o.offers = append(o.offers, a)
	return o.offer(ctx, a)
}

func declines(context.Context, eventlog.Append) (bool, error) { return false, nil }

// owned is a desk whose sessions have an owner.
func owned(t *testing.T, limits admission.Limits, rests bool) (*desk, *owner) {
	t.Helper()
	d, o := newDesk(t, limits), &owner{rests: rests, offer: declines}
	d.owner = o
	d.remake()
	return d, o
}

// makes is an owner's way to take an offer: it appends it, as here without more.
func makes(d *desk) func(context.Context, eventlog.Append) (bool, error) {
	return func(ctx context.Context, a eventlog.Append) (bool, error) {
		_, err := d.store.Append(ctx, a)
		return true, err
	}
}

// A submission is offered whole to who owns its session, and is in the log once:
// made by the owner, or, where that declines, by admission. // I-02 I-07
func TestSubmissionIsOffered(t *testing.T) {
	for name, taken := range map[string]bool{"taken": true, "declined": false} {
		for _, rests := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				d, o := owned(t, admission.Limits{}, rests)
				s := d.session(&api.CreateSession{})
				if taken {
					o.offer = makes(d)
				}
				before := len(d.feed())
				id := d.submit(s, &api.SubmitRun{Content: api.Text("work")}, "k", true)
				if len(o.offers) != 1 || len(o.offers[0].Entries) != 1 || o.offers[0].Entries[0].Stream != s.ID.Stream() {
					t.Fatalf("offers %+v", o.offers)
				}
				var types []event.Type
				for _, e := range d.feed()[before:] {
					if types = append(types, e.Type); e.RunID != id {
						t.Errorf("%s of %s", e.Type, e.RunID)
					}
				}
				if !slices.Equal(types, []event.Type{event.TypeRunCreated, event.TypeRunQueued}) {
					t.Errorf("appended %v", types)
				}
				if again := d.submit(s, &api.SubmitRun{Content: api.Text("work")}, "k", false); again != id || len(o.offers) != 1 {
					t.Errorf("the key once more: %s, %d offers", again, len(o.offers))
				}
				d.verify()
			})
		}
	}
}

// What an owner has taken is not appended once more, whatever came of it: its caller
// is told what it would be told of its own append. // I-02 I-07
func TestOfferThatFails(t *testing.T) {
	for name, cause := range map[string]error{
		"trouble": errors.New("disk full at /secret/path"), "closed": eventlog.ErrClosed, "full": eventlog.Full(errors.New("no"), true),
		"no file": &eventlog.AssetError{ID: "ast_1"}, "malformed": eventlog.Malformed(nil, "too large"), "condition": &eventlog.ConditionError{}, "duplicate": &eventlog.DuplicateError{},
	} {
		t.Run(name, func(t *testing.T) {
			d, o := owned(t, admission.Limits{}, true)
			s := d.session(&api.CreateSession{})
			set, err := tool.NewSet()
			if err != nil {
				t.Fatal(err)
			}
			alone := admission.New(admission.Config{
				Store: full{d.store, cause}, Tools: set, Random: rand.Reader,
				Route: func(string, string) (event.Route, error) {
					return event.Route{Name: "m", Provider: "p", Model: "m"}, nil
				},
			})
			req := &api.SubmitRun{Content: api.Text("work")}
			_, _, want := alone.Submit(t.Context(), admission.Caller{}, s, req, "k")
			o.offer = func(context.Context, eventlog.Append) (bool, error) { return true, cause }
			before := d.everything()
			_, created, got := d.Submit(t.Context(), admission.Caller{}, s, req, "k")
			if created || got == nil || got.Error() != want.Error() || problem.Of(got).Code != problem.Of(want).Code || errors.Is(got, cause) != errors.Is(want, cause) {
				t.Errorf("%v, want %v", got, want)
			}
			if after := d.everything(); after != before {
				t.Errorf("it was appended all the same: %s", after[len(before):])
			}
			o.offer = declines
			d.submit(s, req, "k", true)
		})
	}
}

// Who waits for an owner no longer is told that of its own leaving.
func TestOfferThatIsLeft(t *testing.T) {
	d, o := owned(t, admission.Limits{}, true)
	s := d.session(&api.CreateSession{})
	ctx, leave := context.WithCancel(t.Context())
	o.offer = func(ctx context.Context, _ eventlog.Append) (bool, error) {
		leave()
		<-ctx.Done()
		return true, ctx.Err()
	}
	before := d.everything()
	if _, created, err := d.Submit(ctx, admission.Caller{}, s, &api.SubmitRun{Content: api.Text("work")}, ""); created || !errors.Is(err, context.Canceled) {
		t.Errorf("created %v, %v", created, err)
	}
	if after := d.everything(); after != before {
		t.Errorf("it was appended all the same: %s", after[len(before):])
	}
}

// The queue has its end also where the session was thought to be at rest and was not;
// where it is known not to be, nothing is offered past the end.
func TestQueueIsBoundedBehindAnOffer(t *testing.T) {
	for name, rests := range map[string]bool{"thought to be at rest": true, "known not to be": false} {
		t.Run(name, func(t *testing.T) {
			d, o := owned(t, admission.Limits{QueuedRuns: 2}, rests)
			s := d.session(&api.CreateSession{})
			req := &api.SubmitRun{Content: api.Text("work")}
			first := d.submit(s, req, "k", true)
			d.submit(s, req, "", true)
			d.refused("queue_full", s, req, "")
			if want := map[bool]int{true: 3, false: 2}[rests]; len(o.offers) != want {
				t.Errorf("%d offers, want %d", len(o.offers), want)
			}
			if again := d.submit(s, req, "k", false); again != first {
				t.Errorf("the known key gave %s, not %s", again, first)
			}
		})
	}
}
