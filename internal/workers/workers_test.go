package workers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/workers"
)

// tally counts looks by key.
type tally struct {
	mu    sync.Mutex
	looks map[string]int
}

func (t *tally) look(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looks == nil {
		t.looks = map[string]int{}
	}
	t.looks[key]++
	return t.looks[key]
}

func (t *tally) want(tt *testing.T, key string, n int) {
	tt.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looks[key] != n {
		tt.Errorf("%s was looked at %d times, want %d", key, t.looks[key], n)
	}
}

func wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

// A wake that comes while a key is worked on is a look more, also when work
// says that nothing is due for hours; a rest takes such wakes back.
func TestNoWakeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		p := workers.New(0, func(_ context.Context, key string, w *workers.Worker) time.Time {
			n.look(key)
			time.Sleep(time.Minute)
			if key == "rests" {
				w.Rest()
			}
			return time.Now().Add(6 * time.Hour)
		})
		for _, key := range []string{"due", "rests"} {
			p.Wake(key)
			synctest.Wait()
			p.Wake(key) // while it works
		}
		wait(10 * time.Minute)
		n.want(t, "due", 2)
		n.want(t, "rests", 1)
		wait(6 * time.Hour)
		n.want(t, "due", 3)
		n.want(t, "rests", 2)
		p.Wake("due") // at work or not, before its time
		wait(2 * time.Minute)
		n.want(t, "due", 4)
		p.Stop(t.Context())
	})
}

// At most so many keys are worked on; those that wait come in order, and a key
// that is woken again and again goes behind them.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		var p *workers.Pool[string]
		var mu sync.Mutex
		working, most := 0, 0
		p = workers.New(2, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			mu.Lock()
			working++
			most = max(most, working)
			mu.Unlock()
			n.look(key)
			if key == "hog" {
				p.Wake(key)
			}
			time.Sleep(time.Second)
			mu.Lock()
			working--
			mu.Unlock()
			return time.Time{}
		})
		for _, key := range []string{"hog", "a", "b", "c", "d", "b"} {
			p.Wake(key)
		}
		wait(5 * time.Second)
		for _, key := range []string{"a", "b", "c", "d"} {
			n.want(t, key, 1)
		}
		if most != 2 {
			t.Errorf("%d keys were worked on at once", most)
		}
		p.Stop(t.Context())
	})
}

// A stop tells work to begin nothing, waits, and ends the context when the
// patience is over; wakes and timers count no more. A second stop is harmless.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		p := workers.New(0, func(ctx context.Context, key string, w *workers.Worker) time.Time {
			n.look(key)
			switch key {
			case "drains":
				<-w.Draining
			case "hangs":
				<-ctx.Done()
			}
			return time.Now().Add(time.Minute)
		})
		for _, key := range []string{"drains", "hangs", "due"} {
			p.Wake(key)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		p.Stop(ctx)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the stop took %v", took)
		}
		p.Wake("due")
		wait(time.Hour)
		n.want(t, "due", 1)
		p.Stop(t.Context())
	})
}

// source hands out keys, those first that came first.
type source struct {
	mu   sync.Mutex
	free []string
	held []string
	asks []int // limits
	fail bool
}

func (s *source) give(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, keys...)
}

func (s *source) take(_ context.Context, limit int, mine bool) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks = append(s.asks, limit)
	if s.fail {
		return nil, context.DeadlineExceeded
	}
	var out []string
	if mine {
		out = append(out, s.held...)
	}
	for len(s.free) > 0 && len(out) < limit {
		out, s.held, s.free = append(out, s.free[0]), append(s.held, s.free[0]), s.free[1:]
	}
	return out, nil
}

// rest lets go of a key.
func (s *source) rest(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(s.held, func(k string) bool { return k == key })
}

// A pool takes from its source what it has places for, and asks again when a
// place is free; it never has more at work than places.
func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		var mu sync.Mutex
		now, most := 0, 0
		s := &source{held: []string{"old"}}
		p := workers.New(32, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			n.look(key)
			time.Sleep(time.Minute)
			mu.Lock()
			now--
			mu.Unlock()
			s.rest(key)
			return time.Time{}
		})
		var keys []string
		for i := range 100 {
			keys = append(keys, string(rune('a'+i%26))+string(rune('a'+i/26)))
		}
		s.give(keys...)
		p.Draw(workers.Source[string]{Take: s.take})
		wait(30 * time.Second)
		n.want(t, "old", 1) // from a former time
		n.want(t, keys[30], 1)
		n.want(t, keys[34], 0)
		if most != 32 {
			t.Errorf("%d at once", most)
		}
		s.mu.Lock()
		asked := len(s.asks)
		s.mu.Unlock()
		wait(20 * time.Second)
		s.mu.Lock()
		if len(s.asks) != asked {
			t.Errorf("it asks without a place: %v", s.asks)
		}
		s.mu.Unlock()
		wait(4 * time.Minute)
		for _, key := range keys {
			n.want(t, key, 1)
		}
		if most != 32 {
			t.Errorf("%d at once", most)
		}
		s.give("late") // nobody says so
		wait(1500 * time.Millisecond)
		n.want(t, "late", 1)
		p.Stop(t.Context())
	})
}

// A source that fails is asked again, and says so once until it answers.
func TestSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		fails, asked, told := true, 0, 0
		p := workers.New(4, func(context.Context, string, *workers.Worker) time.Time { return time.Time{} })
		p.Draw(workers.Source[string]{
			Take: func(context.Context, int, bool) ([]string, error) {
				mu.Lock()
				defer mu.Unlock()
				if asked++; fails {
					return nil, errors.New("away")
				}
				return nil, nil
			},
			Failed: func(error) {
				mu.Lock()
				defer mu.Unlock()
				told++
			},
		})
		trouble := func(on bool) (int, int) {
			wait(5500 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			fails = on
			return asked, told
		}
		if asked, told := trouble(false); asked < 5 || told != 1 {
			t.Errorf("asked %d times, told %d times", asked, told)
		}
		if _, told := trouble(true); told != 1 {
			t.Errorf("told %d times", told)
		}
		if _, told := trouble(true); told != 2 {
			t.Errorf("of the second time told %d times", told)
		}
		p.Stop(t.Context())
	})
}

// What work has given back is this pool's until its source knows: who was told
// of something to do in between has it done here, for nobody else may. The source of
// this test never hands it to anybody, as a store would not whose answer to the
// giving back was that there is more to do. // I-24
func TestGivenBackTooEarly(t *testing.T) {
	for name, tell := range map[string]func(*workers.Pool[string]){
		"by another":     func(p *workers.Pool[string]) { p.Heard("a") },
		"over the share": func(p *workers.Pool[string]) { p.Wake("a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n tally
				p := workers.New(0, func(_ context.Context, key string, w *workers.Worker) time.Time {
					n.look(key)
					w.Gives()
					return time.Time{}
				})
				share := 1
				p.Draw(workers.Source[string]{
					Take: func(context.Context, int, bool) ([]string, error) { return nil, nil }, Share: func() int { return share },
				})
				p.Wake("a")
				synctest.Wait()
				share = 0
				tell(p)
				synctest.Wait()
				n.want(t, "a", 2)
				wait(time.Minute)
				p.Heard("a") // long after, another begins what it wakes
				wait(time.Minute)
				n.want(t, "a", 2)
				p.Stop(t.Context())
			})
		})
	}
}

// A source whose answer was lost may have handed out keys: the next question
// asks for what is this pool's already. // I-24
func TestTakeWhoseAnswerWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		s := &source{}
		p := workers.New(4, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			n.look(key)
			s.rest(key)
			return time.Time{}
		})
		lost := 0
		p.Draw(workers.Source[string]{Take: func(ctx context.Context, limit int, mine bool) ([]string, error) {
			keys, err := s.take(ctx, limit, mine)
			if len(keys) > 0 && lost == 0 {
				lost++
				return nil, errors.New("the connection ended")
			}
			return keys, err
		}})
		wait(10 * time.Millisecond)
		s.give("a")
		wait(3 * time.Second)
		n.want(t, "a", 1)
		p.Stop(t.Context())
	})
}

// What this pool waits with is its own: it needs no source to come back to it,
// also when there is no place at that moment.
func TestPlannedIsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		p := workers.New(1, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			if n.look(key); key == "due" && n.looks[key] == 1 {
				return time.Now().Add(time.Minute)
			}
			time.Sleep(50 * time.Second)
			return time.Time{}
		})
		s := &source{}
		p.Draw(workers.Source[string]{Take: s.take})
		p.Wake("due")
		wait(30 * time.Second)
		p.Wake("long") // at work when the time comes
		wait(40 * time.Second)
		n.want(t, "due", 1)
		wait(30 * time.Second)
		n.want(t, "due", 2)
		p.Heard("due")
		p.Stop(t.Context())
	})
}

// What is a pool's own it goes on with at once, however much that is: after a
// lease that lapsed all of it has to be begun again.
func TestAllThatIsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const own = 200
		var n tally
		p := workers.New(256, func(_ context.Context, key string, w *workers.Worker) time.Time {
			n.look(key)
			<-w.Draining
			return time.Time{}
		})
		p.Draw(workers.Source[string]{Take: func(_ context.Context, limit int, mine bool) (keys []string, _ error) {
			for i := 0; mine && i < min(own, limit); i++ { // the oldest first, whether they are worked on or not
				keys = append(keys, fmt.Sprint(i))
			}
			return keys, nil
		}})
		wait(100 * time.Millisecond)
		if got := p.Active(); got != own {
			t.Errorf("%d of %d are worked on", got, own)
		}
		p.Stop(t.Context())
	})
}

// What a pool gives away when it drains it does not begin any more, neither when
// its time comes nor when it is woken. // I-11
func TestDrainGivesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		p := workers.New(1, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			if n.look(key); key == "due" {
				return time.Now().Add(time.Minute)
			}
			time.Sleep(50 * time.Second)
			return time.Time{}
		})
		p.Wake("due")
		wait(time.Second)
		p.Wake("long")
		wait(time.Second)
		p.Wake("queued")
		got := p.Drain()
		slices.Sort(got)
		if !slices.Equal(got, []string{"due", "queued"}) {
			t.Errorf("given away: %v", got)
		}
		p.Wake("due")
		p.Heard("due")
		wait(2 * time.Minute)
		p.Stop(t.Context())
		n.want(t, "due", 1)
		n.want(t, "queued", 0)
	})
}

// What another process woke is asked for only where nobody is heard to begin it,
// and then no more than that; while news come that others begin what they wake
// the source has some rest.
func TestHeardAndBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked []int
		var at []time.Time
		p := workers.New(0, func(context.Context, string, *workers.Worker) time.Time { return time.Time{} })
		p.Draw(workers.Source[string]{Share: func() int { return 64 }, Take: func(_ context.Context, limit int, _ bool) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			asked, at = append(asked, limit), append(at, time.Now())
			return slices.Repeat([]string{"x"}, min(limit, 2)), nil
		}})
		defer p.Stop(t.Context())
		reset := func() {
			mu.Lock()
			defer mu.Unlock()
			asked, at = nil, nil
		}
		wait(10 * time.Millisecond)
		reset()
		p.Heard("a")
		p.Heard("b")
		wait(5 * time.Millisecond)
		p.Heard("c")
		p.Begun("b")
		p.Begun("b")
		p.Begun("nobody")
		wait(300 * time.Millisecond)
		if !slices.Equal(asked, []int{1, 1}) { // a and c, each in its time
			t.Errorf("asked for %v", asked)
		}
		reset()
		for range 200 { // 20 seconds
			p.Heard("d")
			wait(20 * time.Millisecond)
			p.Begun("d")
			wait(80 * time.Millisecond)
		}
		if n := len(at); n < 3 || n > 5 {
			t.Errorf("%d looks in 20 seconds in which all was begun", n)
		}
		reset()
		wait(5 * time.Second)
		if n := len(at); n < 4 || n > 6 {
			t.Errorf("%d looks in 5 seconds without news", n)
		}
		for range 40 { // others have become slow
			p.Heard("e")
			wait(140 * time.Millisecond)
			p.Begun("e")
		}
		reset()
		p.Heard("f")
		wait(400 * time.Millisecond)
		p.Begun("f")
		if len(asked) > 1 {
			t.Errorf("asked for %v in 400 ms, where others take 140 ms", asked)
		}
		reset()
		p.Look(0, false)
		wait(time.Millisecond)
		if len(asked) == 0 {
			t.Error("a look that was asked for was not made")
		}
	})
}

// Work that comes through one process is spread: it keeps its share, another
// takes its share, and what is left goes to whoever asks, a few at a time.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var free []string
		took := map[string]string{}
		pool := func(name string, share int) *workers.Pool[string] {
			p := workers.New(256, func(ctx context.Context, key string, _ *workers.Worker) time.Time {
				mu.Lock()
				if other := took[key]; other != "" {
					t.Errorf("%s is worked on by %s and %s", key, other, name)
				}
				took[key] = name
				free = slices.DeleteFunc(free, func(k string) bool { return k == key })
				mu.Unlock()
				<-ctx.Done()
				return time.Time{}
			})
			p.Draw(workers.Source[string]{Share: func() int { return share }, Take: func(_ context.Context, limit int, _ bool) ([]string, error) {
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				n := min(limit, len(free))
				out := slices.Clone(free[:n])
				free = free[n:]
				return out, nil
			}})
			return p
		}
		a, b := pool("a", 8), pool("b", 20)
		wait(300 * time.Millisecond)
		for i := range 200 {
			key := string(rune('a'+i%26)) + string(rune('a'+i/26))
			mu.Lock()
			free = append(free, key)
			mu.Unlock()
			a.Wake(key)
			synctest.Wait()
			b.Heard(key)
		}
		wait(250 * time.Millisecond)
		if a.Active() != 8 || b.Active() != 20 {
			t.Errorf("%d and %d at work, their shares are 8 and 20", a.Active(), b.Active())
		}
		wait(900 * time.Millisecond)
		if n, m := a.Active(), b.Active(); n+m != 200 || n < 70 || m < 70 {
			t.Errorf("%d and %d at work of 200", n, m)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.Stop(ctx)
		b.Stop(ctx)
	})
}

// Begin works on a key at rest at once, and on no other: one that is worked on or
// waits is looked at by who has it; and it begins nothing where there is no place.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		p := workers.New(2, func(_ context.Context, key string, _ *workers.Worker) time.Time {
			if n.look(key); key == "due" {
				return time.Now().Add(time.Hour)
			}
			time.Sleep(time.Minute)
			return time.Time{}
		})
		begin := func(when, key string, want bool) {
			t.Helper()
			if got := p.Begin(key); got != want {
				t.Errorf("%s: begun %v", when, got)
			}
			synctest.Wait()
		}
		begin("at rest", "due", true)
		n.want(t, "due", 1)
		begin("waits for its time", "due", false)
		begin("another", "a", true)
		begin("at work", "a", false)
		begin("the last place", "b", true)
		begin("no place", "c", false)
		p.Wake("d") // waits for a place
		begin("no place, and waits for one", "d", false)
		wait(90 * time.Second)
		n.want(t, "a", 1) // to be refused is no wake
		n.want(t, "c", 0)
		n.want(t, "d", 1)
		wait(time.Minute)
		begin("at rest again", "a", true)
		n.want(t, "a", 2)
		begin("waits for its time still", "due", false)
		wait(time.Hour)
		n.want(t, "due", 2)
		p.Drain()
		begin("stopped", "e", false)
		p.Stop(t.Context())
		n.want(t, "e", 0)
	})
}

// A process that has its share leaves what comes to others, also what would begin
// here at once; what it gave back a moment ago is no exception, for its source may
// know that by now. With a place in its share it begins.
func TestBeginWithinTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n tally
		share := 1
		p := workers.New(0, func(_ context.Context, key string, w *workers.Worker) time.Time {
			n.look(key)
			time.Sleep(time.Minute)
			w.Gives()
			return time.Time{}
		})
		p.Draw(workers.Source[string]{
			Take: func(context.Context, int, bool) ([]string, error) { return nil, nil }, Share: func() int { return share },
		})
		synctest.Wait()
		if !p.Begin("a") || p.Begin("b") {
			t.Error("it does not keep to its share")
		}
		wait(time.Minute + time.Millisecond) // a was given back
		if !p.Begin("a") || p.Begin("b") {
			t.Error("it does not keep to its share when one has ended")
		}
		share = 2
		if !p.Begin("b") || p.Begin("c") {
			t.Error("it does not use its share")
		}
		wait(2 * time.Minute)
		n.want(t, "a", 2)
		n.want(t, "b", 1)
		n.want(t, "c", 0)
		p.Stop(t.Context())
	})
}
