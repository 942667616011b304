package sqlite

import (
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// headsKept is the number of heads in one generation of the cache.
const headsKept = 16 << 10

// headCache remembers the ends of the streams that were used last. It may:
// the lock of the directory makes this process the only writer. It holds what
// is committed, and only the writer touches it. Of two generations the older
// one is dropped when the younger is full.
type headCache struct {
	young, old map[event.Stream]eventlog.Head
}

func (c *headCache) get(s event.Stream) (eventlog.Head, bool) {
	if h, ok := c.young[s]; ok {
		return h, true
	}
	h, ok := c.old[s]
	if ok {
		c.put(s, h)
	}
	return h, ok
}

func (c *headCache) put(s event.Stream, h eventlog.Head) {
	if c.young == nil || len(c.young) >= headsKept {
		c.young, c.old = make(map[event.Stream]eventlog.Head), c.young
	}
	c.young[s] = h
}
