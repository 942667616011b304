// Package sse follows the log of a session, or of one run, as server-sent events:
// first everything durable after a cursor, then what comes, and between them live
// deltas, which are never truth. A reader that is too slow is let go.
package sse

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Store is what is read of logs that are followed.
type Store interface {
	logs.Reader
	Head(ctx context.Context, s event.Stream) (eventlog.Head, error)
}

// Config says what is followed, and how.
type Config struct {
	Admission *admission.Admission
	Store     Store
	Hub       *live.Hub
	// Live says where live deltas of a stream come from, one of the Live constants
	// of package api. It is asked often and does not block. Nil: from this process,
	// always.
	Live      func(s event.Stream) string
	Heartbeat time.Duration // between comments of a silent stream
}

// Handlers answer with streams.
type Handlers struct {
	cfg     Config
	tails   tails
	buffers sync.Pool    // of *bytes.Buffer, empty
	readers atomic.Int64 // of open event streams
}

// New makes them.
func New(cfg Config) *Handlers { return &Handlers{cfg: cfg} }

// Routes are the operations that follow a log.
func (h *Handlers) Routes() []call.Route { return h.streamRoutes() }

// Readers is how many streams are open now.
func (h *Handlers) Readers() int { return int(h.readers.Load()) }

func (h *Handlers) sessionStream(c *call.Call) error {
	src, err := logs.SessionSource(c, h.cfg.Admission)
	if err != nil {
		return err
	}
	return h.stream(c, &src)
}

func (h *Handlers) runStream(c *call.Call) error {
	src, err := logs.RunSource(c, h.cfg.Admission)
	if err != nil {
		return err
	}
	return h.stream(c, &src)
}

// stream follows a source as server-sent events (HTML Living Standard, section
// 9.2): first everything durable after the cursor, then what comes, each event
// once and ascending (I-18).
//
// The order matters: listen to the hub, read where the log ends, replay up to
// there, say synced, go on. So nothing falls between replay and live, and a
// busy session does not put off the marker. The hub's bells only say "look
// again"; every durable event comes from the log. A heartbeat looks too, which
// covers a bell that was lost.
func (h *Handlers) stream(c *call.Call, src *logs.Source) error {
	after, err := c.After()
	if err != nil {
		return err
	}
	if err := c.Acquire(); err != nil {
		return err
	}
	defer c.Release()
	sub := h.cfg.Hub.Follow(src.Stream, src.Run)
	defer sub.Close()
	log := h.tails.join(src.Stream)
	defer h.tails.leave(log)
	end, err := h.cfg.Store.Head(c.Ctx(), src.Stream)
	if err != nil {
		return err
	}
	f := &follower{
		Call: c, streams: h, src: src, sub: sub, log: log, cursor: src.Start(after), out: http.NewResponseController(c.W),
		mark: end.Seq, sight: sight{epoch: end.Epoch}, shifts: h.cfg.Hub.Shifts(),
	}
	if over, err := f.nothingLeft(); err != nil {
		return err
	} else if over {
		return c.NoContent() // which tells a browser not to connect again
	}
	header := c.W.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // proxies that buffer would hold events back
	c.Begin(http.StatusOK)
	if c.R.Method == http.MethodHead {
		return nil
	}
	h.readers.Add(1)
	defer h.readers.Add(-1)
	err = f.follow()
	defer f.rest()
	switch {
	case errors.Is(err, errReaderSlow):
		f.cut()
		return nil
	case err == nil, errors.Is(err, exchange.ErrGone), c.Ctx().Err() != nil:
		return nil
	}
	// Too late for a status: the problem is the last thing in the stream. What
	// is our own fault is logged by the caller; the client comes again.
	if p := exchange.ProblemOf(err); p.Status < 500 {
		if body, err := exchange.Encode(p); err == nil {
			f.frame("problem", -1, bytes.TrimSpace(body))
			_ = f.flush() // the stream ends, whether it is heard or not
		}
		return nil
	}
	return err
}

// errReaderSlow says that the reader took what it was sent, and too late.
var errReaderSlow = errors.New("the reader is too slow")

// follower writes one stream to one reader. What it holds is bounded: while it
// writes one page of the log, and one delta; while it waits next to nothing, so
// that ten thousand of them fit into one process.
type follower struct {
	*call.Call
	streams *Handlers
	src     *logs.Source
	sub     *live.Subscription
	log     *tail
	cursor  int64 // everything up to it was seen
	read    int64 // of that, up to here by us
	out     *http.ResponseController

	buf    *bytes.Buffer // frames that are not written yet; nil: none
	mark   int64         // where the log ended when the reader came
	ended  bool          // the source gave its last event
	synced bool
	where  string // where live deltas come from, as the reader was told
	shifts uint64 // of the hub, when that was looked at
	sight
}

// nothingLeft says whether the source is a run that is over and has no event
// after the cursor.
func (f *follower) nothingLeft() (bool, error) {
	return f.src.Past(f.Ctx(), f.streams.cfg.Store, f.cursor)
}

func (f *follower) follow() error {
	beat := time.NewTicker(f.streams.cfg.Heartbeat)
	defer beat.Stop()
	for look := true; ; {
		// Whether a run is over is asked at first and at each beat: else its last
		// event comes with a bell.
		over, overErr := false, error(nil)
		if look {
			over, overErr = f.isOver()
		}
		f.sync(f.mark)
		if err := f.catchUp(look); err != nil {
			return err
		}
		if overErr != nil {
			return overErr
		}
		if !f.ended {
			f.sync(0)
			f.tellLive(look)
			f.showHeld() // the log has been read since it came
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

// sync says once that the replay has come to a sequence.
func (f *follower) sync(to int64) {
	if f.synced || f.ended || f.cursor < to {
		return
	}
	f.synced = true
	f.where = f.reach()
	f.data("synced", api.Synced{Seq: f.cursor, Live: f.where})
}

// tellLive says where live deltas come from, when that has changed.
func (f *follower) tellLive(look bool) {
	if n := f.streams.cfg.Hub.Shifts(); look || n != f.shifts || f.claimed {
		f.shifts, f.claimed = n, false
		if now := f.reach(); now != f.where {
			f.where = now
			f.data("live", api.LiveNote{Live: now})
		}
	}
}

func (f *follower) reach() string {
	if f.streams.cfg.Live == nil {
		return api.LiveLocal
	}
	return f.streams.cfg.Live(f.src.Stream)
}

// isOver says whether the run was at its end before the log is read now: then
// the log has all of it.
func (f *follower) isOver() (bool, error) {
	if f.src.Run == "" {
		return false, nil
	}
	row, err := f.streams.cfg.Admission.FindRun(f.Ctx(), f.Who.Caller, f.src.Run)
	return err == nil && session.Terminal(row.Status), err
}

// catchUp writes what the log has after the cursor: up to what was told of, or
// with look up to its end, whatever that was.
func (f *follower) catchUp(look bool) error {
	for !f.ended {
		if head := f.sub.Head(); !look && head > 0 && f.cursor >= head {
			return nil
		}
		events, err := f.log.read(f.Ctx(), f.streams.cfg.Store, f.cursor)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			e := &events[i].Event
			f.cursor, f.read = e.Seq, e.Seq
			if e.Type == event.TypeSessionErased {
				return f.erased(e)
			}
			if f.src.Passes(e) {
				f.deltasBefore(e)
				f.frame(string(e.Type), e.Seq, events[i].wire)
				f.ended = f.src.Ends(e)
			}
			f.see(e)
			f.sync(f.mark)
			if f.waiting() >= flushAt {
				if err := f.flush(); err != nil {
					return err
				}
			}
			if f.ended {
				break
			}
		}
		if err := f.flush(); err != nil {
			return err
		}
		select {
		case <-f.Stopping:
			return exchange.ErrGone
		default:
		}
	}
	return nil
}

// erased ends the stream of a session that was erased.
func (f *follower) erased(e *event.Event) error {
	if f.src.Passes(e) {
		f.frame(string(e.Type), e.Seq, e.AppendWire(nil))
	}
	return eventlog.ErrErased
}

// sleep waits for a reason to look at the log again, and shows deltas of the
// current step meanwhile. look: the reason is none that a bell told of.
func (f *follower) sleep(beat *time.Ticker) (look bool, err error) {
	for {
		f.moreDeltas()
		if err := f.flush(); err != nil {
			return false, err
		}
		if f.held != nil { // the log first: it has the start of that attempt
			return f.held.After > f.sub.Head(), nil // another node's bells may come later than its deltas
		}
		if f.streams.cfg.Hub.Shifts() != f.shifts {
			return false, nil
		}
		if f.sub.Head() > f.cursor {
			return false, nil
		}
		f.rest()
		if f.Stops() { // all that was told of before is shown by now
			return false, exchange.ErrGone
		}
		select {
		case <-f.sub.Bell:
			if f.cursor > f.read && f.sub.Head() > 0 && !f.Stops() {
				return true, nil // it may stand behind the end of the run
			}
		case <-beat.C:
			if f.Stops() {
				continue
			}
			if err := f.Still(); err != nil {
				return false, err
			}
			f.buffer().WriteString(": \n\n")
			return true, f.flush()
		case <-f.Stopping: // looked at above, behind what came in the same moment
		case <-f.Ctx().Done():
			return false, exchange.ErrGone
		}
	}
}

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

// data is frame of what is no event: a marker, without an id.
func (f *follower) data(kind string, v any) {
	b, err := exchange.Encode(v)
	if err != nil {
		panic(err) // strings and numbers
	}
	f.frame(kind, -1, bytes.TrimSpace(b))
}

// flush writes the frames. A reader that does not take 32 KiB of them within
// the write timeout is let go. If it takes them within half as long again, it
// is told where to go on; else it comes again with its last id.
func (f *follower) flush() error {
	if f.waiting() == 0 {
		return nil
	}
	slow := false
	for b := f.buf.Bytes(); len(b) > 0; {
		n := min(len(b), exchange.Piece)
		began := time.Now()
		if !slow { // else that is all the time it has
			_ = f.out.SetWriteDeadline(began.Add(f.WriteTimeout * 3 / 2)) // not supported: not a connection
		}
		if _, err := f.W.Write(b[:n]); err != nil {
			return exchange.ErrGone
		}
		if err := f.out.Flush(); err != nil {
			return exchange.ErrGone
		}
		slow = slow || time.Since(began) >= f.WriteTimeout
		b = b[n:]
	}
	f.buf.Reset()
	if slow {
		return errReaderSlow
	}
	f.Extend(f.W)
	return nil
}

// cut says where a reader that was too slow goes on.
func (f *follower) cut() {
	f.data("cut", api.Cut{ResumeAfter: f.cursor, Reason: api.GapSlow})
	if _, err := f.W.Write(f.buf.Bytes()); err == nil {
		_ = f.out.Flush() // the stream ends, whether it is heard or not
	}
}

// buffer gives the buffer for frames. While a follower waits it has none.
func (f *follower) buffer() *bytes.Buffer {
	if f.buf == nil {
		f.buf, _ = f.streams.buffers.Get().(*bytes.Buffer)
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
		f.streams.buffers.Put(f.buf)
	}
	f.buf = nil
}
