package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// check compares the log, what the receivers saw and what the metrics say. The
// stores are verified first: rows made anew are those in place.
func (st *storm) check(told *seen) {
	st.t.Helper()
	var events []event.Event
	if st.database == "" {
		events = readStore(st.t, st.nodes[0].dir)
	} else {
		events = readCluster(st.t, st.database)
	}
	h := st.tell(events)
	st.met = h.met
	st.met["events"] = len(events)
	st.ended(h)
	st.checkBodies(h)
	st.checkVisits(h)
	st.checkLanes(h)
	st.checkMetrics(h, events, told)
	st.waits = h.waits
}

// ended: each run has its deliveries, and each delivery its end (I-24).
func (st *storm) ended(h *stormStory) {
	st.t.Helper()
	if len(h.outputs) != len(st.runs) {
		st.t.Errorf("I-24: %d runs were accepted, %d have an output", len(st.runs), len(h.outputs))
	}
	for id := range st.runs {
		if n := len(h.outputs[id]); n != stormTargets {
			st.t.Errorf("I-24: the output of run %s goes to %d receivers of %d", id, n, stormTargets)
		}
		for _, d := range h.outputs[id] {
			if h.letters[d] == nil {
				st.t.Errorf("I-24: the delivery %s of run %s was never enqueued", d, id)
			}
		}
	}
	for _, l := range h.letters {
		if l.status == "" || l.open {
			st.t.Errorf("I-24: %s at %s has no end (open: %t) after %d attempts", l.id, l.lane.way.path(), l.open, l.attempts)
		}
	}
}

// checkBodies: what was received is what is stored (I-26).
func (st *storm) checkBodies(h *stormStory) {
	st.t.Helper()
	blob, closed := st.blobs()
	defer closed()
	for _, l := range h.letters {
		stored, err := blob(l.session, l.body)
		if err != nil {
			st.t.Errorf("I-26: the body of %s: %v", l.id, err)
			continue
		}
		if got, came := st.s.bodies[l.id]; came && !bytes.Equal(got, stored) {
			st.t.Errorf("I-26: %s was received as %.200s and is stored as %.200s", l.id, got, stored)
		}
	}
}

// blobs opens the store once more, to read from it.
func (st *storm) blobs() (read func(event.SessionID, string) ([]byte, error), closed func()) {
	ctx := context.Background()
	type store interface {
		Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
		Close(ctx context.Context) error
	}
	var s store
	var err error
	if st.database == "" {
		s, err = sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(st.nodes[0].dir, "data"), Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot})
	} else {
		s, err = postgres.Open(ctx, postgres.Config{URL: st.database, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion, CheckSnapshot: eventlog.CheckSnapshot})
	}
	if err != nil {
		st.t.Fatal(err)
	}
	read = func(owner event.SessionID, ref string) ([]byte, error) {
		data, _, err := s.Blob(ctx, owner, ref)
		return data, err
	}
	return read, func() {
		if err := s.Close(ctx); err != nil {
			st.t.Error(err)
		}
	}
}

// checkVisits compares each request with the log: it was begun, it went where it
// was to go, and what came of it is what was answered. A receiver that knows an id
// again has each effect once (C56).
func (st *storm) checkVisits(h *stormStory) {
	st.t.Helper()
	for _, f := range st.s.faults {
		st.t.Errorf("the receivers: %s", f)
	}
	answered := map[string]map[string]int{} // by delivery: as the log would name it
	for i := range st.s.visits {
		v := &st.s.visits[i]
		if answered[v.id] == nil {
			answered[v.id] = map[string]int{}
		}
		answered[v.id][v.name()]++
		if l := h.letters[v.id]; l == nil || l.lane.way.path() != v.path {
			st.t.Errorf("I-24: %s received %s, which is not its", v.path, v.id)
		}
	}
	for id, l := range h.letters {
		n := st.s.counts[id]
		if n > l.attempts {
			st.t.Errorf("I-26: %s at %s came %d times in %d attempts", id, l.lane.way.path(), n, l.attempts)
		}
		for name, n := range l.answers {
			if (name == "delivered" || strings.HasPrefix(name, "http_") || name == "redirect") && n > answered[id][name] {
				st.t.Errorf("I-24: %s at %s: %d attempts were %s, the receiver answered so %d times", id, l.lane.way.path(), n, name, answered[id][name])
			}
		}
		for name, n := range answered[id] { // what was answered was heard, unless death or time came between
			if name != "" && n > l.answers[name]+l.answers["abandoned"]+l.answers["timeout"] {
				st.t.Errorf("I-24: %s at %s was answered %d times with %s, the log has %v", id, l.lane.way.path(), n, name, l.answers)
			}
		}
		if l.status == "delivered" && !st.s.known[id] {
			st.t.Errorf("I-24: %s at %s is delivered, and was never taken", id, l.lane.way.path())
		}
	}
	done := 0
	for what, n := range st.s.effects {
		if done++; n != 1 {
			st.t.Errorf("C56: %s was done %d times", what, n)
		}
	}
	if done != len(st.s.known) {
		st.t.Errorf("C56: %d messages were taken, %d things done", len(st.s.known), done)
	}
}

// name is what the log calls an answer; empty: it was none.
func (v *visit) name() string {
	switch {
	case v.status == 0:
		return ""
	case v.status/100 == 2:
		return "delivered"
	case v.status/100 == 3:
		return "redirect"
	}
	return "http_" + strconv.Itoa(v.status)
}

// checkLanes: each receiver was sent one delivery after the other, in the order of
// its stream, one at a time, and nothing while its circuit was open (I-25, C57).
func (st *storm) checkLanes(h *stormStory) {
	st.t.Helper()
	visits := map[string][]*visit{}
	for i := range st.s.visits {
		v := &st.s.visits[i]
		visits[v.path] = append(visits[v.path], v)
	}
	weather := map[string]bool{} // what came before anything was replayed
	for i := range st.s.visits[:st.s.parts[1]] {
		weather[st.s.visits[i].id] = true
	}
	for _, lane := range h.lanes {
		path, seen := lane.way.path(), []string{}
		mine := visits[path]
		if !lane.way.rules().loose {
			st.alone(path, mine)
		}
		if lane.way.rules().timeout > time.Second { // else a request may come late
			for _, v := range mine {
				for _, o := range lane.opened {
					if v.at.After(o.from.Add(slack)) && v.at.Before(o.until.Add(-slack)) {
						st.t.Errorf("C57: %s received %s at %s, its circuit was open from %s to %s", path, v.id, v.at, o.from, o.until)
					}
				}
			}
		}
		for _, v := range mine {
			if n := len(seen); weather[v.id] && (n == 0 || seen[n-1] != v.id) && !(slices.Contains(seen, v.id) && h.letters[v.id].replays > 0) {
				seen = append(seen, v.id)
			}
		}
		want := slices.DeleteFunc(slices.Clone(lane.order), func(id string) bool { return !weather[id] })
		if !lane.way.rules().loose && !slices.Equal(seen, want) {
			st.t.Errorf("I-25: %s received %v, enqueued were %v", path, seen, want)
		}
	}
}

// alone: a request came when the one before was answered, or its sender was dead.
func (st *storm) alone(path string, visits []*visit) {
	st.t.Helper()
	for i := 1; i < len(visits); i++ {
		before, v := visits[i-1], visits[i]
		if before.silent || !before.answered.IsZero() && !v.at.Before(before.answered) {
			continue
		}
		if !slices.ContainsFunc(st.ends, func(e lifeEnd) bool { return !e.to.Before(before.at) && !e.from.After(v.at) }) {
			st.t.Errorf("I-25: %s received %s while it had %s", path, v.id, before.id)
		}
	}
}

// checkMetrics: what is counted is what the log says (C58), from a life's begin on,
// and what is listed.
func (st *storm) checkMetrics(h *stormStory, events []event.Event, told *seen) {
	st.t.Helper()
	steps := map[event.Type]string{
		event.TypeDeliveryEnqueued: "enqueued", event.TypeDeliveryDelivered: "delivered", event.TypeDeliveryDeadLettered: "dead_lettered",
		event.TypeDeliveryReplayed: "replayed", event.TypeDeliveryResolved: "resolved",
	}
	want := map[string]float64{}
	for i := range steps {
		want[steps[i]] = 0
	}
	attempts := map[string]float64{"delivered": 0}
	for i := range events[told.since:] {
		e := &events[told.since+i]
		if step, ok := steps[e.Type]; ok {
			want[step]++
		}
		if e.Type == event.TypeDeliveryAttemptFailed {
			var d telling
			if err := json.Unmarshal(e.Raw, &d); err != nil {
				st.t.Fatal(err)
			}
			attempts[d.Class]++
		}
		if e.Type == event.TypeDeliveryDelivered {
			attempts["delivered"]++
		}
	}
	for step, n := range want {
		if got := told.metrics[fmt.Sprintf("holdfast_deliveries_total{step=%q}", step)]; got != n {
			st.t.Errorf("C58: the metrics count %v deliveries %s, the log has %v", got, step, n)
		}
	}
	for name, n := range told.metrics {
		class, ok := strings.CutPrefix(name, `holdfast_delivery_attempts_total{class="`)
		if class = strings.TrimSuffix(class, `"}`); ok && n != attempts[class] {
			st.t.Errorf("C58: the metrics count %v attempts as %s, the log has %v", n, class, attempts[class])
		}
		delete(attempts, class)
	}
	for class, n := range attempts {
		st.t.Errorf("C58: the metrics do not count the %v attempts that are %s", n, class)
	}
	if got := told.metrics["holdfast_delivery_lag_seconds_count"]; got != want["delivered"] || want["delivered"] == 0 || want["dead_lettered"] == 0 {
		st.t.Errorf("C58: the metrics count the lag of %v deliveries, the log has %v delivered, %v dead letters", got, want["delivered"], want["dead_lettered"])
	}
	ledger := map[string]int{}
	for _, l := range h.letters {
		ledger[l.status]++
	}
	for _, status := range []string{api.DeliveryPending, api.DeliveryRetrying, api.DeliveryResolved, api.DeliveryDelivered, api.DeliveryDeadLettered} {
		if told.ledger[status] != ledger[status] {
			st.t.Errorf("C58: %d deliveries are listed as %s, the log has %d", told.ledger[status], status, ledger[status])
		}
	}
	circuits := map[string]int{}
	for _, lane := range h.lanes {
		circuits[lane.circuit]++
	}
	for name, n := range map[string]int{
		"holdfast_deliveries_pending": 0, "holdfast_deliveries_retrying": 0, "holdfast_deliveries_dead_lettered": ledger[api.DeliveryDeadLettered],
		"holdfast_targets_blocked": 0, "holdfast_targets_paused": h.paused(),
		`holdfast_targets_circuits{state="open"}`: circuits["open"], `holdfast_targets_circuits{state="half_open"}`: circuits["half_open"],
	} {
		if got, ok := told.metrics[name]; !ok || got != float64(n) {
			st.t.Errorf("C58: %s is %v, want %d", name, got, n)
		}
	}
}

func (h *stormStory) paused() (n int) {
	for _, lane := range h.lanes {
		if lane.paused {
			n++
		}
	}
	return n
}

// keep copies the directories of a storm that failed.
func (st *storm) keep() {
	if !st.t.Failed() {
		return
	}
	for i, k := range st.nodes {
		if l := k.life(); l != nil {
			k.kill(l)
		}
		to := filepath.Join(*crashKeep, fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(st.t.Name(), "/", "_"), i, time.Now().Unix()))
		if err := os.CopyFS(to, os.DirFS(k.dir)); err != nil {
			st.t.Logf("keep the history: %v", err)
		}
		st.t.Logf("seed %d; lives ended %v; the history is kept in %s", st.seed, k.ends, to)
	}
}
