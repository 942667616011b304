package engine

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// callSummary runs one attempt of the summary that the compaction under way
// asks for. It goes the way of every attempt; nobody is shown what streams in.
func (d *drive) callSummary(ctx context.Context, key actKey, st *session.State) outcome {
	c := &collector{
		d: d, key: key, run: st.Window.Open.Run, began: time.Now(), quiet: true, asked: map[string]bool{}, strays: map[string]bool{},
	}
	err := d.attempt(ctx, st, c)
	if errors.Is(err, eventlog.ErrFenced) {
		return outcome{key: key, lost: true}
	}
	c.close()
	if err == nil {
		return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
			if !waitsFor(s, key) {
				return nil, nil
			}
			return session.Summarised(s, &c.answer), nil // what a provider sealed in it goes nowhere
		}}
	}
	failure := llm.AsError(err)
	if errors.Is(ctx.Err(), context.Canceled) {
		failure = llm.Errorf(llm.Aborted, session.TextTurnInterrupted)
	}
	now := d.stamp(ctx)
	return d.summaryFailed(key, &c.answer, failure, now, d.e.jitter())
}

func (d *drive) summaryFailed(key actKey, a *session.Answer, failure *llm.Error, now time.Time, jitter float64) outcome {
	return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
		if !waitsFor(s, key) {
			return nil, nil
		}
		return session.SummaryFailed(s, a, failure, now, jitter), nil
	}}
}

// summarises says whether an act is an attempt of the compaction under way.
func summarises(st *session.State, key actKey) bool {
	return st.Window.Open != nil && st.Window.Open.ID == key.step
}

// request builds the request of an attempt.
func (d *drive) request(ctx context.Context, st *session.State, key actKey, takes func(string) bool) (*llm.Request, error) {
	build := st.Request
	summary := summarises(st, key)
	if summary {
		build = st.SummaryRequest
	}
	req, err := build(ctx, session.Sources{Text: d.stored, File: d.file, Takes: takes})
	if err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the request's texts could not be read").Because(err)
	}
	if summary { // tools are withheld (I-10)
		return req, nil
	}
	if req.Tools, err = d.e.toolDefinitions(ctx, st); err != nil {
		return nil, llm.Errorf(llm.Transport, "the tools of the run could not be read").Because(err)
	}
	return req, nil
}

// summaryNeverBegan gives an end to an attempt of a compaction that is recorded
// as started, must not go on and is not in flight. It says whether a compaction
// is under way.
func (d *drive) summaryNeverBegan() bool {
	c := d.st.Window.Open
	if c == nil {
		return false
	}
	key := actKey{step: c.ID, attempt: c.Attempt.Number}
	if c.Attempt.Open && c.Attempt.Epoch == d.st.Epoch && d.acts[key] == nil {
		d.pending = append(d.pending, d.summaryFailed(key, &session.Answer{}, llm.Errorf(llm.Aborted, session.TextTurnInterrupted), time.Time{}, 0))
	}
	return true
}
