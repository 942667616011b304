package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// A delivery that a former owner left open is sent with its body, also where the
// clock was set back since and what is due seems to lie ahead. // I-24
func TestOpenDeliveryUnderAClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		time.Sleep(time.Hour)
		p.enqueue(urlA, "dlv_1")
		p.put(target(urlA).Stream(), &event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 1, Cycle: 1})
		p.open(func(c *delivery.Config) {
			c.Store = behind{c.Store.(faulty)}
			c.Rules = rules(outbox.Rules{MaxAttempts: 4, InitialBackoff: time.Second, InFlight: 2})
		})
		rest(time.Minute)
		p.bodies(1)
	})
}

// behind is a store whose clock was set back.
type behind struct{ faulty }

func (b behind) Now(ctx context.Context) (time.Time, error) {
	now, err := b.faulty.Now(ctx)
	return now.Add(-30 * time.Minute), err
}

// When a delivery is due follows from the rules of its own address, not from those
// of the address before it in the lane.
func TestRulesOfAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, m delivery.Message, n int) delivery.Result {
			if m.ID == "dlv_1" && n == 1 {
				return delivery.Result{Code: "http_503", Status: 503}
			}
			return taken
		})
		defer p.close()
		p.open(func(c *delivery.Config) {
			c.Rules = func(_ event.TargetID, to event.ReplyTarget) outbox.Rules {
				r := outbox.Rules{MaxAttempts: 4, InitialBackoff: 10 * time.Minute, InFlight: 2}
				if to.Format != "" {
					r.MaxAge = time.Second
				}
				return r
			}
		})
		p.enqueue(urlA, "dlv_1")
		rest(10 * time.Second)
		p.enqueueTo(event.ReplyTarget{Type: "webhook", URL: urlA, Format: event.FormatCloudEvents}, "dlv_2")
		rest(10 * time.Second)
		p.bodies(2)
		if row := p.row("dlv_1"); row.Status != outbox.Pending || row.Attempts != 1 {
			t.Errorf("%+v", row)
		}
		rest(time.Hour)
		p.bodies(3)
	})
}

// A delivery whose body was not read is not sent: it is read again. // I-24
func TestBodyThatWasNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		p.open(func(c *delivery.Config) {
			c.Store = bodiless{c.Store.(faulty)}
			c.Rules = rules(outbox.Rules{MaxAttempts: 4, InFlight: 2})
		})
		p.enqueue(urlA, "dlv_1")
		p.enqueue(urlA, "dlv_2")
		rest(time.Minute)
		p.bodies(2)
	})
}

// bodiless is a store that gives bodies only where all are asked for.
type bodiless struct{ faulty }

func (b bodiless) Ahead(ctx context.Context, id event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
	list, err := b.faulty.Ahead(ctx, id, q)
	for i := range list {
		if q.Due != "" {
			list[i].Message = nil
		}
	}
	return list, err
}

// bodies checks that so many attempts were made, each with its body.
func (p *post) bodies(want int) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.attempts) != want {
		p.t.Errorf("%d attempts, want %d", len(p.attempts), want)
	}
	for _, a := range p.attempts {
		if string(a.m.Body) != fmt.Sprintf(`{"id":%q}`, a.m.ID) {
			p.t.Errorf("%s is sent with %q", a.m.ID, a.m.Body)
		}
	}
}

// enqueueTo is enqueue for an address of any form.
func (p *post) enqueueTo(to event.ReplyTarget, id event.DeliveryID) {
	p.t.Helper()
	address, err := json.Marshal(to, json.Deterministic(true))
	if err != nil {
		p.t.Fatal(err)
	}
	of := []event.SessionID{ses, "ses_2"}[p.enqueued%2]
	p.enqueued++
	body, at := event.NewBlob(of, event.BlobDelivery, []byte(fmt.Sprintf(`{"id":%q}`, id))), event.NewBlob(of, event.BlobDelivery, address)
	if _, err := p.store.Append(p.t.Context(), eventlog.Append{Blobs: []event.Blob{body, at}, Entries: []eventlog.Entry{{
		Stream: target(to.URL).Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: of, UserID: user, RunID: "run_1", Data: &event.DeliveryEnqueued{Address: at.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"}}},
	}}}); err != nil {
		p.t.Fatal(err)
	}
	if p.room != nil {
		p.room.Wake(target(to.URL))
	}
}
