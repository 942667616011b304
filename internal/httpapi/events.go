package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// readPage is how many events one read of the log takes, and with their size
// bounds what one reader holds in memory.
const readPage = 64

// pageBytes is the size past which a page of events ends early.
const pageBytes = 4 << 20

// maxLooked bounds how much of a log is looked at for one page that is narrowed.
const maxLooked = 16 << 10

// source is what a reader follows: a session's stream, or of it one run.
type source struct {
	stream event.Stream
	run    event.RunID // empty: everything
	row    eventlog.RunRow

	// What a page is narrowed to; streams are not.
	types        []event.Type // empty: every type
	since, until time.Time    // zero: no bound
}

// ends says whether e is the last event of the source.
func (s *source) ends(e *event.Event) bool {
	if s.run == "" {
		return false
	}
	switch e.Type {
	case event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted:
		return e.RunID == s.run
	}
	return false
}

// passes says whether e is of the source.
func (s *source) passes(e *event.Event) bool { return s.run == "" || e.RunID == s.run }

// shown says whether a page shows an event of the source.
func (s *source) shown(e *event.Event) bool {
	return (len(s.types) == 0 || slices.Contains(s.types, e.Type)) && !e.Time.Before(s.since)
}

func (c *call) sessionSource() (source, error) {
	row, err := c.find()
	return source{stream: row.ID.Stream()}, err
}

func (c *call) runSource() (source, error) {
	row, err := c.findRun()
	return source{stream: row.SessionID.Stream(), run: row.ID, row: row}, err
}

// start moves a cursor to where the source can have events.
func (s *source) start(after int64) int64 {
	if s.run != "" {
		return max(after, s.row.CreatedSeq-1)
	}
	return after
}

// logPage is a page of events as it goes over the wire.
type logPage struct {
	items []api.Raw
	bytes int
}

func (p *logPage) add(e *event.Event) {
	b := e.AppendWire(nil)
	p.items = append(p.items, b)
	p.bytes += len(b)
}

func (p *logPage) full(limit int64) bool { return int64(len(p.items)) >= limit || p.bytes >= pageBytes }

func sessionEvents(c *call) error {
	src, err := c.sessionSource()
	if err != nil {
		return err
	}
	return c.events(&src)
}

func runEvents(c *call) error {
	src, err := c.runSource()
	if err != nil {
		return err
	}
	return c.events(&src)
}

// events answers with a page of a source.
func (c *call) events(src *source) error {
	limit, err := c.number("limit", defaultEvents, 1, maxEvents)
	if err != nil {
		return err
	}
	after, err := c.number("after", 0, 0, maxSeq)
	if err != nil {
		return err
	}
	if src.types, err = c.types(); err != nil {
		return err
	}
	if src.since, src.until, err = c.between(); err != nil {
		return err
	}
	page, next, err := c.collect(c.Ctx(), src, src.start(after), limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.List[api.Raw]{Items: some(page.items), NextCursor: next})
}

// past says whether a run that is at its end has no event after a sequence. A
// cursor may stand behind the run's last event, from where on the session's log
// need not be searched: unless an event of the run follows close by, its last
// one is looked for from its own first one, or from its output when it has one.
func (c *call) past(ctx context.Context, src *source, after int64) (bool, error) {
	row := &src.row
	from := max(row.CreatedSeq, row.OutputSeq)
	if src.run == "" || !session.Terminal(row.Status) || after < from {
		return false, nil // the end is still to come
	}
	events, err := c.cfg.Store.ReadBounded(ctx, src.stream, after, readPage)
	if err != nil || len(events) == 0 || slices.ContainsFunc(events, func(e event.Event) bool { return src.passes(&e) }) {
		return len(events) == 0, err
	}
	for at := from - 1; ; {
		events, err := c.cfg.Store.ReadBounded(ctx, src.stream, at, readPage)
		if err != nil || len(events) == 0 {
			return true, err
		}
		for i := range events {
			if at = events[i].Seq; src.ends(&events[i]) {
				return at <= after, nil
			}
			if at > after {
				return false, nil // and the end is still to come
			}
		}
	}
}

// collect reads a page. next is where the following page begins, or empty when
// there is none yet.
func (c *call) collect(ctx context.Context, src *source, after, limit int64) (page logPage, next string, err error) {
	if over, err := c.past(ctx, src, after); over || err != nil {
		return page, "", err
	}
	for looked := 0; ; {
		events, err := c.cfg.Store.ReadBounded(ctx, src.stream, after, readPage)
		if err != nil || len(events) == 0 {
			return page, "", err
		}
		if looked += len(events); looked > maxLooked {
			return page, strconv.FormatInt(after, 10), nil
		}
		for i := range events {
			e := &events[i]
			if !src.until.IsZero() && !e.Time.Before(src.until) {
				return page, "", nil
			}
			if src.passes(e) && src.shown(e) {
				if page.full(limit) {
					return page, strconv.FormatInt(after, 10), nil
				}
				page.add(e)
			}
			after = e.Seq
			if src.ends(e) {
				return page, "", nil
			}
		}
	}
}

// feed answers with a page of the commit-ordered feed over all streams that
// the caller may see.
func feed(c *call) error {
	limit, err := c.number("limit", defaultEvents, 1, maxEvents)
	if err != nil {
		return err
	}
	after, err := c.number("after", 0, 0, 1<<62)
	if err != nil {
		return err
	}
	f := eventlog.FeedFilter{SessionID: event.SessionID(c.query["session_id"]), RunID: event.RunID(c.query["run_id"])}
	if f.Types, err = c.types(); err != nil {
		return err
	}
	if f.Since, f.Until, err = c.between(); err != nil {
		return err
	}
	if f.UserID, err = c.owner(); err != nil {
		return err
	}
	if _, resumes := c.query["after"]; !resumes && !f.Since.IsZero() {
		from, err := c.seek(c.Ctx(), f.Since.Add(-seekSlack))
		if err != nil {
			return err
		}
		after = int64(from)
	}
	var page logPage
	next := eventlog.Position(after)
	for !page.full(limit) {
		n := min(limit-int64(len(page.items)), readPage)
		list, to, err := c.cfg.Store.Feed(c.Ctx(), next, int(n), f)
		if err != nil {
			return err
		}
		if len(list) == 0 && to == next {
			break // a page that is merely short says nothing about the end
		}
		next = to
		for i := range list {
			if e := &list[i].Event; e.Stream != event.AuditStream || c.mayAudit() {
				page.add(e)
			}
		}
	}
	return c.JSON(http.StatusOK, api.List[api.Raw]{Items: some(page.items), NextCursor: strconv.FormatInt(int64(next), 10)})
}

// seekSlack is by how far the times of the log may go back without that a feed
// from a time on leaves out what it should show.
const seekSlack = time.Minute

// seek finds the position behind which the events of a time and later stand, as
// far as times grow with positions: by halves, since a position has no meaning
// but its order.
func (c *call) seek(ctx context.Context, t time.Time) (eventlog.Position, error) {
	later := func(at eventlog.Position) (bool, error) { // all that stands behind at is of t or later
		list, _, err := c.cfg.Store.Feed(ctx, at, 1, eventlog.FeedFilter{})
		return len(list) == 0 || !list[0].Event.Time.Before(t), err
	}
	low, high := eventlog.Position(-1), eventlog.Position(0) // later does not hold at low, and holds at high
	for {
		ok, err := later(high)
		if err != nil {
			return 0, err
		}
		if ok {
			break
		}
		low, high = high, max(2*high, 1)
	}
	for high-low > 1 {
		mid := low + (high-low)/2
		ok, err := later(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}
