package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/workers"
)

// lane is what this process remembers of a target. Its worker has it alone;
// where several attempts are in flight at once, mu orders their outcomes.
type lane struct {
	id event.TargetID

	mu      sync.Mutex
	epoch   int64 // under which it is held
	owned   bool
	head    int64 // of the last append, or as read; 0: not known
	circuit outbox.Circuit
	stale   bool // the circuit is to be read again: a command may have come
	exact   bool // what is remembered of circuit and lane is as of head
	whole   bool // the next look reads all bodies: one was missing
	waits   bool // the front of the lane waits for its time, as far as is known
	as      standing
	address string // digest of the address last seen
	to      event.ReplyTarget
	rules   outbox.Rules // of that address
	ahead   ahead
}

// ahead is what was read of a lane and is not sent yet. Whatever happens to it in
// the rows, the conditions of the append that begins its attempt find out.
type ahead struct {
	room *budget
	list []eventlog.Outgoing
	size int64
}

// keep keeps what is left of what was read, where there is room for it.
func (a *ahead) keep(list []eventlog.Outgoing) {
	size := int64(0)
	for i := range list {
		size += int64(len(list[i].Message) + len(list[i].To))
	}
	if len(list) > 0 && a.room.take(size) {
		a.list, a.size = list, size
	}
}

// take gives what was kept, and keeps it no longer.
func (a *ahead) take() []eventlog.Outgoing {
	list := a.list
	a.room.give(a.size)
	a.list, a.size = nil, 0
	return list
}

// budget bounds the bytes that lanes keep, over all of them.
type budget struct{ used atomic.Int64 }

const keptBytes = 32 << 20

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > keptBytes {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// The bounds of a turn: how long a lane keeps its place while others wait for one.
const (
	turnTime    = 100 * time.Millisecond
	aheadLimit  = 64        // deliveries that are read ahead
	aheadBytes  = 256 << 10 // of bodies that are read ahead
	looseWindow = 64        // deliveries among which those that are due pass the others
)

// turn is a lane at work.
type turn struct {
	*Room
	*lane
	w    *workers.Worker
	term eventlog.Term
}

// run looks at the lane, and sends what is due for a while. It gives when to come
// back where nothing is due, and whether there may be more to do now.
func (t *turn) run(ctx context.Context) (due time.Time, more bool, err error) {
	c, err := t.look(ctx)
	if err != nil {
		return due, false, err
	}
	now := c.least()
	if t.circuit.Paused {
		return t.parked(ctx, now)
	}
	if t.cfg.Held != nil && t.cfg.Held() {
		return time.Now().Add(heldAfter), false, nil
	}
	if t.waits || t.circuit.Wait().After(now) { // a look at the front, before a place is asked for
		list, err := t.cfg.Store.Ahead(ctx, t.id, eventlog.Ahead{Limit: 1, Bytes: 1})
		if err != nil {
			return due, false, err
		}
		if len(list) == 0 {
			return t.rest()
		}
		t.learn(&list[0])
		if at := t.front(&list[0]); t.rules.InFlight <= 1 && at.After(now) {
			return local(at, now), false, nil
		}
	}
	if t.rules.InFlight > 1 {
		return t.loose(ctx, c)
	}
	p, ok := t.slots.take(ctx, t.w.Draining, t.as)
	if !ok {
		return due, true, ctx.Err()
	}
	defer t.slots.free(p)
	return t.ordered(ctx, p)
}

// clock is the store's clock as it goes on here (I-16). When exactly it was read is
// not known, only between which instants of this machine.
type clock struct{ now, before, after time.Time }

func (t *turn) clock(ctx context.Context) (c clock, err error) {
	c.before = time.Now()
	c.now, err = t.cfg.Store.Now(ctx)
	c.after = time.Now()
	return c, err
}

// least is never ahead of the store's clock: what is due by it is due.
func (c clock) least() time.Time { return c.now.Add(time.Since(c.after)) }

// most is never behind it: a wait that begins then is not cut short.
func (c clock) most() time.Time { return c.now.Add(time.Since(c.before)) }

// look reads how the target fares, where that may have changed, and gives the time.
func (t *turn) look(ctx context.Context) (clock, error) {
	select {
	case <-t.w.Bell:
		t.stale = true
	default:
	}
	if err := t.refresh(ctx); err != nil {
		return clock{}, err
	}
	return t.clock(ctx)
}

// refresh reads how the target fares, where that may have changed.
func (t *turn) refresh(ctx context.Context) error {
	if !t.stale && t.exact {
		return nil
	}
	t.exact = false
	head, err := t.cfg.Store.Head(ctx, t.id.Stream()) // before what is read by it
	if err != nil {
		return err
	}
	state, err := t.cfg.Store.TargetState(ctx, t.id)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	c, err := CircuitOf(&state)
	if err != nil {
		return err
	}
	t.head, t.circuit, t.stale = head.Seq, c, false
	t.ahead.take() // read anew too, so that all of it is as of that head
	if c.Failures > 0 || c.State != outbox.Closed {
		t.as = failing
	}
	return nil
}

// parked lets go of the lane of a paused target. What a former owner left open is
// closed, so that people can be done with it; the last attempt of a budget with its
// dead letter.
func (t *turn) parked(ctx context.Context, now time.Time) (due time.Time, more bool, err error) {
	list, err := t.cfg.Store.Ahead(ctx, t.id, eventlog.Ahead{Limit: looseWindow, Bytes: 1})
	if err != nil {
		return due, false, err
	}
	for i := range list {
		if row := &list[i].DeliveryRow; row.Open != 0 {
			p := part{row: row, open: row.Open, events: []event.Data{abandoned(row, now)}}
			if _, ok := t.learn(&list[i]); ok && row.Cycle >= int64(t.rules.MaxAttempts) {
				p.events = append(p.events, dead(row, outbox.CodeAbandoned))
			}
			return due, true, t.append(ctx, p)
		}
	}
	return t.rest()
}

// learn takes the rules of the target by its address.
func (t *turn) learn(o *eventlog.Outgoing) (event.ReplyTarget, bool) {
	if t.address == o.Address && o.To != nil { // equal digests are equal bytes
		return t.to, true
	}
	var to event.ReplyTarget
	if o.To == nil || json.Unmarshal(o.To, &to) != nil {
		return to, false
	}
	t.address, t.to, t.rules = o.Address, to, t.cfg.Rules(t.id, to).WithDefaults()
	return to, true
}

// rest lets go of a lane in which there is nothing to do. What came after the head
// that was seen wakes it again.
func (t *turn) rest() (time.Time, bool, error) {
	t.waits = false
	t.w.Gives()
	t.cfg.Tenure.Rest(t.id.Stream(), t.head)
	return time.Time{}, false, nil
}

// local is a time of the store's clock by this machine's, which may be off (I-16).
func local(at, now time.Time) time.Time { return time.Now().Add(at.Sub(now)) }

// front is when a delivery is to be looked at: what is in flight in the rows was
// left so by a former owner, and has no time of its own.
func (t *turn) front(o *eventlog.Outgoing) time.Time {
	if o.Open != 0 {
		return t.circuit.Wait()
	}
	return t.due(&o.DeliveryRow)
}

// due is when there is something to do for a pending delivery: an attempt, or
// its end.
func (t *turn) due(row *eventlog.DeliveryRow) time.Time {
	next, _ := event.ParseTime(row.NextAt) // what cannot be read is due
	failed, _ := event.ParseTime(row.LastAt)
	at := t.circuit.Due(next, failed)
	if end := t.expires(row); end.Before(at) {
		return end
	}
	return at
}

func (t *turn) expires(row *eventlog.DeliveryRow) time.Time {
	began, err := event.ParseTime(row.CycleAt)
	if err != nil {
		began, _ = event.ParseTime(row.CreatedAt)
	}
	return t.rules.Expires(began, t.circuit)
}

// CircuitOf reads the circuit of a target from its row.
func CircuitOf(s *eventlog.TargetState) (outbox.Circuit, error) {
	c := outbox.Circuit{State: s.Circuit, Failures: int(s.Failures), Opens: int(s.Opens), Paused: s.Paused != 0}
	for _, m := range []struct {
		to   *time.Time
		text string
	}{{&c.OpenUntil, s.OpenUntil}, {&c.HeldUntil, s.HeldUntil}, {&c.ResumedAt, s.ResumedAt}, {&c.ResetAt, s.ResetAt}} {
		if m.text == "" {
			continue
		}
		at, err := event.ParseTime(m.text)
		if err != nil {
			return c, err
		}
		*m.to = at
	}
	return c, nil
}

// part is what an append says of one delivery, which must be pending, at its place
// in the lane, with the attempt open in flight (0: none) and as many attempts as are
// known here: so an append whose answer was lost is not made twice, one that lands
// late begins nothing, and what was replayed since it was read waits for its turn.
type part struct {
	row    *eventlog.DeliveryRow
	open   int64
	events []event.Data
	blobs  []event.Blob
	judged bool  // it follows from how the target fares, which must fare so still
	res    *sent // whose outcome it is; nil: of none
}

// errOvertaken: the target does not fare any more as it was known to.
var errOvertaken = errors.New("the target was changed meanwhile")

// append writes to the target's stream as its owner; the first append of this
// process claims it. What follows from how the target fares (a start, a circuit that
// opens) holds only while no person has paused, resumed or reset it since.
//
// As long as nobody else writes to the stream its head says all of that. What
// comes in between, a new delivery mostly, has it asked of the rows.
func (t *turn) append(ctx context.Context, parts ...part) error {
	if t.exact && t.owned {
		err := t.write(ctx, t.head, parts)
		if !errors.Is(err, eventlog.ErrHeadMoved) {
			return err
		}
	}
	t.exact = false
	return t.write(ctx, eventlog.AnyHead, parts)
}

// faring is the condition that a target fares as it is known to: so say those columns
// of its row that people change, and those that follow from its outcomes.
func faring(id event.TargetID, c outbox.Circuit) eventlog.Condition {
	at := func(name string, t time.Time) derived.Col {
		text := ""
		if !t.IsZero() {
			text = event.FormatTime(t)
		}
		return derived.Col{Name: name, Value: text}
	}
	paused := int64(0)
	if c.Paused {
		paused = 1
	}
	return eventlog.Condition{
		Table: derived.Targets, Column: "circuit", In: []any{c.State},
		Where: []derived.Col{
			{Name: "target_id", Value: string(id)}, {Name: "n_paused", Value: paused}, at("resumed_at", c.ResumedAt), at("reset_at", c.ResetAt),
			{Name: "n_failures", Value: int64(c.Failures)}, {Name: "n_opens", Value: int64(c.Opens)},
		},
	}
}

// write is append with an expectation of the head.
func (t *turn) write(ctx context.Context, expect int64, parts []part) error {
	a := eventlog.Append{Entries: []eventlog.Entry{{Stream: t.id.Stream(), Expect: expect, Claim: !t.owned, Node: t.cfg.Tenure.Node()}}}
	if t.owned {
		a.Entries[0].Epoch = t.epoch
	}
	target := derived.Col{Name: "target_id", Value: string(t.id)}
	judged := false
	for i := range parts {
		p := &parts[i]
		if i > 0 && (p.row.SessionID != parts[i-1].row.SessionID || p.row.UserID != parts[i-1].row.UserID) { // what is written together is of one session
			a.Entries = append(a.Entries, eventlog.Entry{Stream: t.id.Stream(), Expect: eventlog.AnyHead, Follows: true})
		}
		to := &a.Entries[len(a.Entries)-1]
		for _, d := range p.events {
			to.Events = append(to.Events, event.Event{SessionID: p.row.SessionID, UserID: p.row.UserID, RunID: p.row.RunID, Data: d})
		}
		a.Blobs = append(a.Blobs, p.blobs...)
		judged = judged || p.judged
		if expect != eventlog.AnyHead {
			continue
		}
		a.Require = append(a.Require, eventlog.Condition{
			Table: derived.Outbox, Column: "status", In: []any{outbox.Pending},
			Where: []derived.Col{target, {Name: "delivery_id", Value: string(p.row.ID)}, {Name: "lane_seq", Value: p.row.LaneSeq}, {Name: "n_open", Value: p.open}, {Name: "n_attempts", Value: max(p.row.Attempts, p.open)}},
		})
	}
	if judged && expect == eventlog.AnyHead {
		a.Require = append(a.Require, faring(t.id, t.circuit))
	}
	stamps, err := t.cfg.Store.Append(ctx, a)
	var held *eventlog.HeldError
	var other *eventlog.ConditionError
	switch {
	case errors.Is(err, eventlog.ErrFenced), errors.As(err, &held):
		t.owned, t.stale, t.exact = false, true, false
	case errors.As(err, &other):
		t.stale = true
		if a.Require[other.Index].Table == derived.Targets {
			err = fmt.Errorf("%w: %w", errOvertaken, err)
		}
	case err == nil:
		for i := range stamps {
			s := &stamps[i]
			t.epoch, t.owned, t.head = s.Epoch, true, s.Head
			for j := range s.Events {
				t.circuit = t.circuit.Apply(s.Events[j].Data, s.Events[j].Time)
				t.tell(&s.Events[j])
			}
		}
	}
	return err
}

// begin says what is told before a delivery is sent: the start of its attempt, or
// why it is not sent at all; then it has no message. An attempt that a former owner
// left open is closed first: it may have arrived, and the receiver knows the id.
func (t *turn) begin(o *eventlog.Outgoing, now time.Time) (part, *Message) {
	row := &o.DeliveryRow
	p := part{row: row, open: row.Open}
	if row.Open != 0 {
		p.events = append(p.events, abandoned(row, now))
	}
	end := func(code string) (part, *Message) {
		p.events = append(p.events, dead(row, code))
		return p, nil
	}
	to, ok := t.learn(o)
	switch {
	case o.Gone:
		return end(outbox.CodeErased)
	case o.Size > t.cfg.MaxPayload:
		return end(outbox.CodeTooLarge)
	case !ok:
		return end(codeInvalid)
	case row.Open != 0 && row.Cycle >= int64(t.rules.MaxAttempts):
		return end(outbox.CodeAbandoned)
	case !now.Before(t.expires(row)):
		p.judged = true // the end of a pause would give it its time anew
		return end(outbox.CodeExpired)
	}
	started := &event.DeliveryAttemptStarted{Attempt: int(row.Attempts) + 1, Cycle: int(row.Cycle) + 1, DeliveryID: row.ID}
	if row.DeliveredAttempt != 0 && row.Cycle == 0 {
		started.Earlier = &event.EarlierAttempt{Attempt: int(row.DeliveredAttempt), DurationMS: row.LastMS, EndedAt: row.LastAt, Status: int(row.LastStatus)}
	}
	p.events = append(append(p.events, t.circuit.Begin(row.ID)...), started)
	p.judged = true
	return p, &Message{ID: row.ID, UserID: row.UserID, Target: to, Body: o.Message, At: now}
}

// dead ends a delivery that is not sent any more.
func dead(row *eventlog.DeliveryRow, code string) event.Data {
	return &event.DeliveryDeadLettered{Attempts: int(row.Attempts), Class: outbox.Class(code, 0), Code: code, DeliveryID: row.ID}
}

// codeInvalid is the code of what cannot be sent to anybody.
const codeInvalid = "invalid"

// abandoned closes an attempt of which nobody knows what became.
func abandoned(row *eventlog.DeliveryRow, now time.Time) event.Data {
	return &event.DeliveryAttemptFailed{
		Attempt: int(row.Open), Class: outbox.ClassAbandoned, Code: outbox.CodeAbandoned, DeliveryID: row.ID, RetryAt: event.FormatTime(now),
	}
}
