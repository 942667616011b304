package daemon_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

var (
	crashBoundaries = flag.String("crash.boundaries", "all", "append boundaries to kill at, both sides of each: all, or a number, spread over the story")
	crashRandom     = flag.Int("crash.random", 12, "rounds with kills at random instants")
	crashSeed       = flag.Uint64("crash.seed", 1, "seed of the first round")
)

// TestCrashBoundaries plays the story once to count its appends, and then
// again and again, with the daemon killed right before and right after one of
// them.
func TestCrashBoundaries(t *testing.T) {
	whole := newRound(t, *crashSeed)
	l := whole.perform(nil)
	whole.k.mu.Lock()
	commits := slices.Clone(l.commits)
	whole.k.mu.Unlock()
	whole.aftermath()
	if t.Failed() {
		return
	}
	kills := make([]killAt, 0, 2*(len(commits)+len(crashTypes)))
	boundaries := spread(t, len(commits))
	for _, side := range []string{"before", "after"} {
		for _, n := range boundaries {
			kills = append(kills, killAt{Side: side, N: n})
		}
		if len(boundaries) == len(commits) {
			// Lives differ in how their appends interleave: these are met for certain.
			for _, typ := range crashTypes {
				kills = append(kills, killAt{Side: side, N: 1, Type: typ})
			}
		}
	}
	var mu sync.Mutex
	dead := 0
	var all tally
	t.Run("at", func(t *testing.T) {
		for i, at := range kills {
			t.Run(strings.ReplaceAll(at.String(), " ", "-"), func(t *testing.T) {
				t.Parallel()
				r := newRound(t, *crashSeed+uint64(i))
				l := r.perform(&at)
				r.aftermath()
				all.add(r)
				r.k.mu.Lock()
				killed := l.killed
				r.k.mu.Unlock()
				mu.Lock()
				defer mu.Unlock()
				switch {
				case killed != "": // the last appends of a story may not come in another life
					dead++
				case at.Type != "":
					t.Errorf("the daemon never died at an append with %s", at.Type)
				}
			})
		}
	})
	t.Log(all.String())
	t.Logf("%d appends in the story; %d of %d rounds died at their boundary", len(commits), dead, len(kills))
}

// crashTypes are the facts around whose appends the daemon must die.
var crashTypes = []event.Type{
	event.TypeSessionCreated, event.TypeRunCreated, event.TypeRunStarted, event.TypeInferenceCompleted,
	event.TypeToolStarted, event.TypeToolCompleted, event.TypeRepairRequested, event.TypeOutputEmitted,
	event.TypeDeliveryEnqueued, event.TypeDeliveryAttemptStarted, event.TypeDeliveryAttemptFailed,
	event.TypeDeliveryDelivered, event.TypeRunCompleted, event.TypeRunFailed,
}

// spread chooses the boundaries to try, from 1.
func spread(t *testing.T, appends int) []int {
	n := appends
	if *crashBoundaries != "all" {
		wanted, err := strconv.Atoi(*crashBoundaries)
		if err != nil || wanted < 0 {
			t.Fatalf("-crash.boundaries: %q is neither a number nor all", *crashBoundaries)
		}
		n = min(n, wanted)
	}
	var out []int
	for i := range n {
		out = append(out, 1+i*appends/n)
	}
	return out
}

// TestCrashRandom kills the daemon one to three times in a round: at random
// instants and, in the lives that recover, at random appends, in a world that
// is slow and fails now and then.
func TestCrashRandom(t *testing.T) {
	var all tally
	t.Run("round", func(t *testing.T) {
		for i := range *crashRandom {
			seed := *crashSeed + uint64(i)
			t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
				t.Parallel()
				r := newRound(t, seed)
				rnd := seeded(seed ^ 0xc0ffee)
				var deaths []death
				for life := range 1 + rnd.IntN(3) {
					d := death{after: 10*time.Millisecond + time.Duration(rnd.Int64N(int64(250*time.Millisecond)))}
					if life > 0 && rnd.IntN(2) == 0 {
						d.at = &killAt{Side: []string{"before", "after"}[rnd.IntN(2)], N: 1 + rnd.IntN(12)}
					}
					deaths = append(deaths, d)
				}
				r.unsteady(rnd, seed%8 == 0)
				r.performKilled(deaths)
				r.aftermath()
				all.add(r)
				if t.Failed() {
					t.Logf("lives ended after %s", deaths)
				}
			})
		}
	})
	t.Log(all.String())
	if *crashRandom >= 100 && !t.Failed() {
		all.wantEach(t)
	}
}

// tally counts what the deaths led to, so that a test whose kills hit nothing
// is seen.
type tally struct {
	mu             sync.Mutex
	rounds, deaths int
	met            map[string]int
}

// recoveries are what a log tells of a death.
var recoveries = []string{
	"model attempt abandoned", "call in doubt", "read repeated", "call repeated under its key", "call retried by a person",
	"call settled by a person", "delivery attempt abandoned",
}

func (a *tally) add(r *round) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.met == nil {
		a.met = map[string]int{}
	}
	a.rounds++
	a.deaths += r.k.killCount() - 1 // the last one is the aftermath's, at rest
	for what, n := range r.met {
		a.met[what] += n
	}
}

func (a *tally) String() string {
	text := fmt.Sprintf("%d rounds, %d deaths", a.rounds, a.deaths)
	for _, what := range recoveries {
		text += fmt.Sprintf("; %s: %d", what, a.met[what])
	}
	return text
}

func (a *tally) wantEach(t *testing.T) {
	t.Helper()
	for _, what := range recoveries {
		if a.met[what] == 0 {
			t.Errorf("in %d rounds never: %s", a.rounds, what)
		}
	}
}

// unsteady makes the world slow, and its receiver fail now and then. refuse:
// the vendor refuses one request that has no consequences yet.
func (r *round) unsteady(rnd *rand.Rand, refuse bool) {
	var mu sync.Mutex
	chance := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	refused := !refuse
	r.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
		a := storyAnswer(order, step, req)
		a.Delay = time.Duration(chance(20)) * time.Millisecond
		a.Pause = time.Duration(chance(3)) * time.Millisecond
		mu.Lock()
		defer mu.Unlock()
		if order == orderLast && !refused {
			refused = true
			return chatstub.Reply{Status: http.StatusServiceUnavailable, Body: []byte(`{"error":{"message":"busy"}}`), ContentType: "application/json"}
		}
		return a
	}
	r.w.effect = func(string, string) { r.w.pause(time.Duration(chance(40)) * time.Millisecond) }
	r.w.hook = func(_, _ string, n int) int {
		if n > 6 {
			return http.StatusOK
		}
		return []int{http.StatusInternalServerError, http.StatusServiceUnavailable, 0, 200, 204, 200, 200}[chance(7)]
	}
}
