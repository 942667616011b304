package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// readStore opens the store of a daemon that is gone, verifies it (I-01, I-03,
// I-04, I-15) and gives every event in the order of commits.
func readStore(t testing.TB, dir string) []event.Event {
	t.Helper()
	ctx := context.Background()
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(dir, "data"), Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	report, err := s.Verify(ctx, sqlite.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		t.Errorf("verify: %s: %s", f.Where, f.Text)
	}
	var all []event.Event
	for pos := eventlog.Position(0); ; {
		page, next, err := s.Feed(ctx, pos, 500, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page {
			if err := p.Event.Decode(); err != nil {
				t.Fatal(err)
			}
			all = append(all, p.Event)
		}
		if len(page) == 0 {
			return all
		}
		pos = next
	}
}

// check holds every invariant against the log and against the world. logs are
// those of sessions, by alias, as a client read them.
func (r *round) check(feed []api.Event, logs map[string][]api.Event) {
	r.t.Helper()
	events := readStore(r.t, r.k.dir)
	sameEvents(r.t, "feed", feed, events)
	for alias, log := range logs {
		sameEvents(r.t, "session "+alias, log, only(events, func(e *event.Event) bool { return string(e.Stream) == log[0].Stream }))
	}
	h := fold(r.t, events)
	for what, n := range h.met {
		r.count(what, n)
	}
	if len(h.runs) != len(r.parts) {
		r.t.Errorf("I-07: %d runs in the log, %d were accepted", len(h.runs), len(r.parts))
	}
	for _, p := range r.parts {
		r.checkPart(h, p)
	}
	for _, v := range r.w.model.Violations() { // I-13: each call has one result, in every request
		r.t.Errorf("the model refused a request: %s", v)
	}
	checkResults(r.t, r.w)
	checkEffects(r.t, r.w, h)
	r.checkDeliveries(h)
	for _, a := range r.acts {
		a.check(r, h)
	}
}

// sameEvents compares what a client read with what is stored.
func sameEvents(t testing.TB, what string, read []api.Event, stored []event.Event) {
	t.Helper()
	if len(read) != len(stored) {
		t.Errorf("%s: a client read %d events, the store has %d", what, len(read), len(stored))
		return
	}
	for i := range read {
		if read[i].ID != stored[i].ID() || read[i].Hash != stored[i].Hash.String() || !bytes.Equal(read[i].Data, stored[i].Raw) && !stored[i].Erased() {
			t.Errorf("%s: event %d: a client read %s#%d, the store has %s#%d", what, i, read[i].Stream, read[i].Seq, stored[i].Stream, stored[i].Seq)
		}
	}
}

func only(events []event.Event, keep func(*event.Event) bool) []event.Event {
	var out []event.Event
	for i := range events {
		if keep(&events[i]) {
			out = append(out, events[i])
		}
	}
	return out
}

// checkPart checks one run of the story.
func (r *round) checkPart(h *history, p *part) {
	t := r.t
	t.Helper()
	run := h.runs[event.RunID(p.run.ID)]
	if run == nil {
		t.Errorf("I-07: order %d: the accepted run %s is lost", p.order, p.run.ID)
		return
	}
	if run.status != p.status || p.run.Status != p.status {
		t.Errorf("order %d is %s in the log and %s to the client, want %s", p.order, run.status, p.run.Status, p.status)
	}
	if run.erased {
		return // no more is known
	}
	if !p.free && (run.steps != p.steps || run.repairs != p.repairs) { // I-09, I-12
		t.Errorf("order %d: %d steps and %d repairs, want %d and %d", p.order, run.steps, run.repairs, p.steps, p.repairs)
	}
	if run.created.Route.Model != "stub-1" || !strings.HasSuffix(run.created.ReplyTargets[0].URL, r.targetOf(p)) { // I-08
		t.Errorf("order %d: captured %+v %+v", p.order, run.created.Route, run.created.ReplyTargets)
	}
	if len(run.types) > 0 && slices.Contains(run.types, event.TypeRunStarted) && (run.pinned != nil) != p.typed {
		t.Errorf("I-08: order %d: pinned contract %v", p.order, run.pinned)
	}
	// A life begins an attempt anew at most once, and the vendor is asked once for each.
	if most := run.steps + r.k.killCount() + run.scheduled; run.attempts > most {
		t.Errorf("I-09: order %d: %d attempts in %d steps", p.order, run.attempts, p.steps)
	}
	if asked := r.w.askedFor(p.order); asked > run.attempts || asked < p.steps {
		t.Errorf("order %d: the model was asked %d times, %d attempts in %d steps are in the log", p.order, asked, run.attempts, p.steps)
	}
	want := p.content
	if len(want) > event.InlineLimit {
		want = event.RefOf([]byte(want))
	}
	if run.output != want {
		t.Errorf("I-09, I-20: order %d: output %.100q, want %.100q", p.order, run.output, want)
	}
	if p.order == orderCut && !run.partial {
		t.Errorf("I-19: order %d: the text that had come is not in the log as partial", p.order)
	}
	if p.content != "" && (len(p.run.Outputs) != 1 || p.run.Outputs[0].Content != p.content) {
		t.Errorf("order %d: the client sees %+v", p.order, p.run.Outputs)
	}
	if p.content != "" && p.typed && string(p.run.StructuredOutput) != p.content {
		t.Errorf("order %d: structured_output is %s", p.order, p.run.StructuredOutput)
	}
	var calls []string
	for _, c := range run.calls {
		if c.original == "" {
			calls = append(calls, c.what())
		}
	}
	if !p.free && fmt.Sprint(calls) != fmt.Sprint(p.calls) {
		t.Errorf("order %d: calls %v, want %v", p.order, calls, p.calls)
	}
}

// targetOf is the path that the run was submitted with.
func (r *round) targetOf(p *part) string {
	if p.target != "" {
		return p.target
	}
	if p.order == orderAfter || p.order == orderThen {
		return "/" + p.session + "-later"
	}
	return "/" + p.session
}

// checkResults: what a model was told of a call once, it is told ever after
// (I-14). Calls are known by their arguments; ids are each request's own.
func checkResults(t testing.TB, w *world) {
	t.Helper()
	told := map[string]string{}
	for _, req := range w.model.Requests() {
		calls := map[string]string{}
		for _, m := range req.Messages {
			for _, c := range m.ToolCalls {
				calls[c.ID] = c.Function.Name + " " + c.Function.Arguments
			}
			if m.Role != "tool" {
				continue
			}
			call := calls[m.ToolCallID]
			if before, ok := told[call]; ok && before != m.Text() {
				t.Errorf("I-14: the result of %s was %q and became %q", call, before, m.Text())
			}
			told[call] = m.Text()
		}
	}
}

var deskTools = []string{"read_file", "write_file", "edit_file"}

// checkEffects compares what happened outside with what the log says (I-13).
func checkEffects(t testing.TB, w *world, h *history) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	started, completed, unknown, retries, levels := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]string{}
	for _, run := range h.runs {
		for _, c := range run.calls {
			what := c.what()
			levels[what] = c.level
			if slices.Contains(deskTools, c.name) {
				continue // its effect is in files
			}
			if c.started {
				started[what]++
			}
			if c.original != "" {
				retries[what]++
			}
			if c.end == event.TypeToolCompleted {
				completed[what]++
			} else if c.started {
				unknown[what]++
			}
		}
	}
	for what, n := range w.effects {
		if started[what] == 0 {
			t.Errorf("I-13: %s happened %d times and was never started", what, n)
		}
	}
	for what, level := range levels {
		n, keys := w.effects[what], len(w.keys[what])
		if n < 1 && completed[what] > 0 {
			t.Errorf("%s completed in the log and never happened", what)
		}
		switch {
		case level == "read" || level == "none":
		case keys > 0: // it takes a key: each call has its own, and keeps it
			if keys > 1+retries[what] || n != keys {
				t.Errorf("I-13: %s: %d effects under %d keys, with %d retries by a person", what, n, keys, retries[what])
			}
		case n > 1+retries[what] || n > completed[what]+unknown[what]:
			t.Errorf("I-13: %s happened %d times, with %d retries by a person", what, n, retries[what])
		}
	}
}

// checkDeliveries compares what the receiver got with the log (I-24, I-26).
func (r *round) checkDeliveries(h *history) {
	t := r.t
	t.Helper()
	for _, fault := range r.w.faults {
		t.Errorf("I-26: %s", fault)
	}
	bodies := map[string][]byte{}
	taken := map[string][]string{} // by path: ids in the order in which they were taken first
	accepted := map[string]bool{}
	for _, hit := range r.w.received() {
		if before, ok := bodies[hit.id]; ok && !bytes.Equal(before, hit.body) {
			t.Errorf("I-26: delivery %s was sent as %s and as %s", hit.id, before, hit.body)
		}
		bodies[hit.id] = hit.body
		if hit.answered/100 == 2 && !accepted[hit.id] {
			accepted[hit.id] = true
			taken[hit.path] = append(taken[hit.path], hit.id)
		}
	}
	byRun := map[string][]string{}
	for id := range accepted {
		var m message
		if err := json.Unmarshal(bodies[id], &m); err != nil || m.DeliveryID != id {
			t.Errorf("delivery %s: body %s: %v", id, bodies[id], err)
			continue
		}
		byRun[m.RunID] = append(byRun[m.RunID], id)
		r.checkMessage(id, bodies[id], &m)
	}
	for id := range bodies {
		if !accepted[id] {
			t.Errorf("I-24: delivery %s never arrived", id)
		}
	}
	for _, p := range r.parts {
		want := 0
		if p.content != "" {
			want = 1
		}
		if len(byRun[p.run.ID]) != want {
			t.Errorf("I-24: order %d was delivered as %v, want %d", p.order, byRun[p.run.ID], want)
		}
	}
	for path, ids := range taken { // in the order of the target's stream
		var enqueued []string
		for _, id := range h.enqueued {
			if accepted[id] && strings.HasSuffix(h.address[id], path) {
				enqueued = append(enqueued, id)
			}
		}
		if len(enqueued) > 0 && fmt.Sprint(enqueued) != fmt.Sprint(ids) {
			t.Errorf("I-25: %s took %v, enqueued were %v", path, ids, enqueued)
		}
	}
}

// message is the body of a delivery, as a receiver reads it.
type message struct {
	DeliveryID string `json:"delivery_id"`
	RunID      string `json:"run_id"`
	SessionID  string `json:"session_id"`
	Content    string `json:"content"`
	Metadata   struct {
		OutputKind string          `json:"output_kind"`
		Structured json.RawMessage `json:"structured_output"`
	} `json:"metadata"`
}

// checkMessage: what is delivered is canonical and meets the contract (I-09).
func (r *round) checkMessage(id string, body []byte, m *message) {
	t := r.t
	t.Helper()
	if c, err := canonjson.Canonicalize(body, canonjson.Limits{}); err != nil || !bytes.Equal(c, body) {
		t.Errorf("delivery %s: the body is not canonical: %s", id, body)
	}
	for _, p := range r.parts {
		if p.run.ID != m.RunID {
			continue
		}
		if m.Content != p.content {
			t.Errorf("order %d: %.100q was delivered, want %.100q", p.order, m.Content, p.content)
		}
		if !p.typed {
			return
		}
		schema, issues := contract.ParseSchema(outputSchema)
		if len(issues) > 0 {
			t.Fatal(issues)
		}
		if v, err := schema.Check(m.Content); err != nil || string(v) != m.Content || string(m.Metadata.Structured) != m.Content {
			t.Errorf("I-09: order %d: %s was delivered: %v", p.order, body, err)
		}
		return
	}
	t.Errorf("delivery %s is of run %s, which nobody submitted", id, m.RunID)
}
