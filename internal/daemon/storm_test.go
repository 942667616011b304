package daemon_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

var (
	stormDeliveries = flag.Int("storm.deliveries", 120, "deliveries of the storm on SQLite, roughly")
	stormDeaths     = flag.Int("storm.deaths", 4, "lives of the daemon that end in it, most of them by SIGKILL")
	stormCluster    = flag.Int("storm.cluster", 40, "deliveries of the storm on two nodes over PostgreSQL")
	stormKills      = flag.Int("storm.kills", 2, "lives of nodes that end in that one")
	stormSeed       = flag.Uint64("storm.seed", 1, "seed of the deaths and of what people do meanwhile")
	stormReport     = flag.String("storm.report", "", "a page between whose marks the figures are written anew, such as docs/reliability.md")
	stormPatience   = flag.Duration("storm.patience", 10*time.Minute, "bound of each part of a storm; what takes longer hangs")
)

// TestStorm is the promise of the outbox, kept in the worst weather: runs answer
// to receivers that fail in every way (C56, C57, C58, C42, the table of retries),
// while the daemon is killed over and over and people pause, resume and reset
// targets. Each delivery ends, delivered or as a dead letter, as its receiver's
// way has it; then some dead letters are replayed, with deaths again, and a last
// part in a life that is left alone, whose metrics are compared. What the log says
// and what the receivers saw must be one story (I-24, I-25, I-26).
func TestStorm(t *testing.T) {
	figures := &stormSet{}
	t.Run("on", func(t *testing.T) {
		t.Run("sqlite", func(t *testing.T) {
			t.Parallel()
			figures.add(playStorm(t, "SQLite, one node", 1, "", *stormDeliveries, *stormDeaths))
		})
		t.Run("postgres", func(t *testing.T) {
			t.Parallel()
			figures.add(playStorm(t, "PostgreSQL, two nodes", 2, storetest.Database(t), *stormCluster, *stormKills))
		})
	})
	figures.report(t)
}

// storm is one of them.
type storm struct {
	t        *testing.T
	seed     uint64
	ctx      context.Context
	s        *sky
	database string // empty: SQLite
	nodes    []*keeper
	on       []*caller
	sessions int
	rounds   int // runs of each session
	deaths   int

	mu   sync.Mutex
	dead int           // lives that were ended so far in this part
	died chan struct{} // closed, and made anew, when one was
	ends []lifeEnd
	runs map[string]*stormRun // by id

	again map[string]bool // deliveries that were replayed
	told  *seen
	met   map[string]int  // what the log tells
	waits []time.Duration // of deliveries to receivers that are well
}

// lifeEnd is when a node's life was ended, by whom.
type lifeEnd struct {
	from, to time.Time
	how      string
}

// stormRun is what a client knows of a run.
type stormRun struct {
	paths []string // of its receivers
	size  string   // of its answer: small, large, oversize
}

const (
	stormTargets = 8  // of a session; more are not allowed
	stormStep    = 31 // from way to way, so that a few sessions meet some of each kind
)

func playStorm(t *testing.T, name string, nodes int, database string, deliveries, deaths int) *stormFigures {
	began := time.Now()
	st := newStorm(t, nodes, database, deliveries, deaths)
	defer st.keep()
	st.weather()
	st.replays()
	st.told = st.calm()
	st.check(st.told)
	return st.figures(name, time.Since(began))
}

func newStorm(t *testing.T, nodes int, database string, deliveries, deaths int) *storm {
	runs := max((deliveries+stormTargets-1)/stormTargets, 1)
	st := &storm{
		t: t, seed: *stormSeed, s: newSky(t), database: database, deaths: deaths, rounds: min(max(runs/20, 2), 10), died: make(chan struct{}),
		runs: map[string]*stormRun{}, again: map[string]bool{},
	}
	st.sessions = (runs + st.rounds - 1) / st.rounds
	st.ctx = within(t, 4**stormPatience)
	dir := t.TempDir()
	script := filepath.Join(dir, "model.yaml")
	if err := os.WriteFile(script, []byte(stormScript()), 0o600); err != nil {
		t.Fatal(err)
	}
	for range nodes {
		k := newKeeper(t, st.config(script))
		k.quiet = true
		c := newCaller(t, k)
		c.stops = true
		st.nodes, st.on = append(st.nodes, k), append(st.on, c)
	}
	return st
}

// stormScript is a model that answers at once, in three sizes.
func stormScript() string {
	rule := func(word string, bytes int) string {
		return fmt.Sprintf("  - when: {contains: %s}\n    reply: {chunk: 100000, text: %q}\n", word, strings.Repeat(word+" ", bytes/(len(word)+1)))
	}
	return "rules:\n" + rule("oversize", stormPayload) + rule("large", 20<<10) + "  - reply: {text: \"all is well\"}\n"
}

func (st *storm) config(script string) map[string]any {
	delivery, overrides := stormDelivery(st.s.plain.URL, "http://"+st.s.mute.Addr().String(), "https://"+st.s.mute.Addr().String())
	c := map[string]any{
		"listen": "127.0.0.1:0", "data_dir": "data",
		"routes":   map[string]any{"main": map[string]any{"provider": "scripted", "script": script}},
		"secrets":  map[string]any{"hook": map[string]any{"env": envSecret}},
		"targets":  map[string]any{"signing_secret": "hook", "allow_private": []string{"127.0.0.1/32"}, "overrides": overrides},
		"delivery": delivery,
		"store":    map[string]any{"sync": "normal"}, // a killed process loses nothing that it wrote
		"shutdown": map[string]any{"drain": "5s"},
	}
	if st.database != "" {
		c["database_url"] = storetest.WithParams(st.t, st.database, "pool_max_conns", "6")
		c["lease"] = map[string]any{"ttl": clusterLease.String()}
	}
	return c
}

// weather is the storm itself: the runs, the deaths, and people.
func (st *storm) weather() {
	st.t.Helper()
	st.part("the storm", st.deaths, st.play)
}

// part plays something while lives end and people do things, until nothing is
// pending any more.
func (st *storm) part(what string, deaths int, play func(ctx context.Context) error) {
	st.t.Helper()
	st.s.part()
	ctx, cancel := context.WithTimeout(st.ctx, *stormPatience)
	defer cancel()
	over, settled := make(chan struct{}), make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		if !st.killer(deaths, over) {
			cancel() // there is no daemon any more
		}
	})
	others.Go(func() { st.people(ctx, over, settled) })
	err := play(ctx)
	if err == nil {
		err = st.await(ctx, func() bool { return st.dead >= deaths })
	}
	close(over)
	if err == nil {
		err = st.settle(ctx)
	}
	close(settled)
	others.Wait()
	if err != nil {
		st.t.Fatalf("%s: %v", what, err)
	}
	st.mu.Lock()
	st.dead = 0
	st.mu.Unlock()
}

// await waits until is says true, which is asked with the lock held after each death.
func (st *storm) await(ctx context.Context, is func() bool) error {
	for {
		st.mu.Lock()
		ok, died := is(), st.died
		st.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-died:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// play has clients submit runs, in rounds that are spread over the deaths.
func (st *storm) play(ctx context.Context) error {
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = err
		}
	}
	for round := range st.rounds {
		if err := st.await(ctx, func() bool { return st.dead*st.rounds >= st.deaths*round }); err != nil {
			return err
		}
		all(st.sessions, func(i int) {
			if err := st.submit(ctx, i, round); err != nil {
				fail(err)
			}
		})
		if failed != nil {
			return failed
		}
	}
	return nil
}

// submit has a session answer to its receivers: eight ways, the next session's are
// the eight after those, so that each receiver has several senders.
func (st *storm) submit(ctx context.Context, i, round int) error {
	c := st.on[(i+round)%len(st.on)]
	alias := fmt.Sprintf("storm-%d", i)
	ways := stormWays()
	r := &stormRun{size: "small"}
	var targets []api.ReplyTarget
	for n := range stormTargets {
		w := ways[(i*stormTargets+n)*stormStep%len(ways)]
		r.paths = append(r.paths, w.path())
		targets = append(targets, api.ReplyTarget{Type: "webhook", URL: st.s.url(w)})
	}
	if round == 0 {
		if err := c.createSession(ctx, api.CreateSession{ID: alias, ReplyTargets: targets}); err != nil {
			return err
		}
	}
	switch number := i*st.rounds + round; {
	case number%37 == 11:
		r.size = "oversize"
	case number%7 == 3:
		r.size = "large"
	}
	run, _, err := c.submit(ctx, alias, fmt.Sprintf("key-%d-%d", i, round), fmt.Sprintf("order %d, %s", round, r.size))
	if err == nil {
		run, err = c.settle(ctx, run.ID)
	}
	if err == nil && run.Status != api.RunCompleted {
		err = fmt.Errorf("run %s is %s: %+v", run.ID, run.Status, run.Error)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.runs[run.ID] = r
	return err
}

// stormTypes are the facts around whose appends lives end.
var stormTypes = []event.Type{
	event.TypeDeliveryEnqueued, event.TypeDeliveryAttemptStarted, event.TypeDeliveryAttemptStarted, event.TypeDeliveryAttemptFailed,
	event.TypeDeliveryAttemptFailed, event.TypeDeliveryDelivered, event.TypeDeliveryDelivered, event.TypeDeliveryDeadLettered,
	"target.circuit.opened", "target.circuit.half_opened", "target.circuit.closed", "target.paused", event.TypeOutputEmitted, event.TypeDeliveryReplayed, "",
}

// killer ends lives, one after the other, on one node and then on the next. False:
// one ended by itself.
func (st *storm) killer(deaths int, over <-chan struct{}) bool {
	rnd := seeded(st.seed ^ uint64(deaths))
	for i := range st.nodes {
		if l := st.nodes[i].life(); l == nil || l.over(st.nodes[i]) {
			st.begin(st.nodes[i], nil)
		}
	}
	for n := range deaths {
		k := st.nodes[n%len(st.nodes)]
		l := k.life()
		how, from := st.endLife(rnd, k, l, over)
		if how == "" {
			return !l.over(k)
		}
		st.mu.Lock()
		st.ends = append(st.ends, lifeEnd{from: from, to: time.Now(), how: how})
		st.dead++
		close(st.died)
		st.died = make(chan struct{})
		st.mu.Unlock()
		var next *killAt
		if n+len(st.nodes) < deaths { // the last life of each goes on
			next = randomStormKill(rnd)
		}
		if st.begin(k, next) == nil {
			return false
		}
	}
	return true
}

// begin begins a life. On a machine that has much to do a node may not get its
// lease in time, and ends again: whoever looks after it begins it anew.
func (st *storm) begin(k *keeper, kill *killAt) *life {
	l := k.restart(kill)
	for tries := 0; l != nil && st.database != ""; tries++ {
		k.listens(l, st.ctx.Done())
		k.mu.Lock()
		failed := l.address == "" && l.ended && l.killed == ""
		k.mu.Unlock()
		if !failed {
			break
		}
		if tries == 20 {
			st.t.Errorf("a node does not begin: %v; see %s", l.err, l.log)
			return nil
		}
		l = k.restart(kill)
	}
	return l
}

// randomStormKill gives the next life an append to die at, or none.
func randomStormKill(rnd *rand.Rand) *killAt {
	if rnd.IntN(5) < 2 {
		return nil
	}
	typ := stormTypes[rnd.IntN(len(stormTypes))]
	n := 1 + rnd.IntN(40)
	if strings.HasPrefix(string(typ), "target.") {
		n = 1 + rnd.IntN(5)
	}
	return &killAt{Side: []string{"before", "after"}[rnd.IntN(2)], N: n, Type: typ}
}

// endLife ends a life as chance has it, and says how; it was ended after from.
// Empty: nobody is interested any more, and it lives.
func (st *storm) endLife(rnd *rand.Rand, k *keeper, l *life, over <-chan struct{}) (how string, from time.Time) {
	early, stop := rnd.IntN(16) == 0 && st.database == "", rnd.IntN(8) == 0
	wait := 100*time.Millisecond + time.Duration(rnd.Int64N(int64(600*time.Millisecond)))
	if st.database != "" { // who comes back has to wait for the lease of who died
		wait += clusterLease / 2
	}
	if early && l.kill == nil {
		wait = time.Duration(rnd.Int64N(int64(150 * time.Millisecond)))
	} else {
		k.listens(l, over)
	}
	if l.kill != nil {
		wait += 700 * time.Millisecond
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	from = time.Now()
	select {
	case <-l.gone:
		if st.diedAtAppend(k, l) {
			return "append", from
		}
		return "", from // it died of something else, which whoever waits sees
	case <-over:
		return "", from
	case <-timer.C:
	}
	from = time.Now()
	if stop && !early {
		_ = l.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-l.gone:
			if l.err != nil && !st.diedAtAppend(k, l) {
				st.t.Errorf("a node stopped with %v", l.err)
			}
			return "stop", from
		case <-time.After(*patience):
			st.t.Error("a node does not stop")
		}
	}
	k.kill(l)
	if early {
		return "start", from
	}
	return "instant", from
}

func (st *storm) diedAtAppend(k *keeper, l *life) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.killed == "" {
		st.t.Errorf("life %d ended by itself: %v; see %s", l.number, l.err, l.log)
	}
	return l.killed != ""
}

// settle waits until no delivery is pending.
func (st *storm) settle(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		open := 0
		for _, status := range []string{api.DeliveryPending, api.DeliveryRetrying} {
			var page api.List[api.Delivery]
			if err := st.on[0].get(ctx, "/v1/deliveries?limit=5&status="+status, &page); err != nil {
				return fmt.Errorf("deliveries do not come to their end: %w", err)
			}
			open += len(page.Items)
		}
		if open == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d deliveries or more do not come to their end", open)
		}
	}
}

// letters lists the deliveries of a status.
func (st *storm) letters(ctx context.Context, status string) ([]api.Delivery, error) {
	var list []api.Delivery
	for cursor := ""; ; {
		var page api.List[api.Delivery]
		if err := st.on[0].get(ctx, "/v1/deliveries?limit=100&status="+status+"&cursor="+url.QueryEscape(cursor), &page); err != nil {
			return nil, err
		}
		list = append(list, page.Items...)
		if cursor = page.NextCursor; cursor == "" || len(page.Items) == 0 {
			return list, nil
		}
	}
}

// replays gives some dead letters another chance while lives end. Half of their
// receivers are mended.
func (st *storm) replays() {
	st.t.Helper()
	st.s.mend()
	st.part("replays", max(st.deaths/5, 1), func(ctx context.Context) error { return st.replay(ctx, 3, 0) })
}

// replay replays those of the dead letters whose place in the list leaves a rest.
func (st *storm) replay(ctx context.Context, of, rest int) error {
	list, err := st.letters(ctx, api.DeliveryDeadLettered)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b api.Delivery) int { return strings.Compare(a.ID, b.ID) })
	for i := range list {
		if i%of != rest {
			continue
		}
		// What was replayed in an earlier part is so once more only by force.
		req := api.ReplayDelivery{Force: st.again[list[i].ID], Reason: "the storm is over"}
		a, err := st.on[i%len(st.on)].do(ctx, http.MethodPost, "/v1/deliveries/"+list[i].ID+"/replay", req)
		if err != nil {
			return err
		}
		st.again[list[i].ID] = true
		if a.status != http.StatusAccepted && a.status != http.StatusConflict { // a conflict: the request that a death cut was heard
			return fmt.Errorf("replay of %s: %d %s", list[i].ID, a.status, a.body)
		}
	}
	return nil
}

// people resume the targets that are paused, and now and then pause one, or reset
// its circuit, until settled.
func (st *storm) people(ctx context.Context, over, settled <-chan struct{}) {
	rnd := seeded(st.seed ^ 0xbeef)
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for busy := true; ; {
		select {
		case <-settled:
			return
		case <-ctx.Done():
			return
		case <-over:
			busy, over = false, nil
		case <-tick.C:
		}
		if err := st.tend(ctx, rnd, busy); err != nil && ctx.Err() == nil {
			st.t.Errorf("people: %v", err)
			return
		}
	}
}

// tend looks at the targets once.
func (st *storm) tend(ctx context.Context, rnd *rand.Rand, busy bool) error {
	say := func(id, word string) error {
		a, err := st.on[rnd.IntN(len(st.on))].do(ctx, http.MethodPost, "/v1/targets/"+id+"/"+word, map[string]any{"reason": "the storm"})
		if err == nil && (a.status < 200 || a.status > 299) && a.status != http.StatusConflict {
			err = fmt.Errorf("%s of %s: %d %s", word, id, a.status, a.body)
		}
		return err
	}
	for cursor := ""; ; {
		var page api.List[stormTarget]
		if err := st.on[rnd.IntN(len(st.on))].get(ctx, "/v1/targets?limit=100&cursor="+url.QueryEscape(cursor), &page); err != nil {
			return err
		}
		for _, target := range page.Items {
			if target.Paused != nil && rnd.IntN(3) > 0 {
				if err := say(target.ID, "resume"); err != nil {
					return err
				}
			}
		}
		if n := len(page.Items); busy && n > 0 && rnd.IntN(4) == 0 {
			word := []string{"pause", "reset", "resume"}[rnd.IntN(3)]
			if err := say(page.Items[rnd.IntN(n)].ID, word); err != nil {
				return err
			}
		}
		if cursor = page.NextCursor; cursor == "" || len(page.Items) == 0 {
			return nil
		}
	}
}

// stormTarget is what the test reads of a target.
type stormTarget struct {
	ID     string `json:"id"`
	Paused any    `json:"paused"`
}

// seen is what the metrics of lives say that were left alone.
type seen struct {
	since   int                // events of the log before
	metrics map[string]float64 // by name and labels; counters of several nodes taken together
	ledger  map[string]int     // deliveries by status, as the API lists them
}

// calm begins every node anew, replays a last part, and reads the metrics when all
// is over. Then the nodes stop in order.
func (st *storm) calm() *seen {
	st.t.Helper()
	for _, k := range st.nodes {
		k.kill(k.life())
	}
	out := &seen{metrics: map[string]float64{}, ledger: map[string]int{}}
	for _, k := range st.nodes {
		l := st.begin(k, nil)
		if l == nil {
			st.t.FailNow()
		}
		k.listens(l, st.ctx.Done())
	}
	feed, err := st.on[0].feed(st.ctx)
	if err != nil {
		st.t.Fatal(err)
	}
	out.since = len(feed)
	st.part("the calm", 0, func(ctx context.Context) error { return st.replay(ctx, 5, 1) })
	for _, status := range []string{api.DeliveryDelivered, api.DeliveryDeadLettered, api.DeliveryPending, api.DeliveryRetrying, api.DeliveryResolved} {
		list, err := st.letters(st.ctx, status)
		if err != nil {
			st.t.Fatal(err)
		}
		out.ledger[status] = len(list)
	}
	for i, k := range st.nodes {
		a, err := st.on[i].do(st.ctx, http.MethodGet, "/metrics", nil)
		if err != nil || a.status != http.StatusOK {
			st.t.Fatalf("metrics: %d %s %v", a.status, a.body, err)
		}
		for line := range strings.Lines(string(a.body)) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
			v, err := strconv.ParseFloat(value, 64)
			if !ok || name == "#" || err != nil {
				continue
			}
			if strings.Contains(name, "_total") || strings.HasSuffix(name, "_count") {
				out.metrics[name] += v
			} else {
				out.metrics[name] = v
			}
		}
		k.stop(k.life())
	}
	return out
}
