package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// history is one seeded history of nodes over one store, in a bubble.
type history struct {
	t       *testing.T
	seed    uint64
	most    int           // nodes at once
	ttl     time.Duration // of a lease; 0: one process that has the store for itself
	dir     string
	store   *sqlite.Store
	sched   scheduler
	watch   *watch
	world   *world
	clients *clients
	mutant  *mutant
	temper  temper
	beside  sync.WaitGroup // what goes on beside the one who plays

	nodes  []*node
	ghosts []*node // of requests whose callers are gone
	lives  int
	full   bool // the disk
	space  time.Time
	calm   bool
	ending bool // nodes stop, and none begins

	choose, clock *rand.Rand // of the next step, and of what it takes
	script        []string   // decisions to follow, while they fit
	strayed       int        // decisions of the script that did not fit

	steps   int
	crashes int
	calmed  time.Duration // until all was settled, once nothing failed any more
	tallyMu sync.Mutex
	tally   map[string]int
	trace   trace
}

// trace is what happened, line by line: the same for a seed whenever it is played.
type trace struct {
	mu    sync.Mutex
	lines []string
	sum   uint64
	words []string // of nodes, for people: no part of the history
}

func (tr *trace) add(line string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprint(h, tr.sum, line)
	tr.sum = h.Sum64()
	tr.lines = append(tr.lines, line)
}

// say keeps what is no part of the history.
func (h *history) say(format string, args ...any) {
	h.trace.mu.Lock()
	defer h.trace.mu.Unlock()
	h.trace.words = append(h.trace.words, fmt.Sprintf("%d: ", len(h.trace.lines))+fmt.Sprintf(format, args...))
	if len(h.trace.words) > 400 {
		h.trace.words = h.trace.words[100:]
	}
}

func (h *history) count(what string) {
	h.tallyMu.Lock()
	defer h.tallyMu.Unlock()
	h.tally[what]++
}

// temper is how a history goes: chances in a thousand, drawn by its seed.
type temper struct {
	length                                                    int
	command, pass, crash, fail, late, cut, twice, fault, lose int
	meddle                                                    int           // while something is being sent
	bulk                                                      int           // while there are dead letters
	second                                                    int           // steps of the second act; 0: there is none
	tick                                                      time.Duration // the longest step takes
}

func drawTemper(r *rand.Rand) temper {
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	return temper{
		length: one(60, 120, 200, 320), command: one(40, 80, 140), pass: one(5, 20, 60), crash: one(0, 8, 25), fail: one(0, 0, 5, 30), late: one(0, 30, 150),
		cut: one(0, 20, 80), twice: one(0, 0, 20), fault: one(0, 10, 25, 50), lose: one(0, 0, 300, 1000),
		tick: time.Duration(one(2, 2, 20, 100)) * time.Millisecond,
	}
}

// outcome is what a history came to.
type outcome struct {
	seed    uint64
	nodes   int
	found   []string
	steps   int
	sum     uint64
	lines   []string
	words   []string
	tally   map[string]int
	calmed  time.Duration
	strayed int // decisions of its script that did not fit
}

// play plays one history in the bubble that it is called in.
func play(t *testing.T, o plan) *outcome {
	h := &history{
		t: t, seed: o.seed, most: o.nodes, dir: o.dir, tally: map[string]int{}, script: o.script, mutant: o.mutant,
		choose: rand.New(rand.NewPCG(o.seed+o.choices, 1)), clock: rand.New(rand.NewPCG(o.seed, 2)),
		sched: scheduler{arrived: make(chan struct{}, 1)},
	}
	mood := rand.New(rand.NewPCG(o.seed, 3))
	h.temper = drawTemper(mood)
	more := rand.New(rand.NewPCG(o.seed, 4)) // beside, so that older scripts still fit
	h.temper.meddle, h.temper.bulk = []int{0, 20, 60, 150}[more.IntN(4)], []int{0, 60, 200}[more.IntN(3)]
	if h.temper.bulk > 0 {
		h.temper.second = 40 + more.IntN(160)
	}
	h.lengths()
	h.watch, h.world, h.clients = newWatch(h), newWorld(h, o.seed), newClients(h)
	if h.most > 1 || mood.IntN(2) == 0 {
		h.ttl = 10 * time.Second
	}
	if err := h.openStore(); err != nil {
		t.Fatal(err)
	}
	for range 1 + mood.IntN(h.most) {
		h.begin()
	}
	for h.steps < h.temper.length && !h.watch.broken() {
		h.turn()
	}
	two := h.temper.second > 0
	h.settle(!two)
	if two && !h.watch.broken() {
		h.stir()
		h.settle(true)
	}
	h.end()
	return &outcome{
		seed: h.seed, nodes: h.most, found: h.watch.found, steps: h.steps, sum: h.trace.sum, lines: h.trace.lines, words: h.trace.words, tally: h.tally, calmed: h.calmed,
		strayed: h.strayed,
	}
}

func (h *history) openStore() (err error) {
	h.store, err = sqlite.Open(context.Background(), sqlite.Config{
		Dir: h.dir, Sync: sqlite.SyncNormal, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot,
		Random: newChance(h.seed, "store"), ReadConns: 1, OnCommit: h.committed,
	})
	return err
}

// committed tells the node whose commit it was at once, and lets the others be
// told in their own time.
func (h *history) committed(stamps []eventlog.Stamp) {
	by := h.watch.committed(stamps)
	for _, n := range h.alive() {
		if n == by {
			n.d.Committed(stamps)
			continue
		}
		for i := range stamps {
			n.news = append(n.news, eventlog.News{Stream: stamps[i].Stream, Head: stamps[i].Head, Wakes: eventlog.Wakes(stamps[i].Events)})
		}
	}
}

// turn is one step: one decision, what follows from it until all is idle, and
// a moment of time.
func (h *history) turn() {
	synctest.Wait()
	h.timely()
	select {
	case <-h.sched.arrived:
	default:
	}
	d := h.next()
	h.steps++
	h.trace.add(fmt.Sprintf("%s %s", time.Now().UTC().Format("15:04:05.000000"), d.text))
	d.do()
	tick := h.temper.tick
	if h.calm {
		tick = 2 * time.Millisecond
	}
	time.Sleep(time.Duration(1+h.clock.Int64N(int64(tick/time.Microsecond))) * time.Microsecond)
}

// timely ends faults whose time is over.
func (h *history) timely() {
	now := time.Now()
	for _, n := range h.nodes {
		if n.paused && now.After(n.wakes) {
			n.paused = false
		}
		if n.split != joined && now.After(n.heals) {
			n.split = joined
		}
	}
	if h.full && now.After(h.space) {
		h.full = false
	}
}

// decision is what happens next: a text that names it, and the doing.
type decision struct {
	text string
	do   func()
}

// next decides: as the script says, or else by the seed.
func (h *history) next() decision {
	ready := h.sched.ready()
	for len(h.script) > 0 {
		_, line, _ := strings.Cut(h.script[0], " ")
		h.script = h.script[1:]
		if d, ok := h.parse(line, ready); ok {
			return d
		}
		h.strayed++
	}
	return h.draw(ready)
}

// draw decides by the seed.
func (h *history) draw(ready []*parked) decision {
	t, r := &h.temper, h.choose
	roll := func(chance int) bool { return !h.calm && r.IntN(1000) < chance }
	if len(h.serving()) == 0 && len(h.alive()) < h.most && !h.ending {
		return h.decide("begin")
	}
	if roll(t.command) && h.clients.busy() < 4 {
		return h.decide("command")
	}
	if ids, _ := h.watch.flying(); h.clients.busy() < 4 && len(ids) > 0 && roll(t.meddle) {
		return h.decide("meddle")
	}
	if h.clients.busy() < 4 && h.watch.letters() && roll(t.bulk) {
		return h.decide("bulk")
	}
	if roll(t.fault) {
		if d, ok := h.drawFault(); ok {
			return d
		}
	}
	var told, aired []*node
	for _, n := range h.alive() {
		if len(n.news) > 0 && !n.paused && n.split != hangs {
			told = append(told, n)
		}
		if n.hears() && !n.paused {
			aired = append(aired, n)
		}
	}
	choices := len(ready) + len(told) + len(aired)
	if choices == 0 {
		return h.decide("pass 1h")
	}
	if roll(t.pass) || h.calm && r.IntN(200) == 0 {
		return h.decide("pass " + []string{"20ms", "300ms", "2s", "7s", "20s"}[r.IntN(5)])
	}
	i := r.IntN(choices)
	if i >= len(ready)+len(told) {
		if roll(t.lose) {
			return h.decide("drop " + aired[i-len(ready)-len(told)].name)
		}
		return h.decide("air " + aired[i-len(ready)-len(told)].name)
	}
	if i >= len(ready) {
		if roll(t.lose) {
			return h.decide("lose " + told[i-len(ready)].name)
		}
		return h.decide("tell " + told[i-len(ready)].name)
	}
	return h.go1(ready[i], h.drawVerdict(ready[i], roll))
}

func (h *history) drawVerdict(p *parked, roll func(int) bool) verdict {
	t, n := &h.temper, p.n
	if p.kind == outside {
		switch {
		case roll(t.cut):
			return cut
		case roll(t.twice):
			return twice
		}
		return proceed
	}
	if p.ctx.Err() != nil && p.kind != reads && h.choose.IntN(3) == 0 {
		return lingers
	}
	switch {
	case n.split == errs:
		return errApart
	case h.full && p.kind != reads:
		return errNoRoom
	}
	writes := p.kind != reads
	switch {
	case writes && n.d != nil && h.crashes < 6 && roll(t.crash):
		return []verdict{crashBefore, crashAfter}[h.choose.IntN(2)]
	case roll(t.fail):
		if writes {
			return []verdict{errBefore, errAfter}[h.choose.IntN(2)]
		}
		return errBefore
	case roll(t.late):
		return late
	}
	return proceed
}

// drawFault draws what happens to a node, or to all.
func (h *history) drawFault() (decision, bool) {
	r, nodes := h.choose, h.serving()
	if len(nodes) == 0 {
		return decision{}, false
	}
	n := nodes[r.IntN(len(nodes))]
	if r.IntN(2) == 0 { // one that is in the middle of something
		for _, p := range h.sched.ready() {
			if p.kind == outside && !p.n.stopping {
				n = p.n
			}
		}
	}
	long := []string{"200ms", "3s", "12s", "40s"}[r.IntN(4)]
	switch r.IntN(8) {
	case 0:
		if h.crashes < 6 {
			return h.decide("crash " + n.name), true
		}
	case 1:
		if h.lives < 10 {
			return h.decide("stop " + n.name), true
		}
	case 2, 3:
		if len(h.alive()) < h.most && h.lives < 12 {
			return h.decide("begin"), true
		}
	case 4, 5:
		return h.decide("pause " + n.name + " " + long), true
	case 6:
		return h.decide("split " + n.name + " " + string([]split{errs, hangs}[r.IntN(2)]) + " " + long), true
	case 7:
		return h.decide("full " + long), true
	}
	return decision{}, false
}

func (h *history) decide(text string) decision {
	d, ok := h.parse(text, nil)
	if !ok {
		panic("sim: " + text)
	}
	return d
}

// go1 lets one call go on.
func (h *history) go1(p *parked, v verdict) decision {
	text := "go " + p.key
	if v != proceed {
		text += " ! " + string(v)
	}
	return decision{text, func() {
		switch v {
		case crashBefore, crashAfter:
			h.crashes++
		}
		h.count(string(v))
		h.sched.release(p, v)
	}}
}

// parse reads a decision. false: it cannot be done now.
func (h *history) parse(text string, ready []*parked) (decision, bool) {
	word, rest, _ := strings.Cut(text, " ")
	args := strings.Fields(rest)
	var n *node
	if len(args) > 0 {
		for _, x := range h.alive() {
			if x.name == args[0] {
				n = x
			}
		}
	}
	long := func(i int) time.Duration {
		if i >= len(args) {
			return 0
		}
		d, _ := time.ParseDuration(args[i])
		return d
	}
	if h.ending && slices.Contains([]string{"begin", "command", "meddle", "bulk", "resolve", "full"}, word) {
		return decision{}, false // a script that does not fit any more: nothing begins while the nodes stop
	}
	switch word {
	case "go":
		key, v, _ := strings.Cut(rest, " ! ")
		for _, p := range ready {
			if p.key == key {
				return h.go1(p, verdict(v)), true
			}
		}
		return decision{}, false
	case "pass":
		return decision{text, func() { h.pass(long(0)) }}, true
	case "begin":
		return decision{text, h.begin}, true
	case "command":
		return decision{text, func() { h.clients.act((*client).command) }}, true
	case "meddle":
		return decision{text, func() { h.clients.act((*client).meddle) }}, true
	case "bulk":
		return decision{text, func() { h.clients.act((*client).bulk) }}, true
	case "resolve":
		return decision{text, func() { h.clients.act((*client).resolve) }}, true
	case "full":
		return decision{text, func() { h.full, h.space = true, time.Now().Add(long(0)); h.count("disk full") }}, true
	}
	if n == nil {
		return decision{}, false
	}
	switch word {
	case "tell":
		return decision{text, func() {
			news := n.news
			n.news = nil
			n.d.Heard(news)
		}}, true
	case "air":
		return decision{text, func() {
			for _, a := range n.takeAirs() {
				n.hub.Deliver(a.stream, a.delta)
				h.count("delta from another node")
			}
		}}, true
	case "drop":
		return decision{text, func() {
			for _, a := range n.takeAirs() {
				n.hub.Lost(a.stream)
				h.count("delta lost on the way")
			}
		}}, true
	case "lose":
		return decision{text, func() { n.news = nil; h.count("news lost") }}, true
	case "crash":
		return decision{text, func() { h.crashes++; h.crash(n) }}, true
	case "stop":
		return decision{text, func() { h.stop(n) }}, true
	case "pause":
		return decision{text, func() { n.paused, n.wakes = true, time.Now().Add(long(1)); h.count("pause") }}, true
	case "split":
		return decision{text, func() {
			n.split, n.heals = split(args[1]), time.Now().Add(long(2))
			h.count("split " + args[1])
		}}, true
	}
	return decision{}, false
}

// pass lets time go by until something comes, or a fault is over.
func (h *history) pass(long time.Duration) {
	for _, n := range h.alive() {
		if n.paused {
			long = min(long, time.Until(n.wakes)+1)
		}
		if n.split != joined {
			long = min(long, time.Until(n.heals)+1)
		}
	}
	t := time.NewTimer(long)
	defer t.Stop()
	select {
	case <-t.C:
	case <-h.sched.arrived:
	}
}

// How long the nodes may take until all is done, once nothing fails any more.
const (
	settleSteps = 20_000
	settleTime  = 10 * time.Minute
)

// againCalm is how often a person sees to deliveries once nothing fails any more,
// where there is a dead letter: to one by one, and in the end to many.
const againCalm = 4

// calmMeddle is how often a person has a word on a receiver then that is being sent
// something once more.
const calmMeddle = 3

// calmLine stands in a history where the faults of an act are over, stirLine where
// the second act begins.
const calmLine, stirLine = "calm", "stir"

// lengths takes how long the acts are from the script, where there is one.
func (h *history) lengths() {
	calm := slices.Index(h.script, calmLine)
	if calm < 0 {
		return
	}
	h.temper.length, h.temper.second = calm, 0
	script := slices.Delete(slices.Clone(h.script), calm, calm+1)
	if stir := slices.Index(script, stirLine); stir >= 0 {
		script = slices.Delete(script, stir, stir+1)
		h.temper.second = len(script) - stir
		if again := slices.Index(script, calmLine); again >= 0 {
			h.temper.second = again - stir
			script = slices.Delete(script, again, again+1)
		}
	}
	h.script = script
}

// stir begins a second act, once all runs and deliveries came to their end: what
// people do with dead letters in numbers, under faults as before.
func (h *history) stir() {
	h.trace.add(stirLine)
	h.calm, h.crashes = false, 0
	h.world.mu.Lock()
	h.world.calm = false
	h.world.mu.Unlock()
	for end := h.steps + h.temper.second; h.steps < end && !h.watch.broken(); {
		h.turn()
	}
}

// settle ends all faults and lets the nodes work until nothing is left to do; at
// last with people who see to what arrived nowhere.
func (h *history) settle(last bool) {
	h.calm, h.full = true, false
	h.trace.add(calmLine)
	for _, n := range h.nodes {
		n.paused, n.split = false, joined
	}
	h.world.mu.Lock()
	h.world.calm = true
	h.world.mu.Unlock()
	began, first := time.Now(), h.steps
	for again, meddled := 0, 0; !h.watch.broken(); {
		synctest.Wait()
		if last && again < againCalm && h.watch.letters() && h.clients.busy() == 0 && len(h.serving()) > 0 {
			if again++; again < againCalm {
				h.clients.act((*client).again)
			} else {
				h.clients.act(func(c *client) { c.replayAll(c.choice()) })
			}
		}
		runs, deliveries, jobs := h.watch.unsettled()
		if runs+deliveries+jobs+h.clients.busy() == 0 && h.quiet() {
			break
		}
		if time.Since(began) > settleTime || h.steps-first > settleSteps {
			h.watch.find("something is stuck: %d runs, %d deliveries, %d jobs, %d clients", runs, deliveries, jobs, h.clients.busy())
			break
		}
		if len(h.watch.doubts()) > 0 && h.clients.busy() == 0 && len(h.serving()) > 0 {
			h.clients.act((*client).resolve)
		}
		if h.watch.parked() && h.clients.busy() == 0 && len(h.serving()) > 0 {
			h.clients.act((*client).receiver)
		}
		if _, again := h.watch.flying(); again && meddled < calmMeddle && h.temper.meddle > 0 && h.clients.busy() == 0 && len(h.serving()) > 0 {
			meddled++
			h.clients.act((*client).meddle)
		}
		h.turn()
	}
	h.calmed = max(h.calmed, time.Since(began))
}

// quiet says whether nothing waits but time.
func (h *history) quiet() bool {
	synctest.Wait()
	if len(h.sched.ready()) > 0 {
		return false
	}
	for _, n := range h.alive() {
		if len(n.news) > 0 {
			return false
		}
	}
	return true
}

// end stops all nodes and looks at the log as it stands.
func (h *history) end() {
	h.clients.mu.Lock()
	follows := h.clients.follows
	h.clients.mu.Unlock()
	ok := !h.watch.broken()
	if ok && len(h.serving()) > 0 {
		h.caughtUp(follows)
	}
	for _, f := range follows {
		f.end()
	}
	h.ending = true
	for _, n := range h.alive() {
		if !n.stopping {
			h.stop(n)
		}
	}
	for first := h.steps; len(h.alive()) > 0 && h.steps-first < 2000; {
		h.turn()
	}
	if left := h.alive(); len(left) > 0 {
		h.watch.find("%s does not stop", left[0].name)
		for _, n := range left {
			h.sched.drop(n)
		}
	}
	synctest.Wait() // whoever dies now has left what lingers
	h.tallyMu.Lock()
	for _, n := range h.ghosts {
		h.sched.drop(n)
	}
	h.tallyMu.Unlock()
	h.beside.Wait()
	if ok {
		h.compare()
	}
	if err := h.store.Close(context.Background()); err != nil {
		h.watch.find("close: %v", err)
	}
}

// caughtUp waits for followers to reach the end of their streams (I-18).
func (h *history) caughtUp(follows []*follower) {
	behind := func() string {
		for _, f := range follows {
			f.mu.Lock()
			last := f.last
			f.mu.Unlock()
			h.watch.mu.Lock()
			st := h.watch.streams[sessionStream(f.s.id)]
			head := int64(len(st.hashes))
			h.watch.mu.Unlock()
			if last < head && !st.erased {
				return fmt.Sprintf("I-18: a follower of %s has %d of %d events", f.s.id, last, head)
			}
		}
		return ""
	}
	for first := h.steps; h.steps-first < 500; h.turn() {
		if synctest.Wait(); behind() == "" {
			return
		}
	}
	h.watch.find("%s", behind())
}

// compare reads the whole log and holds it against what was seen of it.
func (h *history) compare() {
	ctx := context.Background()
	w := h.watch
	for _, st := range w.order {
		events, err := h.store.Read(ctx, st.id, 0, 100_000)
		if err != nil || len(events) != len(st.hashes) {
			w.find("I-01: %s has %d events, and %d were seen (%v)", st.id, len(events), len(st.hashes), err)
			continue
		}
		for i := range events {
			if events[i].Hash != st.hashes[i] {
				w.find("I-01: the event %d of %s is another than was seen", i+1, st.id)
			}
			if st.erased && i < len(events)-1 && !events[i].Erased() {
				w.find("the event %d of %s keeps its content, and was erased", i+1, st.id)
			}
		}
	}
	for id, t := range w.owed {
		w.find("I-24: the output of %s was never enqueued for %s", id, t)
	}
	h.deliveries(ctx)
	for _, k := range h.clients.keyed {
		if k.id != "" && string(h.clients.inLog[k.task]) != k.id {
			w.find("I-07: %s was acknowledged with %s and is %s", k.key, k.id, h.clients.inLog[k.task])
		}
	}
	report, err := h.store.Verify(ctx, sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		w.find("I-01, I-03, I-04: verify: %v %+v", err, report.Findings)
	}
}

// deliveries holds what receivers have against the outbox (I-26).
func (h *history) deliveries(ctx context.Context) {
	rows, _, err := h.store.Deliveries(ctx, eventlog.DeliveryFilter{}, eventlog.Page{Limit: 10_000})
	if err != nil {
		h.watch.find("deliveries: %v", err)
	}
	for _, row := range rows {
		r := h.world.received[row.ID]
		if r == nil {
			continue
		}
		body, _, err := h.store.Blob(ctx, row.SessionID, row.Body)
		if errors.Is(err, eventlog.ErrErased) {
			continue
		}
		if err != nil || !bytes.Equal(body, r.body) {
			h.watch.find("I-26: the receiver of %s got other bytes than are stored (%v)", row.ID, err)
		}
	}
}
