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
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

var (
	crashBoundaries = flag.String("crash.boundaries", "all", "append boundaries to kill at, both sides of each: all, or a number, spread over the story")
	crashActs       = flag.String("crash.acts", "1", "append boundaries of each act to kill at, both sides of each: all, or a number")
	crashRandom     = flag.Int("crash.random", 12, "rounds with kills at random instants")
	crashDeaths     = flag.Int("crash.deaths", 0, "go on with random rounds until so many SIGKILLs have happened; 0: -crash.random rounds")
	crashTogether   = flag.Int("crash.together", 3, "rounds that are played at once, with -crash.deaths")
	crashSeed       = flag.Uint64("crash.seed", 1, "seed of the first round")
)

// TestCrashBoundaries plays the story once to count its appends, and then
// again and again, with the daemon killed right before and right after one of
// them.
func TestCrashBoundaries(t *testing.T) {
	whole := newRound(t, *crashSeed, true)
	l := whole.perform(nil)
	whole.k.mu.Lock()
	commits := slices.Clone(l.commits)
	whole.k.mu.Unlock()
	whole.aftermath()
	if t.Failed() {
		return
	}
	kills := make([]killAt, 0, 2*(len(commits)+len(crashTypes)))
	boundaries := spread(t, "-crash.boundaries", *crashBoundaries, len(commits), 0)
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
	all := newTally(t, "boundaries")
	t.Run("at", func(t *testing.T) {
		for i, at := range kills {
			t.Run(strings.ReplaceAll(at.String(), " ", "-"), func(t *testing.T) {
				t.Parallel()
				r := all.round(t, *crashSeed+uint64(i), true)
				l := r.perform(&at)
				r.aftermath()
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
	all.report()
	t.Logf("%d appends in the story; %d of %d rounds died at their boundary", len(commits), dead, len(kills))
}

// crashTypes are the facts around whose appends the daemon must die.
var crashTypes = []event.Type{
	event.TypeSessionCreated, event.TypeRunCreated, event.TypeRunStarted, event.TypeInferenceCompleted,
	event.TypeToolStarted, event.TypeToolCompleted, event.TypeRepairRequested, event.TypeOutputEmitted,
	event.TypeDeliveryEnqueued, event.TypeDeliveryAttemptStarted, event.TypeDeliveryAttemptFailed,
	event.TypeDeliveryDelivered, event.TypeRunCompleted, event.TypeRunFailed,
}

// spread chooses the boundaries to try, from 1; shift moves them when they are few.
func spread(t *testing.T, name, value string, appends, shift int) []int {
	n := appends
	if value != "all" {
		wanted, err := strconv.Atoi(value)
		if err != nil || wanted < 0 {
			t.Fatalf("%s: %q is neither a number nor all", name, value)
		}
		n = min(n, wanted)
	}
	var out []int
	for i := range n {
		at := i * appends / n
		if n < appends {
			at = (at + shift*7) % appends
		}
		out = append(out, 1+at)
	}
	return out
}

// TestCrashActs plays each act alone and kills the daemon right before and
// right after some of its appends, or all.
func TestCrashActs(t *testing.T) {
	all := newTally(t, "acts")
	t.Run("act", func(t *testing.T) {
		for i := range acts() {
			t.Run(nameOf(acts()[i]), func(t *testing.T) {
				t.Parallel()
				commits := 0
				t.Run("whole", func(t *testing.T) {
					whole := all.round(t, *crashSeed, false, acts()[i])
					l := whole.perform(nil)
					whole.k.mu.Lock()
					commits = len(l.commits)
					whole.k.mu.Unlock()
					whole.aftermath()
				})
				if t.Failed() {
					return
				}
				var kills []killAt
				for side, name := range []string{"before", "after"} {
					for _, at := range spread(t, "-crash.acts", *crashActs, commits, int(*crashSeed)+i+side) {
						kills = append(kills, killAt{Side: name, N: at})
					}
					if nameOf(acts()[i]) == "erase" {
						kills = append(kills, killAt{Side: name, N: 1, Type: event.TypeSessionErased})
					}
				}
				for n, kill := range kills {
					t.Run(strings.ReplaceAll(kill.String(), " ", "-"), func(t *testing.T) {
						t.Parallel()
						r := all.round(t, *crashSeed+uint64(n), false, acts()[i])
						r.perform(&kill)
						r.aftermath()
					})
				}
			})
		}
	})
	all.report()
}

// TestCrashRandom kills the daemon some times in a round: at random instants
// and at random appends, in a world that is slow and fails now and then. Beside
// the story, or instead of it, some acts are played.
func TestCrashRandom(t *testing.T) {
	all := newTally(t, "random")
	if *crashDeaths > 0 {
		var next atomic.Uint64
		var players sync.WaitGroup
		for range *crashTogether {
			players.Go(func() {
				for all.dead() < *crashDeaths && !all.hopeless() {
					n := next.Add(1) - 1
					if n > uint64(4**crashDeaths+8) { // a round has a death at least, nearly always
						return
					}
					seed := *crashSeed + n
					t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { playRandom(t, seed, all) })
				}
			})
		}
		players.Wait()
	} else {
		t.Run("round", func(t *testing.T) {
			for i := range *crashRandom {
				seed := *crashSeed + uint64(i)
				t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
					t.Parallel()
					playRandom(t, seed, all)
				})
			}
		})
	}
	if n := all.dead(); n < *crashDeaths {
		t.Errorf("%d SIGKILLs, want %d", n, *crashDeaths)
	}
	all.report()
	if max(*crashRandom, *crashDeaths/3) >= 100 && !t.Failed() {
		all.wantEach(t)
	}
}

// playRandom plays the round of a seed.
func playRandom(t *testing.T, seed uint64, all *tally) {
	rnd := seeded(seed ^ 0xc0ffee)
	some := acts()
	rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	story, lives := seed%3 != 0, 1+rnd.IntN(3)
	n := 1
	if !story {
		n = 2
	}
	if *crashDeaths > 0 { // at length: more at once, and more deaths
		n, lives = n+rnd.IntN(3), 2+rnd.IntN(4)
	}
	r := all.round(t, seed, story, some[:n]...)
	var deaths []death
	for life := range lives {
		d := death{after: time.Duration(rnd.Int64N(int64(300 * time.Millisecond))), early: rnd.IntN(16) == 0}
		if life > 0 || rnd.IntN(2) == 0 {
			d.at = randomKill(rnd)
		}
		if d.at != nil && !d.early { // it is met before, or never
			d.after += time.Second
		}
		deaths = append(deaths, d)
	}
	r.unsteady(rnd, seed%8 == 0)
	r.performKilled(deaths)
	r.aftermath()
	if t.Failed() {
		t.Logf("lives ended after %s", deaths)
	}
}

// randomKill gives an append to die at, of any kind or with a certain fact, or none.
func randomKill(rnd *rand.Rand) *killAt {
	at := &killAt{Side: []string{"before", "after"}[rnd.IntN(2)]}
	switch rnd.IntN(5) {
	case 0:
		return nil
	case 1, 2:
		at.N = 1 + rnd.IntN(15)
	default:
		rare := append([]event.Type{event.TypeCancelRequested, event.TypeInterruptRequested, event.TypeRunCancelled, event.TypeRunInterrupted,
			event.TypeSessionErased, event.TypeNeedsAttention, event.TypeRunResumed, event.TypeAttentionResolved, event.TypeToolInterrupted,
			event.TypeToolRetrying, event.TypeOwnerClaimed, event.TypeModelCallFailed, event.TypeRetryScheduled}, crashTypes...)
		at.Type, at.N = rare[rnd.IntN(len(rare))], 1+rnd.IntN(2)
	}
	return at
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
		a := r.answer(order, step, req)
		a.Delay += time.Duration(chance(20)) * time.Millisecond
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
