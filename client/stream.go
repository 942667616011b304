package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// Message is one thing that a stream tells; one member is set.
type Message struct {
	// Event is durable. Over all connections of a stream each comes once, in
	// ascending order of Seq.
	Event *api.Event
	// Delta is live only: some may be missing, and the …ended event that
	// follows holds the whole.
	Delta *api.Delta
	// Synced says, once, that everything which was in the log has come. Its Live
	// says where deltas come from.
	Synced *api.Synced
	// Live says that where deltas come from has changed since Synced or the last
	// Live: one of the Live constants of package api. With api.LiveNone none come
	// until it changes again; no event is missing.
	Live string
	// Gap says that deltas are missing at this place.
	Gap *api.Gap
}

// StreamSession follows a session from after the given sequence, until ctx
// ends, f gives an error (which is returned), or the daemon ends the stream for
// good (*Error). A broken connection is made anew and goes on from the last
// event; see WithRetry.
func (c *Client) StreamSession(ctx context.Context, session string, after int64, f func(Message) error) error {
	s := &stream{client: c, cursor: after, tell: f, request: func() *request { return c.inSession(http.MethodGet, session, "stream") }}
	return s.follow(ctx)
}

// StreamRun is StreamSession of one run. It ends without an error after the run's last event.
func (c *Client) StreamRun(ctx context.Context, run string, after int64, f func(Message) error) error {
	s := &stream{client: c, cursor: after, tell: f, run: true, request: func() *request { return to(http.MethodGet, "v1", "runs", run, "stream") }}
	return s.follow(ctx)
}

// stream is a stream over all its connections.
type stream struct {
	client  *Client
	request func() *request
	run     bool // ends with the run
	cursor  int64
	synced  bool
	live    string // where deltas come from, as was told last
	over    bool   // nothing follows
	tell    func(Message) error
}

// callerError carries an error of the caller's function past the decision to try again.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

func (s *stream) follow(ctx context.Context) error {
	failures := 0
	for {
		before := s.cursor
		err := s.connect(ctx)
		var theirs *callerError
		switch {
		case errors.As(err, &theirs):
			return theirs.err
		case ctx.Err() != nil:
			return ctx.Err()
		case s.over:
			return nil
		case errors.Is(err, errCut) && s.cursor != before:
			failures = 0
			continue // at once: it is we who were slow
		case err == nil:
			err = fmt.Errorf("%w: the stream ended early", ErrUnreachable)
		case !passing(err):
			return err
		}
		if s.cursor != before {
			failures = 0
		}
		failures++
		if err := s.client.pause(ctx, failures, err); err != nil {
			return err
		}
	}
}

// connect reads one connection to its end.
func (s *stream) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := s.request()
	r.header.Set("Accept", "text/event-stream")
	r.header.Set("Last-Event-ID", strconv.FormatInt(s.cursor, 10))
	// A connection can die without a word: silence beyond the heartbeat is its end.
	watch := time.AfterFunc(s.client.idle, func() { cancel(errSilent) })
	defer watch.Stop()
	res, err := s.client.send(ctx, r)
	if err != nil {
		return silentOr(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		s.over = true
		return nil
	}
	lines := newFrames(res.Body, func() { watch.Reset(s.client.idle) })
	for {
		f, err := lines.next()
		if errors.Is(err, errTooLarge) {
			return err
		}
		if err != nil {
			return silentOr(ctx, broken(ctx, err))
		}
		if err := s.take(&f); err != nil || s.over {
			return err
		}
	}
}

// errCut says that the daemon let the stream go, for it was taken too slowly.
var errCut = fmt.Errorf("%w: the stream was taken too slowly", ErrUnreachable)

var errSilent = fmt.Errorf("%w: the stream fell silent", ErrUnreachable)

// silentOr is err, or that the stream fell silent.
func silentOr(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// take tells what a frame says.
func (s *stream) take(f *frame) error {
	switch {
	case f.hasID:
		return s.takeEvent(f)
	case f.event == "synced":
		var m api.Synced
		if json.Unmarshal(f.data, &m) != nil {
			return nil
		}
		if s.synced {
			return s.takeLive(m.Live)
		}
		s.synced, s.live = true, m.Live
		return s.call(Message{Synced: &m})
	case f.event == "live":
		var m api.LiveNote
		if json.Unmarshal(f.data, &m) != nil {
			return nil
		}
		return s.takeLive(m.Live)
	case f.event == "gap":
		var m api.Gap
		if json.Unmarshal(f.data, &m) != nil {
			return nil
		}
		return s.call(Message{Gap: &m})
	case f.event == "cut":
		var m api.Cut
		if json.Unmarshal(f.data, &m) == nil {
			s.cursor = max(s.cursor, m.ResumeAfter) // what lies between is not of this stream
		}
		return errCut
	case f.event == "problem":
		e := &Error{}
		if err := json.Unmarshal(f.data, &e.Problem); err != nil {
			return fmt.Errorf("client: read problem: %w", err)
		}
		e.Status = e.Problem.Status
		return e
	}
	var d api.Delta
	if json.Unmarshal(f.data, &d) != nil || d.Type != f.event {
		return nil // of a kind that this client does not know
	}
	return s.call(Message{Delta: &d})
}

func (s *stream) takeEvent(f *frame) error {
	var e api.Event
	if err := json.Unmarshal(f.data, &e); err != nil {
		return fmt.Errorf("client: read event: %w", err)
	}
	if e.Seq <= s.cursor {
		return nil
	}
	if err := s.call(Message{Event: &e}); err != nil {
		return err
	}
	s.cursor = e.Seq
	if s.run {
		switch e.Type {
		case "run.completed", "run.failed", "run.cancelled", "run.interrupted":
			s.over = true
		}
	}
	return nil
}

// takeLive tells where deltas come from, when that has changed. A daemon of an
// older version says nothing of it.
func (s *stream) takeLive(now string) error {
	if now == "" || now == s.live {
		return nil
	}
	s.live = now
	return s.call(Message{Live: now})
}

func (s *stream) call(m Message) error {
	if err := s.tell(m); err != nil {
		return &callerError{err}
	}
	return nil
}
