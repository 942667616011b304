package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/version"
)

// stormFigures are what the page says of one storm.
type stormFigures struct {
	Name       string         `json:"name"`
	Seed       uint64         `json:"seed"`
	Deliveries int            `json:"deliveries"`
	Runs       int            `json:"runs"`
	Targets    int            `json:"targets"`
	Requests   int            `json:"requests"`
	Killed     int            `json:"killed"`
	Stopped    int            `json:"stopped"`
	Ends       map[string]int `json:"ends"`
	Delivered  int            `json:"delivered"`
	Dead       int            `json:"dead_lettered"`
	Met        map[string]int `json:"met"`
	Wait       string         `json:"wait"`
	Seconds    int            `json:"seconds"`
	Failed     bool           `json:"failed"`
	Load       string         `json:"load"`
}

func (st *storm) figures(name string, took time.Duration) *stormFigures {
	f := &stormFigures{Name: name, Seed: st.seed, Runs: len(st.runs), Requests: len(st.s.visits), Ends: map[string]int{}, Met: st.met,
		Seconds: int(took.Seconds()), Failed: st.t.Failed(), Load: load(), Wait: spreadOf(st.waits), Deliveries: st.met["enqueued"]}
	for _, e := range st.ends {
		f.Ends[e.how]++
		if e.how == "stop" {
			f.Stopped++
		} else {
			f.Killed++
		}
	}
	f.Targets = min(len(stormWays()), st.sessions*stormTargets)
	f.Delivered, f.Dead = st.told.ledger["delivered"], st.told.ledger["dead_lettered"]
	return f
}

// stormSet is the storms of one test.
type stormSet struct {
	mu   sync.Mutex
	list []*stormFigures
}

func (s *stormSet) add(f *stormFigures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, f)
}

// The figures stand in the page between these.
const (
	stormBegin = "<!-- storm: written by `make storm` -->"
	stormEnd   = "<!-- end of storm -->"
)

// report says the figures, and writes them into the page.
func (s *stormSet) report(t *testing.T) {
	t.Helper()
	slices.SortFunc(s.list, func(a, b *stormFigures) int { return strings.Compare(b.Name, a.Name) })
	for _, f := range s.list {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", text)
	}
	if *stormReport == "" {
		return
	}
	page, err := os.ReadFile(*stormReport)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(page, []byte(stormBegin))
	_, after, whole := bytes.Cut(rest, []byte(stormEnd))
	if !ok || !whole {
		t.Fatalf("%s has no place for the figures: %s … %s", *stormReport, stormBegin, stormEnd)
	}
	if err := os.WriteFile(*stormReport, fmt.Appendf(nil, "%s%s\n%s%s%s", before, stormBegin, s.table(), stormEnd, after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *stormSet) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Version %s, %s, on %s/%s, %d cores, %s; seed %d.\n\n|  |", version.Version, time.Now().UTC().Format(time.DateOnly),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), *stormSeed)
	for _, f := range s.list {
		fmt.Fprintf(&b, " %s |", f.Name)
	}
	fmt.Fprintf(&b, "\n| --- |%s\n", strings.Repeat(" ---: |", len(s.list)))
	row := func(what string, of func(*stormFigures) any) {
		fmt.Fprintf(&b, "| %s |", what)
		for _, f := range s.list {
			fmt.Fprintf(&b, " %v |", of(f))
		}
		b.WriteString("\n")
	}
	row("**deliveries**", func(f *stormFigures) any { return f.Deliveries })
	row("of runs", func(f *stormFigures) any { return f.Runs })
	row("to receivers, each with a way of its own", func(f *stormFigures) any { return f.Targets })
	row("**lives that ended by SIGKILL**", func(f *stormFigures) any { return f.Killed })
	row("of them right before or behind an append", func(f *stormFigures) any { return f.Ends["append"] })
	row("of them before the daemon listened", func(f *stormFigures) any { return f.Ends["start"] })
	row("lives that ended by SIGTERM", func(f *stormFigures) any { return f.Stopped })
	row("**storms with a finding**", func(f *stormFigures) any {
		if f.Failed {
			return 1
		}
		return 0
	})
	row("at the end delivered", func(f *stormFigures) any { return f.Delivered })
	row("at the end dead letters", func(f *stormFigures) any { return f.Dead })
	row("requests received", func(f *stormFigures) any { return f.Requests })
	kinds := map[string]bool{}
	for _, f := range s.list {
		for what := range f.Met {
			kinds[what] = what != "enqueued" && what != "delivered"
		}
	}
	for _, what := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[what] {
			row(what, func(f *stormFigures) any { return f.Met[what] })
		}
	}
	row("from enqueued to delivered at receivers that are well, deaths included", func(f *stormFigures) any { return f.Wait })
	row("seconds", func(f *stormFigures) any { return f.Seconds })
	row("load of the machine over 1, 5 and 15 minutes, at the end", func(f *stormFigures) any { return f.Load })
	return b.String()
}
