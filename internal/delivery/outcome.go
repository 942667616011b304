package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// sent is an attempt that is over.
type sent struct {
	Result
	took time.Duration
	at   time.Time // by the store's clock
	mute bool      // its outcome says nothing of the target, only of the delivery
}

// send makes the attempt that has begun. An error leaves it in doubt: the next
// start closes it.
func (t *turn) send(ctx context.Context, p *place, m *Message, timeout time.Duration, c clock) (*sent, error) {
	if err := t.term.Await(ctx); err != nil { // I-11
		return nil, errors.Join(eventlog.ErrFenced, err)
	}
	sctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	m.At = c.least()
	slow := time.AfterFunc(t.cfg.SlowAfter, func() { t.slots.drag(p) })
	defer slow.Stop()
	res := t.cfg.Send(sctx, *m)
	return &sent{Result: res, took: time.Since(began), at: c.most()}, ctx.Err()
}

// recounts is how often an outcome is worked out anew because a person changed the
// target right before it was written. Then it leaves the target as it is.
const recounts = 8

// record appends the outcome of an attempt. It is a fact: a store in trouble must
// not cost it, or what was delivered would be sent again; and it undoes nothing that
// a person did to the target meanwhile: where the target does not fare any more as it
// was known to, what follows from the attempt is worked out anew.
func (t *turn) record(ctx context.Context, p part) error {
	changed := 0
	for {
		err := t.append(ctx, p)
		if errors.Is(err, errOvertaken) && p.res != nil {
			if err = t.refresh(ctx); err == nil {
				changed++
				p.res.mute = changed >= recounts
				p = t.outcome(p.row, p.res)
				continue
			}
		}
		var other *eventlog.ConditionError
		var held *eventlog.HeldError
		if err == nil || ctx.Err() != nil || errors.Is(err, eventlog.ErrFenced) || errors.As(err, &held) || errors.Is(err, eventlog.ErrClosed) || errors.As(err, &other) {
			return err
		}
		t.cfg.Logger.Error("record delivery attempt", "delivery_id", p.row.ID, "err", err, "retry_in", restAfter)
		select {
		case <-time.After(restAfter):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// note logs what came of an attempt.
func (t *turn) note(row *eventlog.DeliveryRow, res *sent) {
	number := int(row.Attempts) + 1
	if res.Delivered {
		t.cfg.Logger.LogAttrs(context.Background(), slog.LevelInfo, "delivered", slog.String("target_id", string(row.TargetID)), slog.String("delivery_id", string(row.ID)),
			slog.String("run_id", string(row.RunID)), slog.Int("attempt", number), slog.Int("status", res.Status))
		return
	}
	t.cfg.Logger.Warn("delivery attempt failed", "target_id", row.TargetID, "delivery_id", row.ID, "run_id", row.RunID, "attempt", number, "code", res.Code, "status", res.Status, "detail", res.Detail)
}

// outcome says what follows from an attempt that is over, for a target that fares as
// it is known to.
func (t *turn) outcome(row *eventlog.DeliveryRow, res *sent) part {
	out := part{row: row, open: row.Attempts + 1, res: res}
	if !res.Delivered {
		t.as = failing
		t.failed(&out, row, res)
		return out
	}
	t.as = proven
	d := &event.DeliveryDelivered{Attempt: int(out.open), DeliveryID: row.ID, DurationMS: res.took.Milliseconds(), Status: res.Status}
	if since, err := event.ParseTime(row.CycleAt); err == nil {
		d.LagMS = max(res.at.Sub(since).Milliseconds(), 0)
	}
	out.events = []event.Data{d}
	if !res.mute {
		_, more := t.rules.After(t.circuit, outbox.There, res.at)
		d.Failures, out.events = t.circuit.Failures, append(out.events, more...)
		out.judged = d.Failures > 0 || len(more) > 0
	}
	return out
}

// failed tells a failed attempt, and what follows from it.
func (t *turn) failed(out *part, row *eventlog.DeliveryRow, res *sent) {
	began := t.expires(row).Add(-t.rules.MaxAge)
	v := t.rules.Judge(outbox.Outcome{Code: res.Code, Status: res.Status, RetryAfter: res.RetryAfter, Permanent: res.Permanent, Gone: res.Gone},
		int(row.Cycle)+1, began, res.at, t.jitter())
	if out.judged = !res.mute; res.mute {
		v.Health, v.Pause = outbox.Unknown, false
	}
	d := &event.DeliveryAttemptFailed{Attempt: int(out.open), Class: v.Class, Code: res.Code, DeliveryID: row.ID, DurationMS: res.took.Milliseconds(), Status: res.Status}
	if len(res.Excerpt) > 0 {
		b := event.NewBlob(row.SessionID, event.BlobDelivery, []byte(canonjson.CutRunes(string(res.Excerpt), t.cfg.MaxExcerpt)))
		d.Excerpt, out.blobs = b.Ref, []event.Blob{b}
	}
	if !v.HoldUntil.IsZero() {
		d.HoldUntil = event.FormatTime(v.HoldUntil)
	}
	failures, circuit := t.rules.After(t.circuit, v.Health, res.at)
	d.Failures = failures
	out.events = append(out.events, d)
	if v.RetryAt.IsZero() {
		out.events = append(out.events, &event.DeliveryDeadLettered{Attempts: int(out.open), Class: v.DeadClass, Code: v.Code, DeliveryID: row.ID})
	} else {
		d.RetryAt = event.FormatTime(v.RetryAt)
	}
	out.events = append(out.events, circuit...)
	if v.Pause && !t.circuit.Paused { // the word of a person stays
		out.events = append(out.events, &event.TargetPaused{Code: event.PausedGone, DeliveryID: row.ID})
	}
}
