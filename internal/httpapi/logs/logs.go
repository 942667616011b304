package logs

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
)

// maxLooked bounds how much of a log is looked at for one page that is narrowed.
const maxLooked = 16 << 10

// pageBytes is the size past which a page of events ends early.
const pageBytes = 4 << 20

// The events of a page, when its limit is not given and at most.
const (
	defaultEvents = 100
	maxEvents     = 1000
)

// narrowed is a source, and what a page of it shows.
type narrowed struct {
	Source
	types        []event.Type // empty: every type
	since, until time.Time    // zero: no bound
}

// shows says whether a page shows an event of the source.
func (n *narrowed) shows(e *event.Event) bool {
	return (len(n.types) == 0 || slices.Contains(n.types, e.Type)) && !e.Time.Before(n.since)
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

func (h *Handlers) sessionEvents(c *call.Call) error {
	src, err := SessionSource(c, h.Admission)
	if err != nil {
		return err
	}
	return h.events(c, &narrowed{Source: src})
}

func (h *Handlers) runEvents(c *call.Call) error {
	src, err := RunSource(c, h.Admission)
	if err != nil {
		return err
	}
	return h.events(c, &narrowed{Source: src})
}

// events answers with a page of a source.
func (h *Handlers) events(c *call.Call, src *narrowed) error {
	limit, err := c.Number("limit", defaultEvents, 1, maxEvents)
	if err != nil {
		return err
	}
	after, err := c.Number("after", 0, 0, call.MaxSeq)
	if err != nil {
		return err
	}
	if src.types, err = c.Types(); err != nil {
		return err
	}
	if src.since, src.until, err = c.Between(); err != nil {
		return err
	}
	page, next, err := h.collect(c.Ctx(), src, src.Start(after), limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.List[api.Raw]{Items: call.NonNil(page.items), NextCursor: next})
}

// collect reads a page. next is where the following page begins, or empty when
// there is none yet.
func (h *Handlers) collect(ctx context.Context, src *narrowed, after, limit int64) (page logPage, next string, err error) {
	if over, err := src.Past(ctx, h.Store, after); over || err != nil {
		return page, "", err
	}
	for looked := 0; ; {
		events, err := h.Store.ReadBounded(ctx, src.Stream, after, ReadPage)
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
			if src.Passes(e) && src.shows(e) {
				if page.full(limit) {
					return page, strconv.FormatInt(after, 10), nil
				}
				page.add(e)
			}
			after = e.Seq
			if src.Ends(e) {
				return page, "", nil
			}
		}
	}
}

// feed answers with a page of the commit-ordered feed over all streams that
// the caller may see.
func (h *Handlers) feed(c *call.Call) error {
	limit, err := c.Number("limit", defaultEvents, 1, maxEvents)
	if err != nil {
		return err
	}
	after, err := c.Number("after", 0, 0, 1<<62)
	if err != nil {
		return err
	}
	f := eventlog.FeedFilter{SessionID: event.SessionID(c.Query["session_id"]), RunID: event.RunID(c.Query["run_id"])}
	if f.Types, err = c.Types(); err != nil {
		return err
	}
	if f.Since, f.Until, err = c.Between(); err != nil {
		return err
	}
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	if _, resumes := c.Query["after"]; !resumes && !f.Since.IsZero() {
		from, err := Seek(c.Ctx(), h.Store, f.Since.Add(-seekSlack))
		if err != nil {
			return err
		}
		after = int64(from)
	}
	var page logPage
	next := eventlog.Position(after)
	for !page.full(limit) {
		n := min(limit-int64(len(page.items)), ReadPage)
		list, to, err := h.Store.Feed(c.Ctx(), next, int(n), f)
		if err != nil {
			return err
		}
		if len(list) == 0 && to == next {
			break // a page that is merely short says nothing about the end
		}
		next = to
		for i := range list {
			if e := &list[i].Event; e.Stream != event.AuditStream || mayAudit(c) {
				page.add(e)
			}
		}
	}
	return c.JSON(http.StatusOK, api.List[api.Raw]{Items: call.NonNil(page.items), NextCursor: strconv.FormatInt(int64(next), 10)})
}

// seekSlack is by how far the times of the log may go back without that a feed
// from a time on leaves out what it should show.
const seekSlack = time.Minute

// Seek finds the position behind which the events of a time and later stand, as
// far as times grow with positions: by halves, since a position has no meaning
// but its order.
func Seek(ctx context.Context, log Store, t time.Time) (eventlog.Position, error) {
	later := func(at eventlog.Position) (bool, error) { // all that stands behind at is of t or later
		list, _, err := log.Feed(ctx, at, 1, eventlog.FeedFilter{})
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
