package daemon_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	otlptrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/otlp/otlpstub"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/span"
)

// What must be seen nowhere, each from another side.
const (
	canaryKey    = "sk-canary-api-key"
	canaryHeader = "canary-tool-header"
	canaryOTLP   = "canary-collector-token"
	canaryInput  = "canary-of-the-input"
	canaryAnswer = "canary-of-the-answer"
	canaryResult = "canary-of-the-result"
	canaryTool   = "canary_of_a_tool_name"
)

// watched is one process life of a daemon that is watched.
type watched struct {
	t    *testing.T
	d    *daemon.Daemon
	c    *client.Client
	url  string
	logs *lockedText
}

type lockedText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func watch(t *testing.T, dir, text string) *watched {
	t.Helper()
	cfg, err := config.Parse([]byte(text), "holdfast.yaml", dir)
	if err != nil {
		t.Fatal(err)
	}
	l := &watched{t: t, logs: &lockedText{}}
	if l.d, err = daemon.Open(t.Context(), cfg, daemon.Options{Logger: slog.New(slog.NewTextHandler(l.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.end)
	if _, err := l.d.FirstToken(t.Context(), houseToken); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.url = "http://" + listener.Addr().String()
	l.d.Serve(listener, false)
	if l.c, err = client.New(l.url, houseToken); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *watched) end() {
	if err := l.d.Stop(context.Background()); err != nil {
		l.t.Error(err)
	}
}

func (l *watched) get(path string) []byte {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), "GET", l.url+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+houseToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		l.t.Fatalf("%s: %d %s %v", path, res.StatusCode, body, err)
	}
	return body
}

// metrics reads the counters of ours, by name and labels, and the counts of histograms.
func (l *watched) metrics() (map[string]float64, string) {
	l.t.Helper()
	text := string(l.get("/metrics"))
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if strings.HasPrefix(line, "holdfast_") && ok && err == nil {
			out[strings.TrimPrefix(key, "holdfast_")] = v
		}
	}
	return out, text
}

// recount counts the events of the feed after a position by hand, and gives
// where the feed ends.
func (l *watched) recount(after int64) (map[string]float64, int64) {
	l.t.Helper()
	n := map[string]float64{}
	level, begun := map[string]string{}, map[string]bool{}
	for {
		var page struct {
			Items []struct {
				Type   string
				CallID string `json:"call_id"`
				StepID string `json:"step_id"`
				Data   map[string]any
			}
			Next string `json:"next_cursor"`
		}
		if err := json.Unmarshal(l.get(fmt.Sprintf("/v1/events?limit=500&after=%d", after)), &page); err != nil {
			l.t.Fatal(err)
		}
		for _, e := range page.Items {
			word := func(key string) string { s, _ := e.Data[key].(string); return s }
			n["store_events_total"]++
			switch e.Type {
			case "run.created":
				n["runs_submitted_total"]++
			case "run.completed", "run.failed", "run.cancelled", "run.interrupted":
				n[fmt.Sprintf("runs_ended_total{status=%q}", strings.TrimPrefix(e.Type, "run."))]++
			case "model.call.completed":
				n[`model_call_duration_seconds_count{model="m",outcome="completed",provider="openai_compatible",route="main"}`]++
				if u, ok := e.Data["usage"].(map[string]any); ok {
					n[`tokens_total{kind="input",model="m",provider="openai_compatible",route="main"}`] += u["input"].(float64)
					n[`tokens_total{kind="output",model="m",provider="openai_compatible",route="main"}`] += u["output"].(float64)
				}
			case "model.call.failed":
				n["failed"]++
			case "step.started":
				begun[e.StepID] = true
			case "step.ended":
				if !begun[e.StepID] {
					continue // how long it took is not known in this life
				}
				n[`turn_duration_seconds_count{model="m",outcome="ended",provider="openai_compatible",route="main"}`]++
			case "contract.checked":
				result := "mismatch"
				if e.Data["ok"] == true {
					result = "ok"
				}
				n[fmt.Sprintf(`contract_checks_total{gate="output",result=%q}`, result)]++
			case "contract.repair.requested":
				n["contract_repairs_total"]++
			case "tool.call.requested":
				if level[e.CallID] = word("level"); level[e.CallID] == "" {
					level[e.CallID] = "unknown"
				}
			case "tool.call.completed", "tool.call.failed", "tool.call.rejected":
				n[fmt.Sprintf(`tool_calls_total{level=%q,outcome=%q}`, level[e.CallID], strings.TrimPrefix(e.Type, "tool.call."))]++
			case "delivery.enqueued":
				n[`deliveries_total{step="enqueued"}`]++
			case "delivery.delivered":
				n[`deliveries_total{step="delivered"}`]++
				n[`delivery_attempts_total{class="delivered"}`]++
			case "delivery.attempt.failed":
				n[`delivery_attempts_total{class="server"}`]++
			}
		}
		next, err := strconv.ParseInt(page.Next, 10, 64)
		if err != nil {
			l.t.Fatal(err)
		}
		if next == after {
			return n, after
		}
		after = next
	}
}

// counted says that the counters are what the log says. They follow a commit, which
// whoever reads the log may see before.
func (l *watched) counted(after int64) (end int64) {
	l.t.Helper()
	var text string
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(*patience); ; <-tick.C {
		var differ []string
		if differ, text, end = l.differ(after); len(differ) == 0 {
			break
		}
		select {
		case <-limit:
			l.t.Fatal(strings.Join(differ, "\n"))
		default:
		}
	}
	noCanary(l.t, "the metrics", text)
	if ids := regexp.MustCompile(`(ses|run|call|step|dlv|tgt|tok|evt)_[0-9a-f]{16}`).FindString(text); ids != "" {
		l.t.Errorf("an id is in the metrics: %s", ids)
	}
	return end
}

// differ tells the counters that are not what the log says after a position.
func (l *watched) differ(after int64) (list []string, text string, end int64) {
	l.t.Helper()
	tell := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	want, end := l.recount(after)
	have, text := l.metrics()
	failed := 0.0
	for key, v := range have {
		if strings.HasPrefix(key, "model_call_failures_total") {
			failed += v
		}
	}
	if failed != want["failed"] {
		tell("%v failed calls are counted, the log has %v", failed, want["failed"])
	}
	delete(want, "failed")
	for key, v := range want {
		if have[key] != v {
			tell("%s is %v, the log says %v", key, have[key], v)
		}
	}
	for key, v := range have { // and nothing else moved
		base, _, _ := strings.Cut(key, "{")
		if _, known := want[key]; !known && v != 0 && (base == "runs_ended_total" || base == "tool_calls_total" || base == "deliveries_total" ||
			base == "contract_checks_total" || base == "delivery_attempts_total" || base == "runs_submitted_total") {
			tell("%s is %v, the log has none", key, v)
		}
	}
	return list, text, end
}

func noCanary(t *testing.T, where, text string) {
	t.Helper()
	for _, c := range []string{canaryKey, canaryHeader, canaryOTLP, canaryInput, canaryAnswer, canaryResult, canaryTool} {
		if strings.Contains(text, c) {
			t.Errorf("%s holds %s", where, c)
		}
	}
}

// Counters equal what the log says, in each life from zero; a run over two
// lives is one trace; and neither holds a secret or a word of content (I-33).
func TestSeen(t *testing.T) {
	t.Setenv("HF_CANARY_KEY", canaryKey)
	t.Setenv("HF_CANARY_HEADER", canaryHeader)
	t.Setenv("HF_CANARY_OTLP", canaryOTLP)
	hang, hung := make(chan struct{}), make(chan struct{})
	stub := chatstub.New(func(n int, req chatstub.Request) chatstub.Reply {
		text := string(req.Body)
		switch {
		case strings.Contains(text, "never ends"):
			return chatstub.Reply{Text: canaryAnswer}
		case len(req.Messages) == 1:
			return chatstub.Reply{Input: 1000, Output: 20, Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}, {Name: canaryTool, Arguments: `{"a":"` + canaryInput + `"}`}}}
		case !strings.Contains(text, "corrected JSON"):
			return chatstub.Reply{Text: `{"` + canaryAnswer + `":1}`}
		}
		return chatstub.Reply{Input: 1200, Output: 30, Text: `{"status":"` + canaryAnswer + `","count":1}`}
	})
	var once sync.Once
	vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if strings.Contains(string(body), "never ends") {
			first := false
			once.Do(func() { first = true; close(hung) })
			if first {
				select {
				case <-hang:
				case <-r.Context().Done():
				}
				return
			}
		}
		stub.ServeHTTP(w, r)
	}))
	defer vendor.Close()
	defer close(hang)
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, canaryResult) }))
	defer tool.Close()
	posts := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if posts++; posts == 1 {
			w.WriteHeader(500)
		}
	}))
	defer receiver.Close()
	stubCollector := &otlpstub.Stub{Header: [2]string{"Authorization", canaryOTLP}}
	collector := httptest.NewServer(stubCollector)
	defer collector.Close()
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
routes: {main: {provider: openai_compatible, base_url: %q, model: m, api_key: {env: HF_CANARY_KEY}, price: {input: 2, output: 8}}}
targets: {allow_private: [127.0.0.0/8]}
delivery: {initial_backoff: 20ms}
shutdown: {drain: 1ms}
telemetry: {otlp_endpoint: %q, headers: {authorization: {env: HF_CANARY_OTLP}}}
tools:
  lookup: {type: http, url: %q, side_effect: read, headers: {x-key: {env: HF_CANARY_HEADER}},
           input_schema: {type: object, properties: {}, additionalProperties: false}}
`, vendor.URL+"/v1", collector.URL, tool.URL)
	dir := t.TempDir()

	one := watch(t, dir, text)
	h := &house{t: t, c: one.c}
	for range 3 {
		r := h.run(&api.CreateSession{OutputContract: &api.OutputContract{Schema: api.Raw(contractT)}, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: receiver.URL}}}, api.Text(canaryInput))
		if r.Status != api.RunCompleted {
			t.Fatalf("%+v %+v", r, r.Error)
		}
		h.delivered(r.Deliveries[0].ID)
	}
	s, err := one.c.CreateSession(t.Context(), &api.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	cut, _, err := one.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("never ends")})
	if err != nil {
		t.Fatal(err)
	}
	<-hung
	end := one.counted(0)
	if have, _ := one.metrics(); have[`runs{status="running"}`] != 1 || have[`cost_usd_total{model="m",provider="openai_compatible",route="main"}`] <= 0 || have["sessions_active"] != 1 {
		t.Errorf("what stands now: %v running, %v active, cost %v", have[`runs{status="running"}`], have["sessions_active"], have[`cost_usd_total{model="m",provider="openai_compatible",route="main"}`])
	}
	one.end()

	two := watch(t, dir, text)
	again, err := two.c.Wait(t.Context(), cut.ID)
	if err != nil || again.Status != api.RunCompleted {
		t.Fatalf("%+v %v", again, err)
	}
	two.counted(end)
	if have, _ := two.metrics(); have["runs_submitted_total"] != 0 || have[`runs_ended_total{status="completed"}`] != 1 {
		t.Error("the second life does not count from zero")
	}
	two.end()

	noCanary(t, "the log of the daemon", one.logs.String()+two.logs.String())
	noCanary(t, "what was sent", string(stubCollector.Raw()))
	for _, v := range stubCollector.Violations() {
		t.Errorf("the collector complains: %s", v)
	}
	if stubCollector.Metric("holdfast_runs_ended_total") == nil {
		t.Error("no metrics were sent")
	}
	oneTrace(t, stubCollector.Spans(), cut.ID)
}

// oneTrace says that a run which two lives worked on is one trace, made once.
func oneTrace(t *testing.T, spans []*otlptrace.Span, run string) {
	t.Helper()
	id := span.TraceOf(event.RunID(run))
	var told []string
	seen := map[string]bool{}
	traces := map[string]bool{}
	for _, s := range spans {
		traces[hex.EncodeToString(s.GetTraceId())] = true
		if !bytes.Equal(s.GetTraceId(), id[:]) {
			continue
		}
		if key := hex.EncodeToString(s.GetSpanId()); seen[key] {
			t.Errorf("span %s twice", s.GetName())
		} else {
			seen[key] = true
		}
		word := ""
		for _, a := range s.GetAttributes() {
			if a.GetKey() == "error.type" {
				word = " " + a.GetValue().GetStringValue()
			}
		}
		told = append(told, s.GetName()+word)
	}
	if got := strings.Join(told, ", "); got != "invoke_agent, queue, turn 1, chat m abandoned, chat m" || len(traces) != 4 {
		t.Errorf("%d traces; that of the run: %s", len(traces), got)
	}
}

// A collector that hangs delays a stop by no more than its patience, and runs by nothing.
func TestHangingCollector(t *testing.T) {
	release := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer collector.Close()
	defer close(release)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/s.yaml", []byte("rules: [{reply: {text: hi}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := watch(t, dir, fmt.Sprintf("listen: 127.0.0.1:0\nroutes: {main: {provider: scripted, script: ./s.yaml}}\ntelemetry: {otlp_endpoint: %q}\n", collector.URL))
	h := &house{t: t, c: l.c}
	for range 5 {
		if r := h.run(&api.CreateSession{}, api.Text("go")); r.Status != api.RunCompleted {
			t.Fatalf("%+v", r)
		}
	}
	done := make(chan struct{})
	go func() { l.end(); close(done) }()
	select {
	case <-done:
	case <-time.After(*patience):
		t.Error("the stop waits for the collector")
	}
	if !strings.Contains(l.logs.String(), "telemetry is dropped") {
		t.Error("nobody was told")
	}
}
