package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// callModel runs one attempt of the open step.
func (d *drive) callModel(ctx context.Context, key actKey, st *session.State) outcome {
	c := newCollector(d, key, st)
	err := d.attempt(ctx, st, c)
	if errors.Is(err, eventlog.ErrFenced) {
		return outcome{key: key, lost: true}
	}
	c.close()
	if err == nil && c.answer.Finish == llm.FinishFilter {
		err = llm.Errorf(llm.ContentFilter, "the provider's content filter stopped the answer")
	}
	if err == nil {
		for i := range c.answer.Parts {
			if p := &c.answer.Parts[i]; p.Kind == llm.ToolCallWhole {
				p.Invalid = d.e.checkInput(ctx, st, p.Name, p.Text)
			}
		}
		return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
			if !waitsFor(s, key) {
				return nil, nil
			}
			events := session.Answered(s, &c.answer)
			return events, told(events, c.blobs)
		}}
	}
	failure := llm.AsError(err)
	if errors.Is(ctx.Err(), context.Canceled) {
		failure = llm.Errorf(llm.Aborted, session.TextTurnInterrupted)
	}
	now := d.stamp(ctx)
	jitter := d.e.jitter()
	return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
		if !waitsFor(s, key) {
			return nil, nil
		}
		return session.Failed(s, &c.answer, failure, now, jitter), nil
	}}
}

// told gives the states that events refer to. What the rules did not tell (a
// result that belongs to no call) is not stored: nothing would ever read it.
func told(events []event.Event, states []event.Blob) []event.Blob {
	refs := map[string]bool{}
	for i := range events {
		switch d := events[i].Data.(type) {
		case *event.TextEnded:
			refs[d.State] = true
		case *event.ReasoningEnded:
			refs[d.State] = true
		case *event.ToolRequested:
			refs[d.State] = true
		case *event.ToolCompleted:
			refs[d.State] = true
		case *event.ToolFailed:
			refs[d.State] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(states), func(b event.Blob) bool { return !refs[b.Ref] })
}

// waitsFor says whether the state still waits for the outcome of this attempt.
func waitsFor(s *session.State, key actKey) bool {
	if summarises(s, key) {
		return s.Window.Open.Attempt.Number == key.attempt && s.Window.Open.Attempt.Open
	}
	if s.Active == nil || s.Active.Step == nil {
		return false
	}
	st := s.Active.Step
	return st.ID == key.step && st.Attempt.Number == key.attempt && st.Attempt.Open
}

// attempt builds the request and streams the answer into the collector.
func (d *drive) attempt(ctx context.Context, st *session.State, c *collector) error {
	route, files := st.RouteOf(c.key.step)
	model, err := d.e.cfg.Model(route)
	if err != nil {
		return err
	}
	takes := func(media string) bool { return files && d.e.cfg.Takes(route, media) }
	if n := min(st.FileBytes(takes), d.e.cfg.FileBytes); n > 0 {
		if err := d.e.files.Acquire(ctx, n); err != nil {
			return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
		}
		defer d.e.files.Release(n)
	}
	req, err := d.request(ctx, st, c.key, takes)
	if err != nil {
		return err
	}
	c.maker, c.earlier = route.Maker(), showsHosted(req)
	if err := d.mayAct(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.ModelTimeout)
	defer cancel()
	if err = streamGuarded(ctx, model, req, c.part); err == nil {
		err = c.refused() // an adapter must not go on past what was refused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return llm.Errorf(llm.Transport, "no whole answer within %s", d.e.cfg.ModelTimeout).Because(err)
	}
	if err == nil && c.answer.Finish == "" {
		return llm.Errorf(llm.Truncated, "the stream ended without an end")
	}
	return err
}

// showsHosted says whether a request gives back blocks of the provider's own tools.
func showsHosted(req *llm.Request) bool {
	return slices.ContainsFunc(req.Messages, func(m llm.Message) bool {
		return slices.ContainsFunc(m.Parts, func(c llm.Content) bool { return c.Kind == llm.Hosted })
	})
}

// streamGuarded turns a panic of an adapter into a failed attempt: one answer
// must not end the daemon.
func streamGuarded(ctx context.Context, m llm.Model, req *llm.Request, yield func(llm.Part) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = llm.Errorf(llm.InvalidRequest, "the model adapter could not read the answer").Because(fmt.Errorf("panic: %v", p))
		}
	}()
	return m.Stream(ctx, req, yield)
}
