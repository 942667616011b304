package span

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/event"
)

const run = event.RunID("run_1")

// scene is a run's events, a second apart.
type scene struct {
	events []event.Event
	step   event.StepID
	turn   int
}

func (s *scene) add(call event.CallID, data ...event.Data) {
	for _, d := range data {
		if st, ok := d.(*event.StepStarted); ok {
			s.step, s.turn = event.StepID(fmt.Sprint("step_", st.Number)), st.Number
		}
		n := len(s.events)
		s.events = append(s.events, event.Event{Type: d.EventType(), Seq: int64(n + 1), RunID: run, SessionID: "ses_1", StepID: s.step, Turn: s.turn, CallID: call,
			Time: time.Date(2026, 11, 1, 12, 0, n, 0, time.UTC), Data: d})
	}
}

func (s *scene) trace() Trace {
	f := New(run)
	for i := range s.events {
		f.Add(&s.events[i])
	}
	return f.Trace()
}

// tell is a trace as text: one line a span, under its parent.
func tell(t Trace) string {
	var b strings.Builder
	var under func(parent ID, depth int)
	under = func(parent ID, depth int) {
		for _, s := range t.Spans {
			if s.Parent != parent {
				continue
			}
			fmt.Fprintf(&b, "%s%s %d-%d", strings.Repeat("  ", depth), s.Name, s.Start.Second(), s.End.Second())
			if s.Error != "" {
				fmt.Fprintf(&b, " !%s", s.Error)
			}
			for _, m := range s.Marks {
				fmt.Fprintf(&b, " [%d %s]", m.Time.Second(), m.Name)
			}
			b.WriteByte('\n')
			under(s.ID, depth+1)
		}
	}
	under(ID{}, 0)
	return b.String()
}

var created = &event.RunCreated{Route: event.Route{Name: "main", Provider: "openai_compatible", Model: "m"}, Tools: []event.CapturedTool{{Name: "look"}}}

func attempt(n int) *event.ModelCallStarted {
	return &event.ModelCallStarted{Attempt: n, Route: "main", Provider: "openai_compatible", Model: "m"}
}

func story() *scene {
	s := &scene{}
	s.add("", created, &event.RunQueued{}, &event.RunStarted{}, &event.StepStarted{Number: 1}, attempt(1),
		&event.ModelCallFailed{Attempt: 1, Class: "rate_limit", Status: 429}, &event.RetryScheduled{Attempt: 2, Class: "rate_limit"}, attempt(2),
		&event.ModelCallCompleted{Attempt: 2, FirstOutputMS: 250, Usage: &event.TokenUsage{Input: 10, Output: 4, CacheRead: 6, Reasoning: 1}})
	s.add("call_1", &event.ToolRequested{Name: "look", Level: "read"})
	s.add("", &event.InferenceCompleted{Finish: "tool_calls"})
	s.add("call_1", &event.ToolStarted{}, &event.ToolRetrying{Attempt: 2}, &event.ToolCompleted{}, &event.ToolFailed{})
	s.add("", &event.StepEnded{}, &event.StepStarted{Number: 2, Repair: 1}, attempt(1), &event.ModelCallCompleted{Attempt: 1}, &event.InferenceCompleted{Finish: "stop"},
		&event.StepEnded{}, &event.ContractChecked{Gate: "output", OK: true}, &event.RunCompleted{Totals: event.Totals{Turns: 2, Usage: &event.TokenUsage{Input: 20, Output: 8}}})
	return s
}

// A compaction is a span of its own, under the turn that it is for where that
// is open, and its calls are under it.
func TestCompaction(t *testing.T) {
	s := &scene{}
	s.add("", created, &event.RunStarted{}, &event.StepStarted{Number: 1}, attempt(1), &event.ModelCallFailed{Attempt: 1, Class: "context_overflow"})
	s.step = "cmp_1"
	s.add("", &event.CompactionStarted{Reason: event.CompactOverflow, Entries: 9, Tokens: 900}, attempt(1), &event.ModelCallCompleted{Attempt: 1}, &event.CompactionEnded{}, &event.ContextCompacted{Tokens: 90})
	s.step = "step_1"
	s.add("", attempt(2), &event.ModelCallCompleted{Attempt: 2}, &event.StepEnded{})
	s.step = "cmp_2"
	s.add("", &event.CompactionStarted{Reason: "words of a model"}, attempt(1), &event.ModelCallFailed{Attempt: 1, Class: "auth"}, &event.CompactionFailed{Code: "model_auth"}, &event.RunCompleted{})
	const want = `invoke_agent 0-17
  turn 1 2-12
    chat m 3-4 !context_overflow
    compact_context 5-9
      chat m 6-7
    chat m 10-11
  compact_context 13-16 !model_auth
    chat m 14-15 !auth
`
	trace := s.trace()
	if got := strings.Replace(tell(trace), "  queue 0-1\n", "", 1); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if text := fmt.Sprint(trace); strings.Contains(text, "words of a model") || !strings.Contains(text, "tokens_after 90") {
		t.Errorf("%s", text)
	}
}

func TestTrace(t *testing.T) {
	trace := story().trace()
	const want = `invoke_agent 0-22 [21 contract.checked]
  queue 0-2
  turn 1 3-15 [6 model.retry.scheduled]
    chat m 4-5 !rate_limit
    chat m 7-8
    execute_tool look 9-13 [11 tool.call.started] [12 tool.call.retrying]
  repair 1 16-20
    chat m 17-18
`
	if got := tell(trace); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	attrs := func(name string, n int) map[string]any {
		out := map[string]any{}
		for _, s := range trace.Spans {
			if s.Name == name {
				if n--; n == 0 {
					for _, a := range s.Attrs {
						out[a.Key] = a.Value
					}
				}
			}
		}
		return out
	}
	for name, want := range map[string]map[string]any{
		"invoke_agent": {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m", "gen_ai.conversation.id": "ses_1",
			"holdfast.run.id": "run_1", "holdfast.route": "main", "holdfast.run.status": "completed", "holdfast.run.turns": int64(2), "holdfast.run.repairs": int64(0),
			"gen_ai.usage.input_tokens": int64(20), "gen_ai.usage.output_tokens": int64(8)},
		"execute_tool look": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "call_1", "gen_ai.tool.type": "function",
			"gen_ai.conversation.id": "ses_1", "holdfast.tool.level": "read"},
	} {
		if got := attrs(name, 1); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\nwant %v", name, got, want)
		}
	}
	chat := attrs("chat m", 2)
	if chat["gen_ai.usage.cache_read.input_tokens"] != int64(6) || chat["gen_ai.usage.reasoning.output_tokens"] != int64(1) || chat["holdfast.attempt"] != int64(2) ||
		chat["gen_ai.response.time_to_first_chunk"] != .25 || !slices.Equal(chat["gen_ai.response.finish_reasons"].([]string), []string{"tool_calls"}) {
		t.Errorf("chat: %v", chat)
	}
	if first := attrs("chat m", 1); first["error.type"] != "rate_limit" || first["http.response.status_code"] != int64(429) || first["gen_ai.response.finish_reasons"] != nil {
		t.Errorf("failed chat: %v", first)
	}
}

// The end of an attempt that a crash cut is in the next life; nothing of the
// trace depends on the life.
func TestOverARestart(t *testing.T) {
	s := &scene{}
	s.add("", created, &event.RunStarted{}, &event.StepStarted{Number: 1}, attempt(1), &event.OwnerClaimed{},
		&event.ModelCallFailed{Attempt: 1, Class: "abandoned"}, attempt(2), &event.ModelCallCompleted{Attempt: 2}, &event.StepEnded{}, &event.RunCompleted{})
	for i := range s.events {
		s.events[i].Epoch = int64(1 + i/4)
	}
	const want = `invoke_agent 0-9
  queue 0-1
  turn 1 2-8
    chat m 3-5 !abandoned
    chat m 6-7
`
	one := s.trace()
	if got := tell(one); got != want || !reflect.DeepEqual(one, s.trace()) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestOtherEnds(t *testing.T) {
	s := &scene{}
	s.add("", created, &event.RunCancelled{Reason: "secret"})
	if got := tell(s.trace()); got != "invoke_agent 0-1\n  queue 0-1\n" {
		t.Errorf("cancelled in the queue:\n%s", got)
	}
	s = &scene{}
	s.add("", created, &event.RunStarted{}, &event.StepStarted{Number: 1}, attempt(1), &event.ModelCallCompleted{Attempt: 1})
	s.add("call_1", &event.ToolRequested{Name: "rm -rf secret"}, &event.ToolStarted{}, &event.ToolInterrupted{})
	s.add("", &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "call_1", Name: "secret"}}}, &event.AttentionResolved{}, &event.RunResumed{}, &event.NeedsAttention{},
		&event.RunFailed{Code: "a secret text!", Message: "secret"})
	const want = `invoke_agent 0-12 !other
  queue 0-1
  turn 1 2-12
    chat m 3-4
    execute_tool unknown 5-7 !interrupted [6 tool.call.started]
  wait 8-10
  wait 11-12
`
	if got := tell(s.trace()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	s.events = s.events[:len(s.events)-1]
	if got := s.trace(); got.Spans != nil {
		t.Errorf("a run without an end has %d spans", len(got.Spans))
	}
}

// I-33: what people, models, tools and vendors wrote is in no span. Every text
// of every event is filled with a word that must not show; the names of
// routes and models, which are meant to show, are not texts.
func TestNoContent(t *testing.T) {
	const canary = "xyzzy secret"
	s := &scene{}
	for _, kind := range event.Types() {
		d, _, _ := event.New(kind)
		fill(reflect.ValueOf(d).Elem(), canary)
		if c, ok := d.(*event.RunCreated); ok {
			c.Route, c.Tools = created.Route, created.Tools
		}
		if c, ok := d.(*event.ModelCallStarted); ok {
			*c = *attempt(c.Attempt)
		}
		switch kind {
		case event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted:
			continue
		}
		s.add("call_1", d)
	}
	rand.Shuffle(len(s.events), func(i, j int) { s.events[i], s.events[j] = s.events[j], s.events[i] })
	first := &scene{}
	first.add("", created)
	s.events = append(first.events, s.events...)
	failed := &event.RunFailed{}
	fill(reflect.ValueOf(failed).Elem(), canary)
	s.add("", failed)
	trace := s.trace()
	if len(trace.Spans) < 5 {
		t.Fatalf("only %d spans", len(trace.Spans))
	}
	if text := fmt.Sprintf("%+v", trace); strings.Contains(text, "xyzzy") {
		t.Errorf("content shows: %s", text)
	}
}

// fill puts the word into every text.
func fill(v reflect.Value, word string) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() == reflect.TypeFor[event.CallID]() {
			return // the daemon's own
		}
		v.SetString(word)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), word)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), word)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(`"` + word + `"`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), word)
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e, word)
		k := reflect.New(v.Type().Key()).Elem()
		fill(k, word)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Bool:
		v.SetBool(true)
	}
}

func TestBounds(t *testing.T) {
	s := &scene{}
	s.add("", created, &event.StepStarted{Number: 1})
	for i := range MaxSpans + 50 {
		s.add("call_1", &event.ToolRequested{Name: "look"})
		s.events[len(s.events)-1].CallID = event.CallID(fmt.Sprint("call_", i))
	}
	for range MaxMarks + 10 {
		s.add("", &event.RepairRequested{})
	}
	s.add("", &event.RunCompleted{})
	trace := s.trace()
	if len(trace.Spans) != MaxSpans || trace.Dropped != 53 || len(trace.Spans[0].Marks) != MaxMarks {
		t.Errorf("%d spans, %d dropped, %d marks", len(trace.Spans), trace.Dropped, len(trace.Spans[0].Marks))
	}
	for _, sp := range trace.Spans {
		if sp.End.IsZero() {
			t.Fatalf("%s has no end", sp.Name)
		}
	}
}

// Whatever the order of events, spans are whole: their ids are distinct, their
// parents there, their ends not before their starts.
func TestWhole(t *testing.T) {
	base := story().events
	rapid.Check(t, func(rt *rapid.T) {
		picks := rapid.SliceOfN(rapid.IntRange(1, len(base)-2), 0, 40).Draw(rt, "events")
		f := New(run)
		at := base[0].Time
		add := func(e event.Event) {
			at = at.Add(time.Second)
			e.Time = at
			f.Add(&e)
		}
		add(base[0])
		for _, i := range picks {
			add(base[i])
		}
		add(base[len(base)-1])
		trace := f.Trace()
		ids := map[ID]bool{}
		for _, s := range trace.Spans {
			if ids[s.ID] || s.Parent != (ID{}) && !ids[s.Parent] {
				rt.Fatalf("%s has an id of another, or no parent", s.Name)
			}
			if s.End.Before(s.Start) || s.End.IsZero() {
				rt.Fatalf("%s: %v to %v", s.Name, s.Start, s.End)
			}
			ids[s.ID] = true
		}
		if trace.Spans[0].Name != "invoke_agent" || trace.Spans[0].Parent != (ID{}) {
			rt.Fatalf("the first span is %s", trace.Spans[0].Name)
		}
	})
}

func TestSampled(t *testing.T) {
	const n = 4000
	hit := 0
	for i := range n {
		id := TraceOf(event.RunID(fmt.Sprint("run_", i)))
		if !id.Sampled(1) || id.Sampled(0) {
			t.Fatal("all is all and none is none")
		}
		if id.Sampled(.25) {
			hit++
			if !id.Sampled(.5) {
				t.Fatal("a smaller share is part of a larger one")
			}
		}
	}
	if hit < n/4-n/20 || hit > n/4+n/20 {
		t.Errorf("%d of %d are a quarter", hit, n)
	}
}
