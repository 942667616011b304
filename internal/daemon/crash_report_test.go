package daemon_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/version"
)

var (
	crashReport = flag.String("crash.report", "", "a page between whose marks the numbers are written anew, such as docs/reliability.md")
	crashKeep   = flag.String("crash.keep", filepath.Join(os.TempDir(), "holdfast-crash"), "folder that keeps the data directories of rounds that failed")
)

// tally counts what the deaths of one test led to, so that a test whose kills
// hit nothing is seen.
type tally struct {
	t     *testing.T
	name  string
	begun time.Time

	mu  sync.Mutex
	set crashSet
}

// crashSet is what the page says of one test.
type crashSet struct {
	Rounds     int            `json:"rounds"`
	Deaths     int            `json:"deaths"` // in the middle of a story
	AtAppends  int            `json:"deaths_at_appends"`
	AtInstants int            `json:"deaths_at_instants"`
	AtStart    int            `json:"deaths_at_start"` // before the daemon listened
	AtRest     int            `json:"deaths_at_rest"`  // besides: one behind each story
	Failed     []string       `json:"rounds_failed"`
	Seconds    int            `json:"seconds"`
	Load       string         `json:"load"`
	Met        map[string]int `json:"met"`
	Boundaries map[string]int `json:"boundaries"` // events in the appends at which a daemon died
}

// recoveries are what a log tells of a death.
var recoveries = []string{
	"model attempt abandoned", "call in doubt", "read repeated", "call repeated under its key", "call retried by a person",
	"call settled by a person", "delivery attempt abandoned",
}

func newTally(t *testing.T, name string) *tally {
	return &tally{t: t, name: name, begun: time.Now(), set: crashSet{Failed: []string{}, Met: map[string]int{}, Boundaries: map[string]int{}}}
}

// round makes a round that is counted when it is over.
func (a *tally) round(t *testing.T, seed uint64, story bool, acts ...act) *round {
	r := newRound(t, seed, story, acts...)
	t.Cleanup(func() { a.add(r) })
	return r
}

// add counts a round that is over.
func (a *tally) add(r *round) {
	r.k.mu.Lock()
	ends := slices.Clone(r.k.ends)
	r.k.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set.Rounds++
	if r.t.Failed() {
		a.set.Failed = append(a.set.Failed, fmt.Sprintf("%s (seed %d)", r.t.Name(), r.seed))
	}
	a.set.AtRest++ // the last one
	for _, end := range ends[:max(0, len(ends)-1)] {
		a.set.Deaths++
		switch end {
		case "instant":
			a.set.AtInstants++
			continue
		case "start":
			a.set.AtStart++
			continue
		}
		a.set.AtAppends++
		side, types, _ := strings.Cut(end, " ")
		for _, typ := range slices.Compact(slices.Sorted(slices.Values(strings.Split(types, ",")))) {
			a.set.Boundaries[side+" "+typ]++
		}
	}
	for what, n := range r.met {
		a.set.Met[what] += n
	}
}

func (a *tally) dead() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.set.Deaths
}

// hopeless says that so many rounds failed that more tell nothing.
func (a *tally) hopeless() bool { return a.t.Failed() && a.dead() == 0 || a.failed() > 20 }

func (a *tally) failed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.set.Failed)
}

func (a *tally) wantEach(t *testing.T) {
	t.Helper()
	for _, what := range recoveries {
		if a.set.Met[what] == 0 {
			t.Errorf("in %d rounds never: %s", a.set.Rounds, what)
		}
	}
}

// report says the numbers, and writes them into the page.
func (a *tally) report() {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set.Seconds, a.set.Load = int(time.Since(a.begun).Seconds()), load()
	text, err := json.Marshal(a.set)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Logf("%s: %s", a.name, text)
	if *crashReport == "" {
		return
	}
	if err := writePage(*crashReport, a.name, &a.set); err != nil {
		a.t.Error(err)
	}
}

// load is the system's load now, where it can be read.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(text)); len(f) > 2 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

// keep copies the data directory of a round that failed.
func (r *round) keep() {
	if !r.t.Failed() {
		return
	}
	if l := r.k.life(); l != nil {
		r.k.kill(l)
	}
	to := filepath.Join(*crashKeep, fmt.Sprintf("%s-%d", strings.ReplaceAll(r.t.Name(), "/", "_"), time.Now().Unix()))
	if err := os.CopyFS(to, os.DirFS(r.k.dir)); err != nil {
		r.t.Logf("keep the history: %v", err)
	}
	var names []string
	for _, a := range r.acts {
		names = append(names, nameOf(a))
	}
	r.t.Logf("seed %d, story: %t, acts: %v; lives ended %q; the history is kept in %s", r.seed, r.story, names, r.k.ends, to)
}

// The numbers stand in the page between these, as a table and as JSON.
const (
	pageBegin = "<!-- numbers: written by `make crash` -->"
	pageEnd   = "<!-- end of numbers -->"
)

// pageNumbers is the JSON in the page.
type pageNumbers struct {
	Version string              `json:"version"`
	Day     string              `json:"day"`
	Machine string              `json:"machine"`
	Sets    map[string]crashSet `json:"sets"`
}

// writePage puts the numbers of a set into a page; those of other sets stay.
func writePage(path, name string, set *crashSet) error {
	p, err := readPage(path)
	if err != nil {
		return err
	}
	n := &p.numbers
	n.Version, n.Day = version.Version, time.Now().UTC().Format(time.DateOnly)
	n.Machine = fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	n.Sets[name] = *set
	text, err := p.text()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// page is a page with its numbers, and what stands before and after them.
type page struct {
	before, after []byte
	numbers       pageNumbers
}

func readPage(path string) (*page, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &page{numbers: pageNumbers{Sets: map[string]crashSet{}}}
	before, rest, ok := bytes.Cut(text, []byte(pageBegin))
	old, after, ok2 := bytes.Cut(rest, []byte(pageEnd))
	if !ok || !ok2 {
		return nil, fmt.Errorf("%s has no place for the numbers: %s … %s", path, pageBegin, pageEnd)
	}
	p.before, p.after = before, after
	if _, numbers, ok := bytes.Cut(old, []byte("```json\n")); ok {
		numbers, _, _ = bytes.Cut(numbers, []byte("\n```"))
		if err := json.Unmarshal(numbers, &p.numbers); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return p, nil
}

func (p *page) text() ([]byte, error) {
	numbers, err := json.MarshalIndent(p.numbers, "", " ")
	return fmt.Appendf(nil, "%s%s\n%s\n<details><summary>The same for programs, with each kind of boundary</summary>\n\n```json\n%s\n```\n\n</details>\n\n%s%s",
		p.before, pageBegin, p.numbers.table(), numbers, pageEnd, p.after), err
}

// The table in the page is the one of its numbers. With -crash.report it is made so.
func TestCrashPage(t *testing.T) {
	path := "../../docs/reliability.md"
	p, err := readPage(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := p.text()
	if err != nil {
		t.Fatal(err)
	}
	if *crashReport != "" {
		path = *crashReport
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the table of %s is not the one of its numbers; write it by -run CrashPage -crash.report=%s (%v)", path, path, err)
	}
}

func (n *pageNumbers) table() string {
	names := slices.Sorted(maps.Keys(n.Sets))
	var b strings.Builder
	row := func(what string, of func(*crashSet) int) {
		sum := 0
		fmt.Fprintf(&b, "| %s |", what)
		for _, name := range names {
			set := n.Sets[name]
			sum += of(&set)
			fmt.Fprintf(&b, " %d |", of(&set))
		}
		fmt.Fprintf(&b, " %d |\n", sum)
	}
	fmt.Fprintf(&b, "Version %s, %s, on %s.\n\n|  | %s | all |\n| --- |%s --- |\n", n.Version, n.Day, n.Machine, strings.Join(names, " | "), strings.Repeat(" --- |", len(names)))
	row("**SIGKILLs in the middle of a story**", func(s *crashSet) int { return s.Deaths })
	row("of them right before or behind an append", func(s *crashSet) int { return s.AtAppends })
	row("of them at a random instant", func(s *crashSet) int { return s.AtInstants })
	row("of them before the daemon listened", func(s *crashSet) int { return s.AtStart })
	row("besides, SIGKILLs at rest", func(s *crashSet) int { return s.AtRest })
	kinds := map[string]bool{}
	for _, set := range n.Sets {
		maps.Copy(kinds, atLeastOne(set.Boundaries))
	}
	fmt.Fprintf(&b, "| kinds of boundaries died at |")
	for _, name := range names {
		fmt.Fprintf(&b, " %d |", len(n.Sets[name].Boundaries))
	}
	fmt.Fprintf(&b, " %d |\n", len(kinds))
	row("rounds", func(s *crashSet) int { return s.Rounds })
	row("**rounds with a finding**", func(s *crashSet) int { return len(s.Failed) })
	met := map[string]bool{}
	for _, set := range n.Sets {
		for what := range set.Met {
			met[what] = true
		}
	}
	for _, what := range slices.Sorted(maps.Keys(met)) {
		row(what, func(s *crashSet) int { return s.Met[what] })
	}
	row("seconds", func(s *crashSet) int { return s.Seconds })
	b.WriteString("| load of the machine over 1, 5 and 15 minutes, at the end |")
	for _, name := range names {
		fmt.Fprintf(&b, " %s |", n.Sets[name].Load)
	}
	b.WriteString(" |\n")
	return b.String()
}

func atLeastOne(counts map[string]int) map[string]bool {
	out := map[string]bool{}
	for what, n := range counts {
		out[what] = n > 0
	}
	return out
}
