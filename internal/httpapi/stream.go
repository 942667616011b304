package httpapi

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/session"
)

func sessionStream(c *call) error {
	src, err := c.sessionSource()
	if err != nil {
		return err
	}
	return c.stream(&src)
}

func runStream(c *call) error {
	src, err := c.runSource()
	if err != nil {
		return err
	}
	return c.stream(&src)
}

// stream follows a source as server-sent events (HTML Living Standard, section
// 9.2): first everything durable after the cursor, then what comes, each event
// once and ascending (I-18).
//
// The hub is listened to before the log is read, so that nothing falls between
// replay and live. Its bells only say "look again"; every durable event comes
// from the log. A heartbeat looks too, which covers a bell that was lost.
func (c *call) stream(src *source) error {
	after, err := c.after()
	if err != nil {
		return err
	}
	if !c.acquire() {
		return errBusy
	}
	defer c.release()
	sub := c.cfg.Hub.Subscribe(src.stream)
	defer sub.Close()
	f := &follower{call: c, src: src, sub: sub, cursor: src.start(after), out: http.NewResponseController(c.w)}
	if over, err := f.nothingLeft(); err != nil {
		return err
	} else if over {
		return c.noContent() // which tells a browser not to connect again
	}
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies that buffer would hold events back
	c.began = true
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return nil
	}
	c.readers.Add(1)
	defer c.readers.Add(-1)
	err = f.follow()
	switch {
	case err == nil, errors.Is(err, errReaderGone), c.ctx().Err() != nil:
		return nil
	}
	// Too late for a status: the problem is the last thing in the stream. What
	// is our own fault is logged by the caller; the client comes again.
	if p := problemOf(err); p.Status < 500 {
		if body, err := encode(p); err == nil {
			f.frame("problem", -1, bytes.TrimSpace(body))
			_ = f.flush() // the stream ends, whether it is heard or not
		}
		return nil
	}
	return err
}

// errReaderGone says that the reader hung up, or was too slow.
var errReaderGone = errors.New("the reader is gone")

// follower writes one stream to one reader. What it holds is bounded: one page
// of the log, one delta, and the hub's buffer.
type follower struct {
	*call
	src    *source
	sub    *live.Subscription
	cursor int64 // everything up to it was seen
	out    *http.ResponseController

	buf    bytes.Buffer // frames that are not written yet
	step   string       // of the last event: deltas of this step may be shown
	held   *api.Delta   // a delta whose step the log has not shown yet
	ended  bool         // the source gave its last event
	synced bool
}

// nothingLeft says whether the source is a run that is over and has no event
// after the cursor.
func (f *follower) nothingLeft() (bool, error) {
	return f.past(f.ctx(), f.src, f.cursor)
}

func (f *follower) follow() error {
	beat := time.NewTicker(f.cfg.Heartbeat)
	defer beat.Stop()
	for {
		over, overErr := f.isOver()
		if err := f.catchUp(); err != nil {
			return err
		}
		if overErr != nil {
			return overErr
		}
		if !f.synced && !f.ended {
			f.synced = true
			f.frame("synced", -1, strconv.AppendInt([]byte(`{"seq":`), f.cursor, 10), []byte("}"))
		}
		if f.held != nil { // the log has been read since it came
			f.delta(*f.held)
			f.step, f.held = f.held.StepID, nil
		}
		if err := f.flush(); err != nil || f.ended || over {
			return err
		}
		if err := f.sleep(beat); err != nil {
			return err
		}
	}
}

// isOver says whether the run was at its end before the log is read now: then
// the log has all of it.
func (f *follower) isOver() (bool, error) {
	if f.src.run == "" {
		return false, nil
	}
	row, err := f.cfg.Admission.FindRun(f.ctx(), f.who.Caller, f.src.run)
	return err == nil && session.Terminal(row.Status), err
}

// catchUp writes what the log has after the cursor.
func (f *follower) catchUp() error {
	for !f.ended {
		events, err := f.cfg.Store.ReadBounded(f.ctx(), f.src.stream, f.cursor, readPage)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			e := &events[i]
			f.cursor = e.Seq
			if e.Type == event.TypeSessionErased {
				return f.erased(e)
			}
			if !f.src.passes(e) {
				continue
			}
			f.deltasBefore(e)
			f.frame(string(e.Type), e.Seq, e.AppendWire(nil))
			if f.buf.Len() >= flushAt {
				if err := f.flush(); err != nil {
					return err
				}
			}
			if f.ended = f.src.ends(e); f.ended {
				break
			}
		}
		if err := f.flush(); err != nil {
			return err
		}
		select {
		case <-f.cfg.Stopping:
			return errReaderGone
		default:
		}
	}
	return nil
}

// erased ends the stream of a session that was erased.
func (f *follower) erased(e *event.Event) error {
	if f.src.passes(e) {
		f.frame(string(e.Type), e.Seq, e.AppendWire(nil))
	}
	return eventlog.ErrErased
}

// deltasBefore shows the deltas that came before e. They were published before
// e was appended, so they wait already. Those of a later step stay, and none
// comes before the start of its attempt.
func (f *follower) deltasBefore(e *event.Event) {
	if e.StepID == "" {
		return
	}
	f.step = string(e.StepID)
	if e.Type == event.TypeStepStarted || e.Type == event.TypeModelCallStarted {
		return
	}
	for {
		if f.held == nil {
			select {
			case d := <-f.sub.Deltas:
				f.held = &d
			default:
				return
			}
		}
		if f.held.StepID != f.step {
			return
		}
		f.delta(*f.held)
		f.held = nil
	}
}

// sleep waits for a reason to look at the log again, and shows deltas of the
// current step meanwhile.
func (f *follower) sleep(beat *time.Ticker) error {
	for {
		select {
		case <-f.sub.Bell:
			return nil
		case d := <-f.sub.Deltas:
			if d.StepID != f.step {
				f.held = &d
				return nil // the log first: it has the start of that step
			}
			f.delta(d)
			f.moreDeltas()
			if err := f.flush(); err != nil || f.held != nil {
				return err
			}
		case <-beat.C:
			if err := f.still(); err != nil {
				return err
			}
			f.buf.WriteString(": \n\n")
			return f.flush()
		case <-f.cfg.Stopping:
			return errReaderGone
		case <-f.ctx().Done():
			return errReaderGone
		}
	}
}

// moreDeltas takes what waits besides, so that one write serves for many.
func (f *follower) moreDeltas() {
	for f.buf.Len() < flushAt {
		select {
		case d := <-f.sub.Deltas:
			if d.StepID != f.step {
				f.held = &d
				return
			}
			f.delta(d)
		default:
			return
		}
	}
}

// delta shows a live delta: without an id, so that it moves no cursor (I-17).
func (f *follower) delta(d api.Delta) {
	if f.src.run != "" && d.RunID != string(f.src.run) {
		return
	}
	if body, err := encode(d); err == nil {
		f.frame(d.Type, -1, bytes.TrimSpace(body))
	}
}

// frame adds one event of the stream. JSON has no line breaks outside of
// escapes, so that data is one line. A sequence below 0 means no id.
func (f *follower) frame(kind string, seq int64, data ...[]byte) {
	f.buf.WriteString("event: ")
	f.buf.WriteString(kind)
	if seq >= 0 {
		f.buf.WriteString("\nid: ")
		f.buf.WriteString(strconv.FormatInt(seq, 10))
	}
	f.buf.WriteString("\ndata: ")
	for _, d := range data {
		f.buf.Write(d)
	}
	f.buf.WriteString("\n\n")
}

// flushAt is the size at which frames are written, in bytes.
const flushAt = 32 << 10

// flush writes the frames. A reader that does not take them within the write
// timeout is let go: it comes again with its last id.
func (f *follower) flush() error {
	if f.buf.Len() == 0 {
		return nil
	}
	if err := f.write(f.buf.Bytes()); err != nil {
		return err
	}
	f.buf.Reset()
	if f.buf.Cap() > 4*flushAt {
		f.buf = bytes.Buffer{} // one large event need not cost memory for ever
	}
	if err := f.out.Flush(); err != nil {
		return errReaderGone
	}
	return nil
}
