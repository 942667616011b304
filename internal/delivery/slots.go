package delivery

import (
	"container/list"
	"context"
	"sync"
)

// standing is what is known of a target when it asks for a place.
type standing int

const (
	fresh   standing = iota // nothing: it was not tried in this process life
	proven                  // it answered last time
	failing                 // it did not, or has not for a while now
	standings
)

// slots are the places of attempts in flight, over all targets. They are shared
// in such a way that receivers which hang or fail keep their hands off what those
// that answer need (I-25): targets whose last attempt failed have a few places,
// those that nobody knows yet leave as many again, or half of all, to those that
// answered. Who asks first gets one first, as far as its kind has any left.
type slots struct {
	mu      sync.Mutex
	total   int
	most    [standings]int
	used    [standings]int
	all     int
	waiting [standings]list.List // of *place
	ticket  int64
	slow    list.List // of *place: in flight for long, to be counted as failing when there is room
}

// place is one place, or a wait for one.
type place struct {
	as      standing
	ticket  int64
	granted chan struct{}
	at      *list.Element // in waiting, or in slow
	held    bool
}

func newSlots(total, fails int) *slots {
	fails = min(fails, max(total/2, 1))
	return &slots{total: total, most: [standings]int{fresh: max(total-2*fails, (total+1)/2), proven: total, failing: fails}}
}

// take waits for a place; false: ctx or stop ended the wait, or came before it,
// whether or not there was a place.
func (s *slots) take(ctx context.Context, stop <-chan struct{}, as standing) (*place, bool) {
	s.mu.Lock()
	s.ticket++
	p := &place{as: as, ticket: s.ticket, granted: make(chan struct{})}
	p.at = s.waiting[as].PushBack(p)
	s.grant()
	s.mu.Unlock()
	select {
	case <-p.granted:
	case <-stop:
	case <-ctx.Done():
	}
	select {
	case <-stop:
	case <-ctx.Done():
	default:
		return p, true
	}
	s.free(p)
	return nil, false
}

// free gives a place back, or ends the wait for one.
func (s *slots) free(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(p)
	if p.held {
		p.held = false
		s.used[p.as]--
		s.all--
	}
	s.grant()
}

// leave takes a place out of whatever list it stands in; the lock is held.
func (s *slots) leave(p *place) {
	switch {
	case p.at == nil:
		return
	case p.held:
		s.slow.Remove(p.at)
	default:
		s.waiting[p.as].Remove(p.at)
	}
	p.at = nil
}

// drag says that an attempt takes long: its place counts as one of those that
// fail, as soon as there is one, and so leaves its own to others.
func (s *slots) drag(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.held && p.as != failing && p.at == nil {
		p.at = s.slow.PushBack(p)
		s.grant()
	}
}

// now counts a place that is held as another kind's, also past its bound.
func (s *slots) now(p *place, as standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.held && p.as != as {
		s.leave(p)
		s.used[p.as]--
		p.as = as
		s.used[as]++
		s.grant()
	}
}

// grant hands out what there is; the lock is held.
func (s *slots) grant() {
	for s.used[failing] < s.most[failing] && s.slow.Len() > 0 {
		p := s.slow.Remove(s.slow.Front()).(*place)
		p.at = nil
		s.used[p.as]--
		p.as = failing
		s.used[failing]++
	}
	for s.all < s.total {
		var next *place
		for as := range standings {
			if front := s.waiting[as].Front(); front != nil && s.used[as] < s.most[as] {
				if p := front.Value.(*place); next == nil || p.ticket < next.ticket {
					next = p
				}
			}
		}
		if next == nil {
			return
		}
		s.leave(next)
		next.held = true
		s.used[next.as]++
		s.all++
		close(next.granted)
	}
}

// wanted says whether somebody waits who could have this place.
func (s *slots) wanted(p *place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for as := range standings {
		if s.waiting[as].Len() > 0 && (as == p.as || s.used[as] < s.most[as]) {
			return true
		}
	}
	return false
}
