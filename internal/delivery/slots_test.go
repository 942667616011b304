package delivery

import (
	"context"
	"testing"
)

// Once the drain has begun no attempt does, though there is a place; and the place
// is there for others.
func TestNoPlaceInADrain(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	draining := make(chan struct{})
	close(draining)
	s := newSlots(1, 1)
	for range 64 {
		if _, ok := s.take(t.Context(), draining, fresh); ok {
			t.Fatal("a place in a drain")
		}
		if _, ok := s.take(over, nil, fresh); ok {
			t.Fatal("a place for who is at the end")
		}
	}
	p, ok := s.take(t.Context(), nil, fresh)
	if !ok || s.all != 1 {
		t.Fatalf("%d places are taken", s.all)
	}
	if s.free(p); s.all != 0 || s.used != [standings]int{} {
		t.Errorf("%d places are taken: %v", s.all, s.used)
	}
}
