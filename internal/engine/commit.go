package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// batch is one append in the making: outcomes, and the decisions that follow
// from them, on a state that runs ahead of the log.
type batch struct {
	st      *session.State
	events  []event.Event
	blobs   []event.Blob
	claimed bool
	epoch   int64 // that the append is fenced by: the one before a claim
	from    int64 // head before the batch
	rest    bool  // nothing more is wanted after it
}

// settle commits what has come and what follows from it, until the state asks
// only for acts. It gives those, and the time of what waits for its time.
func (d *drive) settle(ctx context.Context) ([]session.Action, time.Time, error) {
	for {
		b, actions, due, err := d.decide(ctx)
		if err != nil {
			return nil, due, err
		}
		if len(b.events) == 0 {
			d.st = b.st
			d.pending = nil
			return actions, due, nil
		}
		// A claim, with the sweep of what a former owner left, and a decision wait for
		// a lease; an outcome is a fact, and the store says whose it is.
		if b.claimed || len(d.pending) == 0 {
			if err := d.mayAct(ctx); err != nil {
				return nil, due, err
			}
		}
		d.mayRest(b, actions, due)
		committed, err := d.commit(ctx, b)
		if why := eventlog.Refusal(err); why != "" {
			if err := d.giveUp(ctx, why, err); err != nil {
				return nil, due, err
			}
			continue
		}
		if err != nil {
			return nil, due, err
		}
		if committed {
			d.pending = nil
			d.landed(b)
		}
	}
}

// mayRest notes on a batch whether it lets go of the session: nothing is wanted behind it.
func (d *drive) mayRest(b *batch, actions []session.Action, due time.Time) {
	b.rest = len(actions) == 0 && due.IsZero() && len(d.acts) == 0 && session.Next(b.st) == nil
}

// landed goes on from a batch that is in the log.
func (d *drive) landed(b *batch) {
	d.tellTakeover(b)
	d.st, d.owned, d.unsure, d.rested = b.st, true, 0, b.rest
	d.moved()
	d.logProgress(b.events)
}

// tellTakeover says in the log that a run goes on which another process life began.
func (d *drive) tellTakeover(b *batch) {
	if r := d.st.Active; b.claimed && r != nil && d.st.Owner != string(d.e.cfg.Node) {
		d.log.Info("the run goes on here, which another process had begun", "run_id", r.ID, "before", d.st.Owner, "in_doubt", d.st.HasOpenActs())
	}
}

// giveUp ends the run whose append the log refuses for good: to ask again would
// be refused again, for ever. What is in flight is stopped; the outcomes that
// could not be written are dropped, and the calls behind them are told as in
// doubt. When that is refused too nothing is left to be said: the error goes
// to who drives the session.
func (d *drive) giveUp(ctx context.Context, why string, cause error) error {
	d.log.Error("append refused for good: the run ends", "err", cause)
	for _, cancel := range d.acts {
		cancel()
	}
	d.pending = nil
	for {
		b := d.newBatch()
		if !d.owned {
			if err := d.claim(b); err != nil {
				return err
			}
		}
		events := session.Refused(b.st, why)
		if events == nil {
			return cause
		}
		if err := d.fold(b, events); err != nil {
			return err
		}
		committed, err := d.commit(ctx, b)
		if err != nil {
			return errors.Join(err, cause)
		}
		if committed {
			d.st, d.owned, d.unsure, d.rested = b.st, true, 0, false
			d.moved()
			d.logProgress(b.events)
			return nil
		}
	}
}

// fullBatch is the number of events from which on a batch takes no further
// decision: with what one outcome and one decision may add it stays within
// eventlog.MaxEvents.
const fullBatch = 1024

// decide folds the pending outcomes into a copy of the state and asks it what
// is next, over and over, until it asks for acts or nothing.
func (d *drive) decide(ctx context.Context) (*batch, []session.Action, time.Time, error) {
	b := d.newBatch()
	if !d.owned {
		if !d.doubtful() && (d.draining || session.Next(b.st) == nil) {
			return b, nil, time.Time{}, nil // nothing to own it for
		}
		if err := d.claim(b); err != nil {
			return nil, nil, time.Time{}, err
		}
	}
	for _, o := range d.pending {
		events, blobs := o.events(b.st)
		b.blobs = append(b.blobs, blobs...)
		if err := d.fold(b, events); err != nil {
			return nil, nil, time.Time{}, err
		}
	}
	actions, due, err := d.follow(ctx, b)
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	return b, actions, due, nil
}

func (d *drive) newBatch() *batch {
	return &batch{st: d.st.Clone(), epoch: d.st.Epoch, from: d.st.Head}
}

// claim begins a batch with the word that this node owns the session, unless the
// log says so already and nothing is open that a former life of it began.
func (d *drive) claim(b *batch) error {
	b.claimed = d.doubtful() || d.st.Owner != string(d.e.cfg.Node) || d.st.HasOpenActs()
	d.owned = !b.claimed
	if d.owned {
		return nil
	}
	return d.fold(b, []event.Event{{SessionID: b.st.ID, UserID: b.st.UserID, Data: &event.OwnerClaimed{Owner: string(d.e.cfg.Node)}}})
}

// follow folds what the batch's state decides into it, over and over, until it asks
// for acts, which it gives, or for nothing, or something is due later.
func (d *drive) follow(ctx context.Context, b *batch) ([]session.Action, time.Time, error) {
	for {
		if d.draining || len(b.events) >= fullBatch {
			return nil, time.Time{}, nil // outcomes are recorded; intents are for the next start, or the next append
		}
		actions := session.Next(b.st)
		if len(actions) == 0 {
			return nil, time.Time{}, nil
		}
		switch a := actions[0].(type) {
		case session.Append:
			due, wait, err := d.due(ctx, a.NotBefore)
			if err != nil || wait {
				return nil, due, err
			}
			if begins(a.Events) && d.e.cfg.Held() {
				now, err := d.now(ctx)
				return nil, now.Add(heldAfter), err
			}
			if err := d.fold(b, a.Events); err != nil {
				return nil, time.Time{}, err
			}
		case session.Resolve:
			text, err := d.text(ctx, b, a.Ref)
			if err != nil {
				return nil, time.Time{}, err
			}
			b.st.Resolve(a.Ref, string(text))
		default:
			return actions, time.Time{}, nil
		}
	}
}

// begins says whether events are the start of an act, or lead to one at once.
// These are not recorded while nothing may begin: a run that waits for room
// waits in front of its next act, with nothing in doubt.
func begins(events []event.Event) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool {
		switch e.Data.EventType() {
		case event.TypeRunStarted, event.TypeStepStarted, event.TypeModelCallStarted, event.TypeCompactionStarted, event.TypeToolStarted, event.TypeToolRetrying:
			return true
		}
		return false
	})
}

// due says whether an append has to wait, and until when.
func (d *drive) due(ctx context.Context, notBefore string) (time.Time, bool, error) {
	if notBefore == "" {
		return time.Time{}, false, nil
	}
	at, err := event.ParseTime(notBefore)
	if err != nil {
		return at, false, err
	}
	now, err := d.now(ctx)
	return at, now.Before(at), err
}

func (d *drive) now(ctx context.Context) (now time.Time, err error) {
	err = d.persist(ctx, "read clock", func() (err error) {
		now, err = d.e.cfg.Log.Now(ctx)
		return err
	})
	return now, err
}

// fold applies drafts to the batch's state as the store will stamp them.
func (d *drive) fold(b *batch, drafts []event.Event) error {
	epoch := b.epoch
	if b.claimed {
		epoch++
	}
	for i := range drafts {
		e := &drafts[i]
		e.Stream, e.Seq, e.Epoch = b.st.ID.Stream(), b.st.Head+1, epoch
		if err := b.st.Apply(e); err != nil {
			return err
		}
	}
	b.events = append(b.events, drafts...)
	return nil
}

// commit appends the batch. false means that the state was behind: what came
// was folded, and the batch must be made anew (outcomes stay as they are).
func (d *drive) commit(ctx context.Context, b *batch) (bool, error) {
	a, err := d.appendOf(ctx, b)
	if err != nil {
		return false, err
	}
	var held *eventlog.HeldError
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		_, err := d.e.cfg.Log.Append(ctx, a)
		switch {
		case err == nil:
			d.keep(b.blobs)
			return true, nil
		case errors.Is(err, eventlog.ErrHeadMoved):
			before := d.st.Head
			if cerr := d.catchUp(ctx); cerr != nil || d.st.Head != before {
				return false, cerr
			}
			// Nothing came, so that the log ends before what was read from it: its
			// database has lost commits. What was read is of no use; it is read anew.
			return false, fmt.Errorf("the log of %s ends before %d, to where it was read: %w", d.id, before, err)
		case errors.Is(err, eventlog.ErrFenced) && d.doubtful(): // by our own claim, where that came after all
			before := d.st.Head
			if cerr := d.catchUp(ctx); cerr != nil || d.st.Head != before {
				return false, cerr
			}
			return false, eventlog.ErrFenced
		case errors.Is(err, eventlog.ErrFenced), errors.As(err, &held):
			return false, eventlog.ErrFenced
		case errors.Is(err, eventlog.ErrClosed), ctx.Err() != nil, eventlog.Refusal(err) != "":
			return false, err
		}
		// A store in trouble: an outcome is a fact and is not given up.
		d.log.Error("append", "err", err, "retry_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		before := d.st.Head
		if err := d.catchUp(ctx); err != nil || d.st.Head != before {
			return false, err
		}
	}
}

// appendOf makes the append of a batch, with what commits together with it.
func (d *drive) appendOf(ctx context.Context, b *batch) (eventlog.Append, error) {
	extra, blobs, err := d.deliveries(ctx, b)
	if err != nil {
		return eventlog.Append{}, err
	}
	b.blobs = append(b.blobs, blobs...)
	b.blobs = append(b.blobs, event.Externalize(b.st.ID, b.events)...)
	return eventlog.Append{
		Entries: append([]eventlog.Entry{{
			Stream: b.st.ID.Stream(), Expect: b.from, Epoch: b.epoch, Claim: b.claimed, Events: b.events,
			Node: d.e.cfg.Node, Rest: b.rest, Roots: d.roots(b),
		}}, extra...),
		Blobs: b.blobs,
	}, nil
}

// keep remembers texts that were stored just now.
func (d *drive) keep(blobs []event.Blob) {
	for _, bl := range blobs {
		d.e.blobs.put(d.id, bl.Ref, bl.Bytes)
	}
}

// roots gives the workspace roots that the session needs from this append on,
// where the append says so: at a claim, and when a run begins.
func (d *drive) roots(b *batch) []string {
	r := b.st.Active
	if r == nil || !b.claimed && !slices.ContainsFunc(b.events, func(e event.Event) bool { _, ok := e.Data.(*event.RunStarted); return ok }) {
		return nil
	}
	var roots []string
	for i := range r.Created.Tools {
		if t, _, ok := d.e.cfg.Tools.Get(r.Created.Tools[i].Name); ok {
			if at, ok := t.(tool.Rooted); ok && !slices.Contains(roots, at.Root()) {
				roots = append(roots, at.Root())
			}
		}
	}
	return roots
}

// catchUp folds what the log got since. An epoch that has grown is our own
// claim, whose append seemed to fail, or means that the session was taken: from
// then on nothing more may be appended, not even with the new epoch (I-11).
func (d *drive) catchUp(ctx context.Context) error {
	epoch := d.st.Epoch
	err := d.readOn(ctx)
	switch {
	case err != nil:
		return err
	case d.st.Epoch == epoch:
	case d.st.Owner != string(d.e.cfg.Node):
		return eventlog.ErrFenced
	default:
		d.owned = true
	}
	return nil
}

// readOn folds what the log got since, whoever wrote it.
func (d *drive) readOn(ctx context.Context) error {
	return catchUp(ctx, d.st, func(ctx context.Context, s event.Stream, after int64, limit int) (events []event.Event, err error) {
		err = d.persist(ctx, "read log", func() (err error) {
			events, err = d.e.cfg.Log.Read(ctx, s, after, limit)
			return err
		})
		return events, err
	})
}

// How long the store is left alone after a failure: doubling between these.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 5 * time.Second
)

// persist tries to read until it succeeds or ctx ends: a store in trouble must
// not cost what is in flight, nor the outcomes that wait to be recorded.
func (d *drive) persist(ctx context.Context, op string, read func() error) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := read()
		if err == nil || ctx.Err() != nil || errors.Is(err, eventlog.ErrNotFound) || errors.Is(err, eventlog.ErrErased) || errors.Is(err, eventlog.ErrClosed) {
			return err
		}
		d.log.Error(op, "err", err, "retry_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stored reads a blob; a store in trouble is waited for.
func (d *drive) stored(ctx context.Context, ref string) (data []byte, err error) {
	err = d.persist(ctx, "read blob", func() (err error) {
		data, err = d.e.blob(ctx, d.id, ref)
		return err
	})
	return data, err
}

// file reads an asset, nil when it is gone; a store in trouble is waited for.
// Files are large and are not kept in memory.
func (d *drive) file(ctx context.Context, id event.AssetID) (data []byte, err error) {
	err = d.persist(ctx, "read asset", func() (err error) {
		data, err = d.e.cfg.Log.AssetBytes(ctx, id)
		return err
	})
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, nil
	}
	return data, err
}

// deliveries makes the entries in the streams of targets that commit together
// with an output (I-24), and the blobs that they refer to.
func (d *drive) deliveries(ctx context.Context, b *batch) ([]eventlog.Entry, []event.Blob, error) {
	var entries []eventlog.Entry
	var blobs []event.Blob
	for i := range b.events {
		out, ok := b.events[i].Data.(*event.OutputEmitted)
		if !ok || len(out.Targets) == 0 {
			continue
		}
		run := b.events[i].RunID
		text, err := d.outputText(ctx, b, out)
		if err != nil {
			return nil, nil, err
		}
		created, err := d.createdOf(run)
		if err != nil {
			return nil, nil, err
		}
		for _, t := range out.Targets {
			target := targetOf(created, b.st.UserID, t.TargetID)
			if target == nil {
				return nil, nil, errors.New("engine: output to a target that its run does not have")
			}
			var at time.Time
			if outbox.Timed(target) {
				if at, err = d.now(ctx); err != nil {
					return nil, nil, err
				}
			}
			msg := outbox.Message{
				DeliveryID: t.DeliveryID, SessionID: b.st.ID, ThreadID: b.st.ThreadID, RunID: run,
				OutputKind: out.OutputKind, Text: text, Hops: created.Hops,
			}
			if out.OutputKind == event.OutputStructured {
				msg.Structured = canonjson.Value(text)
			}
			body := event.NewBlob(b.st.ID, event.BlobDelivery, msg.Bytes(target, at))
			addr, err := json.Marshal(target, json.Deterministic(true))
			if err != nil {
				return nil, nil, err
			}
			address := event.NewBlob(b.st.ID, event.BlobDelivery, addr)
			blobs = append(blobs, body, address)
			entries = append(entries, eventlog.Entry{
				Stream: t.TargetID.Stream(), Expect: eventlog.AnyHead,
				Events: []event.Event{{
					SessionID: b.st.ID, UserID: b.st.UserID, RunID: run,
					Data: &event.DeliveryEnqueued{Address: address.Ref, Body: body.Ref, DeliveryID: t.DeliveryID, Type: target.Type},
				}},
			})
		}
	}
	return entries, blobs, nil
}

// createdOf gives what the run captured. The run is the active one of the
// committed state, or, when it began in this very batch, still the head of its queue.
func (d *drive) createdOf(run event.RunID) (*event.RunCreated, error) {
	if r := d.st.Active; r != nil && r.ID == run {
		return r.Created, nil
	}
	for _, q := range d.st.Queue {
		if q.ID == run {
			return q.Created, nil
		}
	}
	return nil, errors.New("engine: output of a run that the state does not know")
}

// targetOf finds a target among those that a run captured.
func targetOf(d *event.RunCreated, user string, id event.TargetID) *event.ReplyTarget {
	for i := range d.ReplyTargets {
		if d.ReplyTargets[i].ID(user) == id {
			return &d.ReplyTargets[i]
		}
	}
	return nil
}

func (d *drive) outputText(ctx context.Context, b *batch, out *event.OutputEmitted) (string, error) {
	switch {
	case out.StructuredOutput != nil:
		return string(out.StructuredOutput), nil
	case out.Content.Ref != "":
		text, err := d.text(ctx, b, out.Content.Ref)
		return string(text), err
	}
	return out.Content.Text, nil
}

// text gives the bytes behind a reference: of this batch, or stored.
func (d *drive) text(ctx context.Context, b *batch, ref string) ([]byte, error) {
	for i := range b.blobs {
		if b.blobs[i].Ref == ref {
			return b.blobs[i].Bytes, nil
		}
	}
	var data []byte
	err := d.persist(ctx, "read blob", func() (err error) {
		data, err = d.e.blob(ctx, d.id, ref)
		return err
	})
	return data, err
}

// logProgress tells the log of the daemon what a run came to; never content.
func (d *drive) logProgress(events []event.Event) {
	for i := range events {
		ev := &events[i]
		log := d.log.With("run_id", ev.RunID)
		switch x := ev.Data.(type) {
		case *event.RunStarted:
			log.Info("run started")
		case *event.RunCompleted:
			log.Info("run completed", "turns", x.Totals.Turns, "repairs", x.Totals.Repairs, "tools", x.Totals.Tools)
		case *event.RunFailed:
			log.Warn("run failed", "code", x.Code)
		case *event.RunCancelled, *event.RunInterrupted:
			log.Info("run stopped", "type", ev.Type)
		case *event.NeedsAttention:
			log.Warn("run needs attention", "calls", len(x.Calls))
		case *event.ModelCallFailed:
			log.Warn("model attempt failed", "step_id", ev.StepID, "attempt", x.Attempt, "class", x.Class, "status", x.Status)
		case *event.ToolInterrupted:
			log.Warn("tool call interrupted", "call_id", ev.CallID, "outcome", x.Outcome)
		case *event.ContextCompacted:
			log.Info("context compacted", "reason", x.Reason, "entries", x.Entries, "tokens", x.Tokens)
		case *event.CompactionFailed:
			log.Warn("compaction failed", "reason", x.Reason, "code", x.Code)
		case *event.OwnerClaimed:
			d.log.Debug("session claimed", "epoch", ev.Epoch)
		}
	}
}
