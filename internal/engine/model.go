package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// callModel runs one attempt of the open step.
func (d *drive) callModel(ctx context.Context, key actKey, st *session.State) outcome {
	began := time.Now()
	c := &collector{d: d, key: key, run: st.Active.ID, began: began, epoch: st.Epoch, after: st.Head}
	err := d.attempt(ctx, st, c)
	c.answer.Duration = time.Since(began)
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
	now, nerr := d.e.cfg.Log.Now(context.WithoutCancel(ctx))
	if nerr != nil {
		now = time.Now()
	}
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
	if s.Active == nil || s.Active.Step == nil {
		return false
	}
	st := s.Active.Step
	return st.ID == key.step && st.Attempt.Number == key.attempt && st.Attempt.Open
}

// attempt builds the request and streams the answer into the collector.
func (d *drive) attempt(ctx context.Context, st *session.State, c *collector) error {
	model, err := d.e.cfg.Model(st.Active.Created.Route)
	if err != nil {
		return err
	}
	takes := func(media string) bool { return d.e.cfg.Takes(st.Active.Created.Route, media) }
	if n := min(st.FileBytes(takes), d.e.cfg.FileBytes); n > 0 {
		if err := d.e.files.Acquire(ctx, n); err != nil {
			return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
		}
		defer d.e.files.Release(n)
	}
	req, err := st.Request(ctx, session.Sources{Text: d.stored, File: d.file, Takes: takes})
	if err != nil {
		return llm.Errorf(llm.InvalidRequest, "the request's texts could not be read").Because(err)
	}
	if req.Tools, err = d.e.toolDefinitions(ctx, st); err != nil {
		return llm.Errorf(llm.Transport, "the tools of the run could not be read").Because(err)
	}
	c.maker = st.Active.Created.Route.Maker()
	ctx, cancel := context.WithTimeout(ctx, d.e.cfg.ModelTimeout)
	defer cancel()
	err = streamGuarded(ctx, model, req, c.part)
	if errors.Is(err, context.DeadlineExceeded) {
		return llm.Errorf(llm.Transport, "no whole answer within %s", d.e.cfg.ModelTimeout).Because(err)
	}
	if err == nil && c.answer.Finish == "" {
		return llm.Errorf(llm.Truncated, "the stream ended without an end")
	}
	return err
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

// collector gathers the parts of one answer and hands deltas to listeners.
type collector struct {
	d      *drive
	key    actKey
	run    event.RunID
	began  time.Time
	epoch  int64 // in which the attempt was started
	after  int64 // the log's head then
	deltas int64 // so far, whoever hears them
	maker  string
	size   int
	answer session.Answer
	texts  [][]byte // of answer.Parts, while they grow
	blobs  []event.Blob
}

// close puts the collected texts in their parts, in the order of the answer.
func (c *collector) close() {
	for i := range c.answer.Parts {
		if p := &c.answer.Parts[i]; p.Text == "" {
			p.Text = string(c.texts[i])
		}
	}
	slices.SortStableFunc(c.answer.Parts, func(a, b session.OutputPart) int { return a.Index - b.Index })
}

// news is what a piece adds to the size of the answer. A whole call tells again
// what its deltas told.
func (c *collector) news(p llm.Part) int {
	n := len(p.Text) + len(p.State) + len(p.Name)
	if i := c.at(p.Index); p.Kind == llm.ToolCallWhole && i >= 0 {
		n = max(0, n-len(c.texts[i])-len(p.Name))
	}
	return n
}

// part takes one piece of the stream.
func (c *collector) part(p llm.Part) error {
	if c.answer.FirstOutput == 0 {
		c.answer.FirstOutput = max(time.Since(c.began), time.Microsecond)
	}
	if c.size += c.news(p); c.size > c.d.e.cfg.MaxAnswer {
		return llm.Errorf(llm.InvalidRequest, "the answer is larger than %d bytes", c.d.e.cfg.MaxAnswer)
	}
	switch p.Kind {
	case llm.TextStart:
		return c.open(llm.TextEnd, p, event.LiveTextStarted)
	case llm.ReasoningStart:
		return c.open(llm.ReasoningEnd, p, event.LiveReasoningStarted)
	case llm.ToolInputStart:
		return c.open(llm.ToolCallWhole, p, event.LiveInputStarted)
	case llm.TextDelta:
		c.delta(p, event.LiveTextDelta, true)
	case llm.ToolInputDelta:
		c.delta(p, event.LiveInputDelta, true)
	case llm.ReasoningDelta:
		c.delta(p, event.LiveReasoningDelta, false) // thoughts are shown live and not kept
	case llm.TextEnd, llm.ReasoningEnd:
		if o := c.find(p.Index); o != nil {
			o.Open = false
			c.seal(o, p)
		}
	case llm.HostedCall, llm.HostedResult:
		return c.hosted(p)
	case llm.ToolCallWhole:
		o := c.find(p.Index)
		if o == nil {
			if err := c.open(llm.ToolCallWhole, p, event.LiveInputStarted); err != nil {
				return err
			}
			o = c.find(p.Index)
		}
		o.Text, o.Name, o.Open = p.Text, p.Name, false
		c.seal(o, p)
	case llm.UsagePart:
		c.answer.Usage = p.Usage
	case llm.Finish:
		c.answer.Finish, c.answer.RawFinish = p.Reason, p.Raw
		if c.answer.Finish == "" {
			c.answer.Finish = llm.FinishUnknown
		}
	}
	return nil
}

// find gives a part that is open or was.
func (c *collector) find(index int) *session.OutputPart {
	if i := c.at(index); i >= 0 {
		return &c.answer.Parts[i]
	}
	return nil
}

func (c *collector) at(index int) int {
	for i := len(c.answer.Parts) - 1; i >= 0; i-- {
		if c.answer.Parts[i].Index == index {
			return i
		}
	}
	return -1
}

// maxParts bounds the parts of one answer, and so the events of one append.
const maxParts = 512

// open begins a part. Its index is its own: call ids are made of it (I-13).
func (c *collector) open(kind llm.PartKind, p llm.Part, live string) error {
	if len(c.answer.Parts) == maxParts {
		return llm.Errorf(llm.InvalidRequest, "the answer holds more than %d parts", maxParts)
	}
	if c.at(p.Index) >= 0 {
		return llm.Errorf(llm.InvalidRequest, "the answer holds two parts with the index %d", p.Index)
	}
	c.answer.Parts = append(c.answer.Parts, session.OutputPart{Kind: kind, Index: p.Index, Name: p.Name, Open: true})
	c.texts = append(c.texts, nil)
	c.publish(live, p)
	return nil
}

func (c *collector) delta(p llm.Part, live string, keep bool) {
	if i := c.at(p.Index); i >= 0 && keep {
		c.texts[i] = append(c.texts[i], p.Text...)
	}
	c.publish(live, p)
}

// hosted takes a call that the provider runs, or its result: each is a part of its own.
func (c *collector) hosted(p llm.Part) error {
	if err := c.open(p.Kind, p, event.LiveInputStarted); err != nil {
		return err
	}
	o := c.find(p.Index)
	o.Text, o.WireID, o.IsError, o.Open = p.Text, p.WireID, p.IsError, false
	c.seal(o, p)
	return nil
}

// seal keeps what the provider wants back with a part; it never leaves but to its maker.
func (c *collector) seal(o *session.OutputPart, p llm.Part) {
	if len(p.State) > 0 {
		b := event.NewBlob(c.d.id, event.BlobSealed, p.State)
		o.State, o.Maker = b.Ref, c.maker
		c.blobs = append(c.blobs, b)
	}
}

func (c *collector) publish(kind string, p llm.Part) {
	if c.d.e.cfg.Hub == nil {
		return
	}
	stream := c.d.id.Stream()
	c.deltas++
	if !c.d.e.cfg.Hub.Listening(stream) {
		return
	}
	c.d.e.cfg.Hub.Publish(stream, api.Delta{
		Type: kind, RunID: string(c.run), StepID: string(c.key.step), Attempt: c.key.attempt, Part: p.Index, Text: p.Text, Name: p.Name,
		Epoch: c.epoch, Number: c.deltas, After: c.after,
	})
}
