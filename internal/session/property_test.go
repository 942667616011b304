package session_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"pgregory.net/rapid"
)

// history is a random life of a session: commands, outcomes and crashes in any
// order, each followed by what the rules decide.
type history struct {
	*world
	r      *rapid.T
	check  checker
	runs   int
	asked  int              // compactions
	acts   []session.Action // asked for and not yet done
	clones []clone
}

// clone is a state that was set aside, with the length of its log.
type clone struct {
	s *session.State
	n int
}

func TestHistories(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := &history{world: newWorld(t), r: r, check: newChecker()}
		h.world.t = r
		settings := event.Settings{HistoryLimit: rapid.SampledFrom([]int{0, 1, 6}).Draw(r, "history")}
		settings.OutputContract = h.contract()
		h.create(settings)
		steps := rapid.IntRange(1, 60).Draw(r, "steps")
		for range steps {
			h.step()
			h.rest()
		}
		h.drain()
		h.atEnd()
	})
}

func (h *history) pick(name string, choices ...string) string {
	return rapid.SampledFrom(choices).Draw(h.r, name)
}

func (h *history) contract() *event.OutputContract {
	if h.pick("contract", "none", "some") == "none" {
		return nil
	}
	c := &event.OutputContract{Schema: []byte(`{"additionalProperties":false,"properties":{"n":{"type":"number"}},"required":["n"],"type":"object"}`)}
	if n := rapid.IntRange(-1, 7).Draw(h.r, "budget"); n >= 0 {
		c.MaxRepairAttempts = &n
	}
	return c
}

// step does one thing from outside.
func (h *history) step() {
	switch h.pick("step", "submit", "outcome", "outcome", "outcome", "outcome", "outcome", "crash", "stop", "resolve", "update", "clone", "store", "late", "compact") {
	case "submit":
		h.runs++
		h.submit(event.RunID(fmt.Sprintf("run_%d", h.runs)), strings.Repeat("go ", 1+h.runs), func(d *event.RunCreated) {
			d.MaxTurns = rapid.IntRange(1, 4).Draw(h.r, "turns")
			if rapid.Bool().Draw(h.r, "continue") {
				d.OnDoubt = event.DoubtContinue
			}
			h.compaction(d)
		})
	case "compact":
		if h.s.Active != nil || len(h.s.Queue) > 0 || h.s.Window.Asked != nil {
			return // admission refuses it
		}
		h.asked++
		e := command("", &event.CompactionRequested{Keep: h.keep(), Route: event.Route{Name: "main", Provider: "scripted", Model: "m"}})
		e.StepID = event.StepID(fmt.Sprintf("cmp_asked%d", h.asked))
		h.append(e)
	case "outcome":
		if len(h.acts) > 0 {
			h.outcome(rapid.SampledFrom(h.acts).Draw(h.r, "act"))
		}
	case "crash":
		h.crash()
	case "stop":
		if h.runs == 0 {
			return
		}
		run := event.RunID(fmt.Sprintf("run_%d", rapid.IntRange(1, h.runs).Draw(h.r, "run")))
		if rapid.Bool().Draw(h.r, "interrupt") {
			h.append(command(run, &event.InterruptRequested{}))
		} else {
			h.append(command(run, &event.CancelRequested{}))
		}
	case "resolve":
		h.resolve()
	case "update":
		h.append(command("", &event.SessionUpdated{
			Changed: []string{"output_contract", "history_limit"}, Version: h.s.SettingsVersion + 1,
			Settings: event.Settings{OutputContract: h.contract(), HistoryLimit: rapid.IntRange(0, 5).Draw(h.r, "limit")},
		}))
	case "clone":
		if !h.resolved() {
			h.clones = append(h.clones, clone{h.s.Clone(), len(h.log)})
		}
	case "store":
		h.store()
	case "late": // I-14: events about what is closed are folded and change nothing
		if h.runs == 0 || h.s.Active != nil {
			return
		}
		before := h.s.Clone()
		late := command("run_1", &event.ToolCompleted{Output: event.TextContent("late")})
		late.StepID, late.CallID = "step_1_1", "call_1_1_1_0"
		h.append(late)
		before.Head++
		if !sameState(before, h.s) {
			h.r.Fatal("a late result changed the state")
		}
	}
}

func (h *history) keep() int64 {
	return rapid.SampledFrom([]int64{0, 1, 20, 60, 200, 2000, 20_000}).Draw(h.r, "keep")
}

// compaction captures how the run is kept within its window, if at all.
func (h *history) compaction(d *event.RunCreated) {
	if h.pick("compaction", "none", "some", "some") == "none" {
		return
	}
	d.Compaction = &event.Compaction{Auto: h.pick("auto", "on", "on", "off") == "on", Keep: h.keep(), Buffer: 50}
	d.Route.Context = rapid.SampledFrom([]int64{0, 100, 400, 4000}).Draw(h.r, "context")
	d.Route.Output = rapid.SampledFrom([]int64{0, 30}).Draw(h.r, "output")
}

// store goes on from what the stored form of the state gives back, as a daemon
// does that was started anew. The stored form is that of a fold of the log.
func (h *history) store() {
	data, err := h.s.Encode()
	if err != nil {
		h.r.Fatal(err)
	}
	if folded, err := h.refold().Encode(); err != nil || string(folded) != string(data) {
		h.r.Fatalf("stored %s\nfolded %s (%v)", data, folded, err)
	}
	back, err := session.DecodeState(data)
	if err != nil {
		h.r.Fatal(err)
	}
	if !h.resolved() && !reflect.DeepEqual(session.Next(back), session.Next(h.s)) {
		h.r.Fatalf("the state asks for\n%#v\nread back for\n%#v", session.Next(h.s), session.Next(back))
	}
	if !sameState(back, h.refold()) {
		h.r.Fatal("what is read back is another state than the log gives")
	}
	h.s = back
}

// rest lets the rules decide until they ask for something from outside.
func (h *history) rest() {
	before := len(h.log)
	h.acts = h.decide(nil)
	if len(h.log)-before > 600 {
		h.r.Fatalf("%d events without an outcome", len(h.log)-before)
	}
	for h.check.seen < len(h.log) {
		h.check.event(h.r, &h.log[h.check.seen])
	}
	for _, a := range h.acts {
		if _, ok := a.(session.CallModel); ok {
			h.checkRequest()
		}
	}
}

// checkRequest holds what the model is asked to what vendors demand, whatever
// was compacted before (C71); the run's own task is always in it. A summary
// request has one message and nothing to call (I-10).
func (h *history) checkRequest() {
	req := h.request()
	checkPairs(h.r, req)
	if h.s.Window.Open != nil {
		if len(req.Messages) != 1 || !req.NoTools || req.Tools != nil || req.MaxOutputTokens == 0 {
			h.r.Fatalf("a summary request: %+v", req)
		}
		return
	}
	task := h.s.Active.Created.Input[0].Content.Text
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			if m.Role == llm.User && p.Text == task {
				return
			}
		}
	}
	h.r.Fatalf("the task %q is not in %s", task, requestText(req))
}

func (h *history) outcome(a session.Action) {
	switch a := a.(type) {
	case session.CallModel:
		h.model()
	case session.RunTool:
		h.tool(a.Call)
	case session.Abort:
		if h.s.Window.Open != nil {
			h.append(session.SummaryFailed(h.s, h.answer(), &llm.Error{Class: llm.Aborted}, h.now, 0)...)
		} else if st := h.s.Active.Step; st.Attempt.Open {
			h.append(session.Failed(h.s, h.answer(), &llm.Error{Class: llm.Aborted}, h.now, 0)...)
		} else {
			for _, c := range st.Calls {
				if c.State == session.CallStarted {
					h.append(session.ToolEnded(h.s, c.ID, &session.ToolOutcome{Stopped: true}, clockOfTests, 0)...)
				}
			}
		}
	}
}

func (h *history) model() {
	summary := h.s.Window.Open != nil
	if h.pick("model", "answer", "answer", "answer", "fail") == "answer" {
		if summary {
			h.append(session.Summarised(h.s, h.summary())...)
		} else {
			h.append(session.Answered(h.s, h.answer())...)
		}
		return
	}
	class := rapid.SampledFrom([]llm.Class{llm.Auth, llm.Overloaded, llm.Transport, llm.ContextOverflow, llm.RateLimit}).Draw(h.r, "class")
	a := h.answer()
	if rapid.Bool().Draw(h.r, "nothing came") {
		a.Parts = nil
	}
	e := &llm.Error{Class: class, Status: rapid.SampledFrom([]int{0, 200, 429, 503}).Draw(h.r, "status"), RetryAfter: time.Second}
	told := session.Failed
	if summary {
		told = session.SummaryFailed
	}
	h.append(told(h.s, a, e, h.now, rapid.Float64Range(0, 0.99).Draw(h.r, "jitter"))...)
}

// summary is what a model writes that was asked for one.
func (h *history) summary() *session.Answer {
	text := h.pick("summary", "## Goal\nGo.", "## Goal\nGo.", "## done:\n"+strings.Repeat("long ", event.InlineLimit/4), "no", "")
	if text == "no" {
		return h.answer()
	}
	return &session.Answer{
		Finish: rapid.SampledFrom([]llm.FinishReason{llm.FinishStop, llm.FinishStop, llm.FinishStop, llm.FinishLength, llm.FinishUnknown}).Draw(h.r, "finish"),
		Usage:  &llm.Usage{Input: 30, Output: 20}, Parts: []session.OutputPart{{Kind: llm.TextEnd, Text: text}},
	}
}

func (h *history) answer() *session.Answer {
	a := &session.Answer{Finish: llm.FinishStop}
	if rapid.Bool().Draw(h.r, "usage") {
		a.Usage = &llm.Usage{Input: rapid.SampledFrom([]int64{3, 80, 350, 5000}).Draw(h.r, "input"), Output: 2}
	}
	for i := range rapid.IntRange(0, 3).Draw(h.r, "parts") {
		p := session.OutputPart{Index: i}
		switch h.pick("part", "right", "wrong", "large", "reasoning", "call", "call", "call", "hosted", "result") {
		case "right":
			p.Kind, p.Text = llm.TextEnd, `{"n":1}`
		case "wrong":
			p.Kind, p.Text = llm.TextEnd, "soon"
		case "large":
			p.Kind, p.Text = llm.TextEnd, `{"n":`+strings.Repeat(" ", event.InlineLimit)+`1}`
		case "reasoning":
			p.Kind, p.State, p.Maker = llm.ReasoningEnd, event.RefOf([]byte("state")), "scripted/m"
			h.blobs[p.State] = []byte("state")
		case "call":
			p.Kind, a.Finish = llm.ToolCallWhole, llm.FinishTools
			p.Name = h.pick("tool", "think", "look", "note", "charge", "pay", "mail", "wipe", "fly")
			p.Text = h.pick("arguments", `{}`, `{"a":1}`, `[1]`, `{"a":`)
		case "hosted", "result":
			p.Kind, p.Name, p.Text = llm.HostedCall, "web_search", h.pick("arguments", `{"q":"x"}`, "", `{"a":`)
			if p.WireID = h.pick("wire id", "srv_1", "srv_2", ""); h.pick("block", "call", "result") == "result" {
				p.Kind, p.IsError = llm.HostedResult, rapid.Bool().Draw(h.r, "failed")
			}
			p.State, p.Maker = event.RefOf([]byte("state")), "scripted/m"
			h.blobs[p.State] = []byte("state")
		}
		a.Parts = append(a.Parts, p)
	}
	switch h.pick("end", "as it is", "as it is", "as it is", "cut", "pause") {
	case "cut":
		a.Finish = llm.FinishLength
	case "pause":
		a.Finish = llm.FinishPause
	}
	return a
}

func (h *history) tool(id event.CallID) {
	o := &session.ToolOutcome{Output: event.TextContent(strings.Repeat("r", rapid.SampledFrom([]int{0, 5, event.InlineLimit + 5}).Draw(h.r, "size")))}
	switch h.pick("tool ends", "ok", "ok", "failed", "unknown", "timeout") {
	case "failed":
		o.Failed = true
	case "unknown":
		o.Unknown = true
	case "timeout":
		o.Timeout = true
	}
	h.append(session.ToolEnded(h.s, id, o, clockOfTests, 0)...)
}

func (h *history) resolve() {
	if h.s.Active == nil || h.s.Active.Step == nil || len(h.s.Active.Step.Calls) == 0 {
		return
	}
	c := rapid.SampledFrom(h.s.Active.Step.Calls).Draw(h.r, "call")
	e := command(h.s.Active.ID, &event.AttentionResolved{
		Resolution: event.Resolution(h.pick("word", "completed", "failed", "retry")), Output: event.TextContent("a person saw it"),
	})
	e.CallID = c.ID
	h.append(e)
}

// drain brings every run to its end: whatever happened, the session is never stuck.
func (h *history) drain() {
	for range 2000 {
		if h.s.Active == nil && len(h.s.Queue) == 0 && h.s.Window.Asked == nil {
			return
		}
		switch {
		case len(h.acts) > 0:
			h.outcome(h.acts[0])
		case h.s.Active != nil && h.s.Active.Waiting:
			h.append(command(h.s.Active.ID, &event.CancelRequested{}))
		default:
			h.r.Fatalf("nothing to do for %+v", h.s.Active)
		}
		h.rest()
	}
	h.r.Fatal("the runs do not come to their end")
}

func (h *history) atEnd() {
	if !sameState(h.s, h.refold()) {
		h.r.Fatal("the log read anew gives another state")
	}
	for _, c := range h.clones {
		if !sameState(c.s, fold(h.r, h.log[:c.n])) {
			h.r.Fatalf("the clone at %d changed with its origin", c.n)
		}
		h.followClone(c)
	}
	all := tables{}
	if err := all.exec(session.Rows(h.log)); err != nil {
		h.r.Fatalf("rows of all events: %v", err)
	}
	if all.String() != h.tables.String() { // I-03
		h.r.Fatalf("rows of all events at once:\n%s\nappend by append:\n%s", all, h.tables)
	}
	for id, r := range h.tables["runs"] {
		if !session.Terminal(r["status"].(string)) || len(h.tables["queue"]) != 0 {
			h.r.Fatalf("run %s is %s, queue %v", id, r["status"], h.tables["queue"])
		}
	}
}

// followClone folds the rest into the clone: its origin must not feel it, and
// both must end as one.
func (h *history) followClone(c clone) {
	origin := fold(h.r, h.log[:c.n])
	follower := origin.Clone()
	for i := c.n; i < len(h.log); i++ {
		if err := follower.Apply(&h.log[i]); err != nil {
			h.r.Fatal(err)
		}
	}
	if !sameState(follower, h.s) || !sameState(origin, fold(h.r, h.log[:c.n])) {
		h.r.Fatal("a clone and its origin are one")
	}
}

// checkPairs holds a request to what vendors demand: every call has exactly
// one result, in the message right behind it, in call order (I-13).
func checkPairs(t *rapid.T, req *llm.Request) {
	if len(req.Messages) == 0 || req.Messages[0].Role != llm.User {
		t.Fatalf("the conversation begins with %v", req.Messages)
	}
	seen := map[string]bool{}
	var open []string
	for i, m := range req.Messages {
		if i > 0 && m.Role == req.Messages[i-1].Role && m.Role != llm.Assistant {
			t.Fatalf("two messages of %s in a row", m.Role)
		}
		if (m.Role == llm.Tool) != (open != nil) {
			t.Fatalf("calls %v are open before a message of %s", open, m.Role)
		}
		var results []string
		for _, c := range m.Parts {
			switch c.Kind {
			case llm.ToolCall:
				if seen[c.CallID] || !strings.HasPrefix(c.Text, "{") {
					t.Fatalf("call %s stands twice or has arguments %s", c.CallID, c.Text)
				}
				seen[c.CallID] = true
				open = append(open, c.CallID)
			case llm.ToolResult:
				results = append(results, c.CallID)
			}
		}
		if m.Role == llm.Tool {
			if !slices.Equal(results, open) {
				t.Fatalf("calls %v have results %v", open, results)
			}
			open = nil
		}
	}
	if open != nil {
		t.Fatalf("calls %v have no result", open)
	}
}

// checker holds a log to the invariants, event by event.
type checker struct {
	seen     int
	epoch    int64
	active   event.RunID
	queue    []event.RunID
	ended    map[event.RunID]bool
	repairs  map[event.RunID]int // asked for
	repaired map[event.RunID]int // steps that repair
	pinned   map[event.RunID]*event.PinnedContract
	turns    map[event.RunID]int // allowed
	step     *event.StepStarted
	whole    bool
	compact  event.StepID               // compaction under way
	calls    map[event.CallID]*callLife // of the session
	open     map[event.CallID]bool      // of the step, not terminal
}

type callLife struct {
	level      string
	idempotent bool
	allowed    bool
	starts     int
	done       bool
}

func newChecker() checker {
	return checker{
		ended: map[event.RunID]bool{}, repairs: map[event.RunID]int{}, repaired: map[event.RunID]int{}, pinned: map[event.RunID]*event.PinnedContract{},
		turns: map[event.RunID]int{}, calls: map[event.CallID]*callLife{}, open: map[event.CallID]bool{},
	}
}

func (c *checker) event(t tester, e *event.Event) {
	c.seen++
	must := func(ok bool, invariant string) {
		if !ok {
			t.Fatalf("%s: %s#%d %s %s", invariant, e.Type, e.Seq, e.RunID, e.Raw)
		}
	}
	must(e.Epoch >= c.epoch, "I-15 epochs never decrease")
	c.epoch = e.Epoch
	switch d := e.Data.(type) {
	case *event.RunCreated:
		c.queue = append(c.queue, e.RunID)
		c.turns[e.RunID] = d.MaxTurns
	case *event.RunStarted:
		must(c.active == "" && !c.ended[e.RunID], "I-06 one active run")
		must(c.queue[0] == e.RunID, "I-06 admission order")
		c.queue, c.active = c.queue[1:], e.RunID
		c.pinned[e.RunID] = d.OutputContract
	case *event.RunCompleted, *event.RunFailed, *event.RunCancelled, *event.RunInterrupted:
		must(c.compact == "" || c.active != e.RunID, "no compaction is open at the end of a run")
		must(!c.ended[e.RunID], "I-05 one end")
		must(c.repaired[e.RunID] == c.repairs[e.RunID], "I-09 each repair that was asked for is one step")
		must(c.active == e.RunID && c.step == nil && len(c.open) == 0 || slices.Contains(c.queue, e.RunID), "I-12 everything is closed")
		c.ended[e.RunID] = true
		c.queue = slices.DeleteFunc(c.queue, func(id event.RunID) bool { return id == e.RunID })
		if c.active == e.RunID {
			c.active = ""
		}
		if f, ok := d.(*event.RunFailed); ok && f.Code == "output_contract_unsatisfied" {
			must(c.repairs[e.RunID] == c.pinned[e.RunID].MaxRepairAttempts, "I-09 the budget is used up")
		}
	case *event.RepairRequested:
		c.repairs[e.RunID]++
		must(d.Attempt == c.repairs[e.RunID] && d.Attempt <= d.Budget && d.Budget == c.pinned[e.RunID].MaxRepairAttempts && d.Budget <= 5, "I-09 the budget")
	case *event.OutputEmitted:
		if p := c.pinned[e.RunID]; p != nil {
			schema, _ := contract.ParseSchema(p.Schema)
			_, err := schema.Check(string(d.StructuredOutput))
			must(err == nil && d.OutputKind == event.OutputStructured, "I-09 only what conforms")
		}
	default:
		c.stepEvent(e, must)
	}
}

func (c *checker) stepEvent(e *event.Event, must func(bool, string)) {
	switch d := e.Data.(type) {
	case *event.CompactionStarted:
		must(c.compact == "" && len(c.open) == 0 && (c.active == "" || e.RunID == c.active), "one compaction at a time, and no call is open")
		c.compact = e.StepID
	case *event.CompactionFailed:
		must(c.compact == e.StepID || d.Number == 0, "only what is under way fails")
		c.compact = ""
	case *event.ContextCompacted:
		must(c.compact == e.StepID, "only what is under way ends")
		c.compact = ""
	case *event.ModelCallStarted:
		must(c.compact == "" || c.compact == e.StepID, "no step goes on while the context is compacted")
	case *event.StepStarted:
		must(c.step == nil && len(c.open) == 0 && e.RunID == c.active, "I-12 the step before is closed")
		must(d.NoTools == (d.Repair > 0 || e.Turn == c.turns[e.RunID]) && e.Turn <= c.turns[e.RunID], "I-10 tools are withheld")
		if d.Repair > 0 {
			c.repaired[e.RunID]++
			must(d.Repair == c.repaired[e.RunID], "I-09 each repair is one step")
		}
		c.step, c.whole = d, false
	case *event.StepEnded, *event.StepFailed:
		must(c.step != nil && len(c.open) == 0, "I-12 every call is closed")
		c.step = nil
	case *event.InferenceCompleted:
		c.whole = true
	case *event.ToolRequested:
		must(c.calls[e.CallID] == nil, "I-13 call ids are unique")
		c.calls[e.CallID] = &callLife{level: d.Level, idempotent: d.Name == "pay"}
		c.open[e.CallID] = true
	case *event.PolicyChecked:
		c.calls[e.CallID].allowed = d.Decision == "allow"
	case *event.ToolStarted:
		life := c.calls[e.CallID]
		life.starts++
		must(life.starts == 1 && life.allowed && !life.done, "I-13 checked, then started once")
		must(c.whole && !c.step.NoTools, "I-10, I-13 the output is whole and tools are allowed")
	case *event.ToolRetrying:
		life := c.calls[e.CallID]
		must(life.starts == 1 && !life.done, "I-13 only what is in flight is repeated")
		must(life.level == "read" || life.level == "none" || life.idempotent, "I-13 effects are not repeated")
	case *event.ToolCompleted, *event.ToolFailed, *event.ToolTimeout, *event.ToolInterrupted, *event.ToolRejected:
		life := c.calls[e.CallID]
		if e.StepID == "step_1_1" && life == nil || life.done {
			return // the late results that the history itself puts in
		}
		_, rejected := e.Data.(*event.ToolRejected)
		must(!life.done && (!rejected || life.starts == 0), "I-13 one end")
		life.done = true
		delete(c.open, e.CallID)
	}
}
