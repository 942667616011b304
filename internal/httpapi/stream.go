package httpapi

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

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
	sub := c.cfg.Hub.Follow(src.stream, src.run)
	defer sub.Close()
	log := c.tails.join(src.stream)
	defer c.tails.leave(log)
	f := &follower{call: c, src: src, sub: sub, log: log, cursor: src.start(after), out: http.NewResponseController(c.w)}
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
	defer f.rest()
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

// follower writes one stream to one reader. What it holds is bounded: while it
// writes one page of the log, and one delta; while it waits next to nothing, so
// that ten thousand of them fit into one process.
type follower struct {
	*call
	src    *source
	sub    *live.Subscription
	log    *tail
	cursor int64 // everything up to it was seen
	read   int64 // of that, up to here by us
	out    *http.ResponseController

	buf    *bytes.Buffer // frames that are not written yet; nil: none
	step   string        // of the last event: deltas of this step may be shown
	held   *live.Delta   // a delta whose step the log has not shown yet
	ended  bool          // the source gave its last event
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
	for look := true; ; {
		// Whether a run is over is asked at first and at each beat: else its last
		// event comes with a bell.
		over, overErr := false, error(nil)
		if look {
			over, overErr = f.isOver()
		}
		if err := f.catchUp(look); err != nil {
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
			f.step = f.held.StepID
			f.delta(f.held)
			f.held = nil
		}
		if err := f.flush(); err != nil || f.ended || over {
			return err
		}
		var err error
		if look, err = f.sleep(beat); err != nil {
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

// catchUp writes what the log has after the cursor: up to what was told of, or
// with look up to its end, whatever that was.
func (f *follower) catchUp(look bool) error {
	for !f.ended {
		if head := f.sub.Head(); !look && head > 0 && f.cursor >= head {
			return nil
		}
		events, err := f.log.read(f.ctx(), f.cfg.Store, f.cursor)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			e := &events[i].Event
			f.cursor, f.read = e.Seq, e.Seq
			if e.Type == event.TypeSessionErased {
				return f.erased(e)
			}
			if !f.src.passes(e) {
				continue
			}
			f.deltasBefore(e)
			f.frame(string(e.Type), e.Seq, events[i].wire)
			if f.waiting() >= flushAt {
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
			if f.held = f.sub.Delta(); f.held == nil {
				return
			}
		}
		if f.held.StepID != f.step {
			return
		}
		f.delta(f.held)
		f.held = nil
	}
}

// sleep waits for a reason to look at the log again, and shows deltas of the
// current step meanwhile. look: the reason is none that a bell told of.
func (f *follower) sleep(beat *time.Ticker) (look bool, err error) {
	for {
		f.moreDeltas()
		if err := f.flush(); err != nil || f.held != nil {
			return false, err // the log first: it has the start of that step
		}
		if f.sub.Head() > f.cursor {
			return false, nil
		}
		f.rest()
		select {
		case <-f.sub.Bell:
			if f.cursor > f.read && f.sub.Head() > 0 {
				return true, nil // it may stand behind the end of the run
			}
		case <-beat.C:
			if err := f.still(); err != nil {
				return false, err
			}
			f.buffer().WriteString(": \n\n")
			return true, f.flush()
		case <-f.cfg.Stopping:
			return false, errReaderGone
		case <-f.ctx().Done():
			return false, errReaderGone
		}
	}
}

// moreDeltas takes what waits of the current step, so that one write serves for
// many.
func (f *follower) moreDeltas() {
	for f.held == nil && f.waiting() < flushAt {
		d := f.sub.Delta()
		switch {
		case d == nil:
			return
		case d.StepID != f.step:
			f.held = d
		default:
			f.delta(d)
		}
	}
}

// delta shows a live delta: without an id, so that it moves no cursor (I-17).
func (f *follower) delta(d *live.Delta) { f.frame(d.Type, -1, d.Wire()) }

// frame adds one event of the stream. JSON has no line breaks outside of
// escapes, so that data is one line. A sequence below 0 means no id.
func (f *follower) frame(kind string, seq int64, data ...[]byte) {
	f.buffer()
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
	if f.waiting() == 0 {
		return nil
	}
	if err := f.write(f.buf.Bytes()); err != nil {
		return err
	}
	f.buf.Reset()
	if err := f.out.Flush(); err != nil {
		return errReaderGone
	}
	return nil
}

// buffer gives the buffer for frames. While a follower waits it has none.
func (f *follower) buffer() *bytes.Buffer {
	if f.buf == nil {
		f.buf, _ = f.buffers.Get().(*bytes.Buffer)
	}
	if f.buf == nil {
		f.buf = &bytes.Buffer{}
	}
	return f.buf
}

// waiting is how much waits to be written, in bytes.
func (f *follower) waiting() int {
	if f.buf == nil {
		return 0
	}
	return f.buf.Len()
}

// rest gives the buffer back, for others to use.
func (f *follower) rest() {
	if f.buf == nil {
		return
	}
	f.buf.Reset()                 // what a reader did not take is not for another
	if f.buf.Cap() <= 4*flushAt { // one large event need not cost memory for ever
		f.buffers.Put(f.buf)
	}
	f.buf = nil
}
