package engine

import (
	"container/list"
	"context"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// blobCache keeps recently used blobs, bounded in bytes; the least recently
// used goes first. Blobs never change, so the cache is never wrong.
type blobCache struct {
	mu    sync.Mutex
	limit int
	size  int
	order *list.List // of *blobEntry, most recent in front
	byKey map[blobKey]*list.Element
}

type blobKey struct {
	owner event.SessionID
	ref   string
}

type blobEntry struct {
	key  blobKey
	data []byte
}

func newBlobCache(limit int) *blobCache {
	return &blobCache{limit: limit, order: list.New(), byKey: map[blobKey]*list.Element{}}
}

func (c *blobCache) get(owner event.SessionID, ref string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byKey[blobKey{owner, ref}]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(el)
	return el.Value.(*blobEntry).data, true
}

func (c *blobCache) put(owner event.SessionID, ref string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := blobKey{owner, ref}
	if _, ok := c.byKey[key]; ok || len(data) > c.limit/4 {
		return
	}
	c.byKey[key] = c.order.PushFront(&blobEntry{key, data})
	for c.size += len(data); c.size > c.limit; {
		last := c.order.Back()
		e := c.order.Remove(last).(*blobEntry)
		delete(c.byKey, e.key)
		c.size -= len(e.data)
	}
}

// blob reads a blob through the cache.
func (e *Engine) blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, error) {
	if data, ok := e.blobs.get(owner, ref); ok {
		return data, nil
	}
	data, _, err := e.cfg.Log.Blob(ctx, owner, ref)
	if err != nil {
		return nil, err
	}
	e.blobs.put(owner, ref, data)
	return data, nil
}
