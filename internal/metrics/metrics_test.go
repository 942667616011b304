package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

var testRoutes = []Route{
	{Name: "main", Provider: "openai_compatible", Model: "m", Price: &llm.Price{Input: 1, Output: 10, CacheRead: .1, CacheWrite: 2}},
	{Name: "free", Provider: "scripted", Model: "scripted"},
}

// at is a log with one run: each event a second after the one before it.
func at(run event.RunID, data ...event.Data) []eventlog.Stamp {
	stamp := eventlog.Stamp{Stream: "session:ses_1"}
	for i, d := range data {
		e := event.Event{Type: d.EventType(), Stream: stamp.Stream, Seq: int64(i + 1), RunID: run, SessionID: "ses_1", StepID: "step_1", Data: d,
			Time: time.Date(2026, 11, 1, 12, 0, i, 0, time.UTC)}
		stamp.Events = append(stamp.Events, e)
	}
	return []eventlog.Stamp{stamp}
}

func call(id event.CallID, stamps []eventlog.Stamp) []eventlog.Stamp {
	for i := range stamps[0].Events {
		stamps[0].Events[i].CallID = id
	}
	return stamps
}

var mainCall = &event.ModelCallStarted{Attempt: 1, Route: "main", Provider: "openai_compatible", Model: "m"}

// values gives every series as text: name{labels} and its value, of histograms count and sum.
func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			var labels []string
			for _, l := range x.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := strings.TrimPrefix(f.GetName(), "holdfast_") + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				out[key+" count"], out[key+" sum"] = float64(x.GetHistogram().GetSampleCount()), x.GetHistogram().GetSampleSum()
			case dto.MetricType_COUNTER:
				out[key] = x.GetCounter().GetValue()
			default:
				out[key] = x.GetGauge().GetValue()
			}
		}
	}
	return out
}

func expect(t *testing.T, m *Metrics, want map[string]float64) {
	t.Helper()
	have := values(t, m)
	for key, v := range want {
		if got, ok := have[key]; !ok || got < v-1e-9 || got > v+1e-9 {
			t.Errorf("%s is %v (there: %v), want %v", key, got, ok, v)
		}
	}
}

func TestRun(t *testing.T) {
	m := New(Config{Routes: testRoutes})
	m.Committed(at("run_1", &event.RunCreated{}, &event.RunQueued{}, &event.RunStarted{}, &event.StepStarted{Number: 1}, mainCall,
		&event.ModelCallFailed{Attempt: 1, Class: "rate_limit", DurationMS: 500}, &event.RetryScheduled{Class: "rate_limit", Attempt: 2}, mainCall,
		&event.ModelCallCompleted{Attempt: 2, DurationMS: 1500, FirstOutputMS: 250, Usage: &event.TokenUsage{Input: 1000, Output: 100, CacheRead: 600, CacheWrite: 100, Reasoning: 40}},
		&event.StepEnded{}, &event.ContractChecked{Gate: "output"}, &event.RepairRequested{Attempt: 1},
		&event.StepStarted{Number: 2}, mainCall, &event.ModelCallCompleted{Attempt: 1, DurationMS: 100}, &event.StepEnded{},
		&event.ContractChecked{Gate: "output", OK: true}, &event.RunCompleted{}))
	way := "model=m,provider=openai_compatible,route=main"
	way3 := "model=m,outcome=%s,provider=openai_compatible,route=main"
	expect(t, m, map[string]float64{
		"runs_submitted_total{}": 1, "runs_ended_total{status=completed}": 1, "runs_ended_total{status=failed}": 0,
		"run_queue_seconds{} sum": 2, "run_duration_seconds{status=completed} sum": 17, "run_duration_seconds{status=completed} count": 1,
		"turn_duration_seconds{" + fmt.Sprintf(way3, "ended") + "} count": 2, "turn_duration_seconds{" + fmt.Sprintf(way3, "ended") + "} sum": 9,
		"model_call_duration_seconds{" + fmt.Sprintf(way3, "completed") + "} sum": 1.6, "model_call_duration_seconds{" + fmt.Sprintf(way3, "failed") + "} sum": .5,
		"model_first_output_seconds{" + way + "} sum": .25, "model_first_output_seconds{" + way + "} count": 2,
		"model_call_failures_total{class=rate_limit," + way + "}": 1, "model_retries_total{class=rate_limit}": 1, "model_retries_total{class=server}": 0,
		"tokens_total{kind=input," + way + "}": 1000, "tokens_total{kind=output," + way + "}": 100, "tokens_total{kind=cache_read," + way + "}": 600,
		"tokens_total{kind=cache_write," + way + "}": 100, "tokens_total{kind=reasoning," + way + "}": 40,
		"cost_usd_total{" + way + "}": (300*1 + 600*.1 + 100*2 + 100*10) / 1e6, "model_calls_unpriced_total{" + way + "}": 1,
		"contract_checks_total{gate=output,result=mismatch}": 1, "contract_checks_total{gate=output,result=ok}": 1, "contract_repairs_total{}": 1,
	})
}

// A summary may go another route than its run; both are counted where they went.
func TestCompactions(t *testing.T) {
	m := New(Config{Routes: testRoutes})
	compaction := func(run event.RunID, data ...event.Data) []eventlog.Stamp {
		stamps := at(run, data...)
		for i := range stamps[0].Events {
			stamps[0].Events[i].StepID = "cmp_1"
		}
		return stamps
	}
	free := &event.ModelCallStarted{Attempt: 1, Route: "free", Provider: "scripted", Model: "scripted"}
	used := &event.ModelCallCompleted{Attempt: 1, DurationMS: 100, Usage: &event.TokenUsage{Input: 70, Output: 7}}
	m.Committed(at("run_1", &event.RunCreated{}, &event.RunStarted{}, &event.StepStarted{Number: 1}, mainCall, &event.ModelCallFailed{Attempt: 1, Class: "context_overflow"}))
	m.Committed(compaction("run_1", &event.CompactionStarted{}, free, used, &event.CompactionEnded{}, &event.ContextCompacted{Reason: event.CompactOverflow}))
	m.Committed(at("run_1", &event.StepFailed{}, &event.RunFailed{}))
	m.Committed(compaction("", &event.CompactionRequested{}, &event.CompactionStarted{}, free, used, &event.CompactionFailed{Reason: event.CompactManual}))
	m.Committed(compaction("", &event.CompactionFailed{Reason: "hostile"}))
	expect(t, m, map[string]float64{
		"compactions_total{outcome=compacted,reason=overflow}": 1, "compactions_total{outcome=failed,reason=manual}": 1, "compactions_total{outcome=failed,reason=auto}": 0,
		"compactions_total{outcome=failed,reason=other}":                                            1,
		"tokens_total{kind=input,model=scripted,provider=scripted,route=free}":                      140,
		"tokens_total{kind=input,model=m,provider=openai_compatible,route=main}":                    0,
		"turn_duration_seconds{model=m,outcome=failed,provider=openai_compatible,route=main} count": 1,
	})
	if len(m.follow.runs) != 0 {
		t.Errorf("%d are remembered", len(m.follow.runs))
	}
}

func TestTools(t *testing.T) {
	m := New(Config{})
	for i, ends := range []event.Data{&event.ToolCompleted{DurationMS: 40}, &event.ToolFailed{DurationMS: 60}, &event.ToolTimeout{}, &event.ToolRejected{}, &event.ToolInterrupted{}} {
		m.Committed(call(event.CallID(fmt.Sprint("call_", i)), at("run_1", &event.ToolRequested{Name: "t", Level: "write"}, &event.ToolStarted{}, ends)))
	}
	m.Committed(call("call_x", at("run_1", &event.ToolRequested{Name: "anything"}, &event.ToolRejected{})))
	m.Committed(call("call_y", at("run_2", &event.ToolCompleted{DurationMS: 10}))) // requested in an earlier life
	expect(t, m, map[string]float64{
		"tool_calls_total{level=write,outcome=completed}": 1, "tool_calls_total{level=write,outcome=failed}": 1, "tool_calls_total{level=write,outcome=timeout}": 1,
		"tool_calls_total{level=write,outcome=rejected}": 1, "tool_calls_total{level=write,outcome=interrupted}": 1,
		"tool_calls_total{level=unknown,outcome=rejected}": 1, "tool_calls_total{level=unknown,outcome=completed}": 1, "tool_calls_total{level=read,outcome=completed}": 0,
		"tool_duration_seconds{level=write} sum": .1, "tool_duration_seconds{level=write} count": 2,
	})
	if m.follow.calls != 0 || len(m.follow.runs) != 1 {
		t.Errorf("%d calls and %d runs are remembered", m.follow.calls, len(m.follow.runs))
	}
}

func TestDeliveries(t *testing.T) {
	m := New(Config{})
	var codes []event.Data
	for _, code := range []string{"http_500", "http_503", "http_404", "http_99999", "http_9", "timeout", "sk-secret", ""} {
		codes = append(codes, &event.DeliveryAttemptFailed{Code: code, DurationMS: 100})
	}
	m.Committed(at("run_1", append(codes, &event.DeliveryEnqueued{}, &event.DeliveryAttemptFailed{Code: "x", Class: "contract", DurationMS: 100}, &event.DeliveryDelivered{DurationMS: 200, LagMS: 4000}, &event.DeliveryDeadLettered{}, &event.DeliveryReplayed{}, &event.DeliveryResolved{})...))
	expect(t, m, map[string]float64{
		"delivery_attempts_total{class=server}": 2, "delivery_attempts_total{class=refused}": 1, "delivery_attempts_total{class=timeout}": 1,
		"delivery_attempts_total{class=network}": 4, "delivery_attempts_total{class=contract}": 1, "delivery_attempts_total{class=delivered}": 1,
		"delivery_attempt_duration_seconds{} sum": 1.1, "delivery_lag_seconds{} sum": 4,
		"deliveries_total{step=enqueued}": 1, "deliveries_total{step=delivered}": 1, "deliveries_total{step=dead_lettered}": 1, "deliveries_total{step=replayed}": 1, "deliveries_total{step=resolved}": 1,
	})
}

// I-33: whatever models, callers and receivers say, no word of theirs becomes
// a label, and there are no more series than at the start could be foreseen.
func TestHostileWordsAreNoLabels(t *testing.T) {
	m := New(Config{Routes: testRoutes})
	for i := range 500 {
		bad := fmt.Sprintf("hostile-%d", i)
		run := event.RunID("run_" + bad)
		m.Committed(call(event.CallID(bad), at(run,
			&event.RunCreated{Route: event.Route{Name: bad, Model: bad, Provider: bad}, TextPreview: bad}, &event.RunStarted{}, &event.StepStarted{},
			&event.ModelCallStarted{Route: bad, Provider: bad, Model: bad}, &event.ModelCallFailed{Class: bad, Code: bad, Message: bad},
			&event.RetryScheduled{Class: bad},
			&event.ModelCallStarted{Route: "main", Provider: bad, Model: "m"}, &event.ModelCallFailed{Class: "server"},
			&event.ModelCallStarted{Route: "main", Provider: "openai_compatible", Model: bad},
			&event.ModelCallCompleted{Usage: &event.TokenUsage{Input: -5, Output: 1 << 62, CacheRead: 1 << 62}, DurationMS: -1, FirstOutputMS: -7},
			&event.ToolRequested{Name: bad, Level: bad}, &event.ToolStarted{Name: bad, Level: bad}, &event.ToolRejected{By: bad, Message: bad},
			&event.ContractChecked{Gate: bad, Error: bad}, &event.StepFailed{Class: bad}, &event.DeliveryAttemptFailed{Code: bad},
			&event.DeliveryDeadLettered{Code: bad}, &event.RunFailed{Code: bad, Message: bad})))
	}
	// A model that a caller named is not the one that has the price.
	expect(t, m, map[string]float64{
		"model_calls_unpriced_total{model=other,provider=openai_compatible,route=main}": 500, "model_calls_unpriced_total{model=m,provider=openai_compatible,route=main}": 0,
		"cost_usd_total{model=m,provider=openai_compatible,route=main}": 0,
	})
	m.Exported("hostile-signal", "hostile-outcome")
	text, err := m.Text()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "hostile") {
		t.Error("a hostile word is in the metrics")
	}
	if n := len(values(t, m)); n > 450 {
		t.Errorf("%d series", n)
	}
	if len(m.follow.runs) != 0 || m.follow.calls != 0 {
		t.Errorf("%d runs and %d calls are remembered", len(m.follow.runs), m.follow.calls)
	}
}

// A run of an earlier life ends in this one: it is counted, its time is not known.
func TestBegunBefore(t *testing.T) {
	m := New(Config{Routes: testRoutes})
	m.Committed(at("run_1", &event.ModelCallFailed{Attempt: 1, Class: "abandoned"}, mainCall, &event.ModelCallCompleted{Attempt: 2, DurationMS: 10}, &event.StepEnded{}, &event.RunCompleted{}))
	expect(t, m, map[string]float64{
		"runs_ended_total{status=completed}": 1, "runs_submitted_total{}": 0,
		"model_call_failures_total{class=abandoned,model=unknown,provider=unknown,route=unknown}":            1,
		"model_call_duration_seconds{model=m,outcome=completed,provider=openai_compatible,route=main} count": 1,
	})
	for key := range values(t, m) {
		if strings.HasPrefix(key, "run_duration_seconds{status") || strings.HasPrefix(key, "turn_duration_seconds") {
			t.Errorf("%s: a time that nobody knows", key)
		}
	}
	if len(m.follow.runs) != 0 {
		t.Error("a run that ended is remembered")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := New(Config{})
	for i := range maxRuns + 10 {
		m.Committed(at(event.RunID(fmt.Sprint("run_", i)), &event.RunCreated{}))
	}
	for i := range maxCalls + 10 {
		m.Committed(call(event.CallID(fmt.Sprint("call_", i)), at("run_0", &event.ToolRequested{Level: "read"})))
	}
	last := event.RunID(fmt.Sprint("run_", maxRuns+9))
	m.Committed(at(last, &event.RunCompleted{}))
	m.Committed(call(event.CallID(fmt.Sprint("call_", maxCalls+9)), at("run_0", &event.ToolCompleted{})))
	expect(t, m, map[string]float64{
		"metrics_untracked_total{}": 20, "runs_submitted_total{}": maxRuns + 10, "runs_ended_total{status=completed}": 1, "tool_calls_total{level=unknown,outcome=completed}": 1,
	})
	if len(m.follow.runs) != maxRuns || m.follow.calls != maxCalls {
		t.Errorf("%d runs, %d calls", len(m.follow.runs), m.follow.calls)
	}
	m.Committed(at("run_0", &event.RunCancelled{})) // gives the places back
	if len(m.follow.runs) != maxRuns-1 || m.follow.calls != 0 {
		t.Errorf("%d runs, %d calls after an end", len(m.follow.runs), m.follow.calls)
	}
}

// The store is asked once a second at most, and what it cannot say is missing.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, fail := 0, error(nil)
		began := event.FormatTime(time.Now())
		m := New(Config{Backlog: func(context.Context) (eventlog.Backlog, error) {
			asked++
			return eventlog.Backlog{Runs: map[string]int64{"queued": 3, "needs_attention": 1}, OldestQueued: began, PendingDeliveries: 2, OldestDelivery: began, DeadLettered: 4,
				Retrying: 5, BlockedTargets: 6, OpenCircuits: 7, HalfOpenCircuits: 8, PausedTargets: 9}, fail
		}})
		time.Sleep(90 * time.Second)
		for range 5 {
			expect(t, m, map[string]float64{
				"runs{status=queued}": 3, "runs{status=running}": 0, "runs{status=needs_attention}": 1, "queue_oldest_age_seconds{}": 90,
				"deliveries_pending{}": 2, "deliveries_oldest_pending_age_seconds{}": 90, "deliveries_dead_lettered{}": 4,
				"deliveries_retrying{}": 5, "targets_blocked{}": 6, "targets_circuits{state=open}": 7, "targets_circuits{state=half_open}": 8, "targets_paused{}": 9,
			})
		}
		if asked != 1 {
			t.Errorf("asked %d times within a second", asked)
		}
		fail = errors.New("closed")
		time.Sleep(time.Second)
		have := values(t, m)
		if _, there := have["deliveries_pending{}"]; there || asked != 2 {
			t.Errorf("an old answer is given as new; asked %d times", asked)
		}
		fail = nil
		expect(t, m, map[string]float64{"metrics_store_errors_total{}": 1, "deliveries_pending{}": 2})
	})
}

func TestBatches(t *testing.T) {
	m := New(Config{Waiting: func() int { return 7 }})
	m.Batch(Batch{Appends: 5, Refused: 2, Events: 40, Took: 3 * time.Millisecond, Longest: 8 * time.Millisecond})
	m.Batch(Batch{Refused: 1})
	m.Batch(Batch{Failed: true})
	expect(t, m, map[string]float64{
		"store_append_batch_size{} count": 1, "store_append_batch_size{} sum": 5, "store_commit_duration_seconds{} sum": .003, "store_append_duration_seconds{} sum": .008,
		"store_events_total{}": 40, "store_appends_refused_total{}": 3, "store_commit_failures_total{}": 1, "store_appends_waiting{}": 7,
	})
}

// Counting what one run commits: the cost that the writer pays.
func BenchmarkCommitted(b *testing.B) {
	m := New(Config{Routes: testRoutes})
	stamps := at("run_1", &event.RunCreated{}, &event.RunQueued{}, &event.OwnerClaimed{}, &event.RunStarted{}, &event.StateEntered{}, &event.ContextBuilt{},
		&event.StateEntered{}, &event.StateEntered{}, &event.StepStarted{}, mainCall,
		&event.TextEnded{}, &event.ModelCallCompleted{DurationMS: 10, Usage: &event.TokenUsage{Input: 1000, Output: 10}}, &event.InferenceCompleted{}, &event.StateEntered{},
		&event.StateEntered{}, &event.StepEnded{}, &event.StateEntered{}, &event.OutputEmitted{}, &event.StateEntered{}, &event.RunCompleted{})
	b.ReportAllocs()
	for b.Loop() {
		m.Committed(stamps)
	}
}

// Figures of nodes and leases are asked for; takes, fences, claims and news are counted.
func TestNodes(t *testing.T) {
	n := Nodes{Alive: 3, Draining: 1, TTL: 15 * time.Second, Left: 12 * time.Second, Held: 7, Beats: 9, Late: 2, Failed: 4, Lost: 1, SessionsGiven: 5, TargetsGiven: 6}
	m := New(Config{Nodes: func() Nodes { return n }})
	expect(t, m, map[string]float64{
		"nodes{state=working}": 3, "nodes{state=draining}": 1, "lease_ttl_seconds{}": 15, "lease_remaining_seconds{}": 12, "sessions_held{}": 7,
		"lease_beats_total{outcome=in_time}": 7, "lease_beats_total{outcome=late}": 2, "lease_beats_total{outcome=failed}": 4, "leases_lost_total{}": 1,
		"streams_given_total{kind=session}": 5, "streams_given_total{kind=target}": 6,
		"take_calls_total{kind=session,outcome=some}": 0, "appends_fenced_total{reason=held}": 0, "session_claims_total{kind=resumed}": 0, "streams_taken_total{kind=target}": 0,
	})
	m.Took("session", 3, 3, nil)
	m.Took("session", 8, 0, nil)
	m.Took("session", 0, 0, nil)
	m.Took("target", 0, 0, errors.New("away"))
	m.Fenced("fenced")
	m.Fenced("held")
	m.Fenced("held")
	m.Heard(20 * time.Millisecond)
	expect(t, m, map[string]float64{
		"take_calls_total{kind=session,outcome=some}": 2, "take_calls_total{kind=session,outcome=none}": 1, "take_calls_total{kind=target,outcome=failed}": 1,
		"streams_taken_total{kind=session}": 3, "appends_fenced_total{reason=fenced}": 1, "appends_fenced_total{reason=held}": 2,
		"news_lag_seconds{} count": 1, "news_lag_seconds{} sum": .02,
	})
}

// A claim tells whether a node begins with a session, gets it between two runs,
// or goes on in the middle of a run.
func TestClaims(t *testing.T) {
	m := New(Config{})
	claim := func(epoch int64, data ...event.Data) []eventlog.Stamp {
		stamps := at("run_1", append([]event.Data{&event.OwnerClaimed{Owner: "n"}}, data...)...)
		for i := range stamps[0].Events {
			stamps[0].Events[i].Epoch = epoch
		}
		stamps[0].Events[0].RunID = ""
		return stamps
	}
	m.Committed(claim(1, &event.RunStarted{}))
	m.Committed(claim(2, &event.StateEntered{}, &event.RunStarted{}, &event.StepStarted{Number: 1}))
	m.Committed(claim(3))
	m.Committed(claim(4, &event.RunCancelled{}))
	m.Committed(claim(5, &event.ModelCallFailed{Attempt: 1, Class: "abandoned"}))
	m.Committed(at("run_1", &event.RunCompleted{}))
	expect(t, m, map[string]float64{"session_claims_total{kind=first}": 1, "session_claims_total{kind=moved}": 3, "session_claims_total{kind=resumed}": 1})
}
