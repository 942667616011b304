package storecore

import (
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A position is the place of a row in the order of commits and the index of an
// event in it.
const indexBits = 12

// It does not compile when an entry may hold more events than an index has numbers.
const _ = uint(1<<indexBits - eventlog.MaxEvents)

// PositionOf is the position of an event of a row.
func PositionOf(row int64, index int) eventlog.Position {
	return eventlog.Position(row<<indexBits | int64(index))
}

// PlaceOf is the row and the index of a position.
func PlaceOf(p eventlog.Position) (row, index int64) {
	return int64(p >> indexBits), int64(p & (1<<indexBits - 1))
}

// FeedRows bounds the rows that one call of Feed looks at, FeedWindow those that
// one statement of a filtered feed does.
const (
	FeedRows   = 4096
	FeedWindow = 512
)

// FeedPage is a page of the feed in the making.
type FeedPage struct {
	List   []eventlog.Positioned
	After  eventlog.Position // where it goes on
	Limit  int
	Bytes  int // that are left; one event may take more
	Filter eventlog.FeedFilter
	Over   bool // the time came at which the feed ends
}

// Full says whether the page takes no more.
func (p *FeedPage) Full() bool { return len(p.List) >= p.Limit || p.Bytes < 0 }

// Add adds the events of a row that stand after start and pass. True: the page
// was full before the end of the row, and its position stands within it.
func (p *FeedPage) Add(row int64, start eventlog.Position, events []event.Event) bool {
	for i := range events {
		at := PositionOf(row, i)
		if at <= start || !p.Filter.Passes(&events[i]) {
			continue
		}
		if p.Full() {
			p.After = at - 1
			return true
		}
		p.List = append(p.List, eventlog.Positioned{Position: at, Event: events[i]})
		p.Bytes -= len(events[i].Raw)
	}
	return false
}

// Read adds what the window of rows behind the page's position has; next gives
// the rows one after the other, and false when there are no more. A row that the
// filter holds back has no envelopes.
func (p *FeedPage) Read(next func() (row int64, r *event.Row, ok bool, err error)) (n int, err error) {
	start := p.After
	for !p.Full() {
		row, r, ok, err := next()
		if err != nil || !ok {
			return n, err
		}
		n++
		if !p.Filter.Until.IsZero() && !r.Time.Before(p.Filter.Until) {
			p.Over = true
			return n, nil
		}
		if r.Meta != nil {
			events, err := r.Events()
			if err != nil {
				return n, err
			}
			if p.Add(row, start, events) {
				return n, nil
			}
		}
		p.After = PositionOf(row, r.Count-1)
	}
	return n, nil
}
