package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// house is a whole daemon in this process, on loopback, before a strict vendor.
type house struct {
	t      *testing.T
	dir    string
	stub   *chatstub.Stub
	tool   *httptest.Server
	called atomic.Int64 // of the tool
	d      *daemon.Daemon
	c      *client.Client

	address  string
	cfg      *config.Config
	opt      daemon.Options
	more     string           // further tools
	restored func(dir string) // fills the data directory before the first start
}

const houseToken = "house-token-house-token"

func newHouse(t *testing.T, script chatstub.Script) *house {
	t.Helper()
	stub := chatstub.New(script)
	vendor := httptest.NewServer(stub)
	t.Cleanup(vendor.Close)
	return newHouseAt(t, vendor.URL, stub)
}

// newHouseAt is a house before a vendor at an address; stub may be nil.
func newHouseAt(t *testing.T, vendor string, stub *chatstub.Stub) *house {
	t.Helper()
	h := &house{t: t, stub: stub}
	h.beginAt(vendor)
	return h
}

func (h *house) beginAt(vendor string) {
	h.t.Helper()
	h.begin(fmt.Sprintf(`routes: {main: {provider: openai_compatible, base_url: %q, model: m}}`, vendor+"/v1"), "found")
}

// begin starts the house with these routes and a tool that gives this text.
func (h *house) begin(routes, found string) {
	t := h.t
	t.Helper()
	h.dir = t.TempDir()
	h.tool = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.called.Add(1)
		io.WriteString(w, found)
	}))
	t.Cleanup(h.tool.Close)
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
%s
targets: {allow_private: [127.0.0.0/8]}
delivery: {initial_backoff: 20ms, timeout: 3s}
tools:
  lookup: {type: http, url: %q, side_effect: read, input_schema: {type: object, properties: {}, additionalProperties: false}}
%s`, routes, h.tool.URL, h.more)
	cfg, err := config.Parse([]byte(text), "holdfast.yaml", h.dir)
	if err != nil {
		t.Fatal(err)
	}
	h.cfg = cfg
	t.Cleanup(h.stop)
	if h.restored != nil {
		h.restored(h.dir + "/holdfast-data")
	}
	h.open()
}

// open begins a process life of the daemon.
func (h *house) open() {
	t, cfg := h.t, h.cfg
	t.Helper()
	var err error
	if h.d, err = daemon.Open(t.Context(), cfg, h.opt); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.d.FirstToken(t.Context(), houseToken); err != nil {
		t.Fatal(err)
	}
	if err := h.d.AuditStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	h.d.Serve(l, false)
	if h.c, err = client.New("http://"+h.address, houseToken); err != nil {
		t.Fatal(err)
	}
}

// restart ends this process life of the daemon and begins another.
func (h *house) restart() {
	h.t.Helper()
	if err := h.d.Stop(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

// stop ends the daemon and checks what holds after every test: the vendor had
// no complaint, and the record is whole.
func (h *house) stop() {
	if err := h.d.Stop(context.Background()); err != nil {
		h.t.Error(err)
	}
	if h.stub != nil {
		for _, v := range h.stub.Violations() {
			h.t.Errorf("the vendor refuses: %s", v)
		}
	}
	s, err := sqlite.Open(context.Background(), sqlite.Config{Dir: h.dir + "/holdfast-data", Rows: rowsOfLog, Generation: eventlog.RowsVersion})
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.Close(context.Background())
	report, err := s.Verify(context.Background(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		h.t.Errorf("verify: %v %+v", err, report.Findings)
	}
}

func (h *house) session(req *api.CreateSession) string {
	h.t.Helper()
	s, err := h.c.CreateSession(h.t.Context(), req)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.ID
}

func (h *house) run(req *api.CreateSession, content api.Raw) *api.Run {
	h.t.Helper()
	return h.submit(h.session(req), &api.SubmitRun{Content: content})
}

// submit submits, and waits until the run goes no further.
func (h *house) submit(session string, req *api.SubmitRun) *api.Run {
	h.t.Helper()
	r, _, err := h.c.Submit(h.t.Context(), session, req)
	if err != nil {
		h.t.Fatal(err)
	}
	if r, err = h.c.Wait(h.t.Context(), r.ID); err != nil {
		h.t.Fatal(err)
	}
	return r
}

const contractT = `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},
	"tags":{"type":"array","items":{"type":"string"}}},"required":["status","count"],"additionalProperties":false}`

// C13: after a tool turn a wrong answer is repaired on a turn on which the
// model has no way to call a tool, and a strict vendor takes the request.
func TestRepairAfterToolTurn(t *testing.T) { // C13, I-10
	h := newHouse(t, chatstub.Replies(
		chatstub.Reply{Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}},
		chatstub.Reply{Text: `{"status":"ok"}`},
		chatstub.Reply{Text: `{"status":"ok","count":1}`},
	))
	r := h.run(&api.CreateSession{OutputContract: &api.OutputContract{Schema: api.Raw(contractT)}}, api.Text("go"))
	if r.Status != api.RunCompleted || r.Counters.Repairs != 1 || r.Counters.Tools != 1 || string(r.StructuredOutput) != `{"count":1,"status":"ok"}` {
		t.Fatalf("%+v %+v", r, r.Counters)
	}
	if h.called.Load() != 1 {
		t.Errorf("the tool ran %d times", h.called.Load())
	}
	third := h.stub.Requests()[2]
	if len(third.Tools) != 0 || third.ToolChoice || strings.Contains(string(third.Body), `"parallel_tool_calls":true`) {
		t.Errorf("the repair turn offers tools: %s", third.Body)
	}
	if last := third.Messages[len(third.Messages)-1].Text(); !strings.Contains(last, "$.count: missing required field") || !strings.Contains(last, "Send only the corrected JSON") {
		t.Errorf("the repair message is %q", last)
	}
}

// C12: the budget counts, by default, as none, within and past the ceiling.
func TestRepairBudget(t *testing.T) { // C12, I-09
	n := func(i int) *int { return &i }
	for _, v := range []struct {
		max   *int
		calls int
	}{{nil, 4}, {n(0), 1}, {n(2), 3}, {n(5), 6}, {n(50), 6}} {
		h := newHouse(t, func(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: `{"status":"ok"}`} })
		r := h.run(&api.CreateSession{
			OutputContract: &api.OutputContract{Schema: api.Raw(contractT), MaxRepairAttempts: v.max},
			ReplyTargets:   []api.ReplyTarget{{Type: "webhook", URL: h.tool.URL}},
		}, api.Text("go"))
		want := fmt.Sprintf("structured output contract unsatisfied after %d repair attempts: $.count: missing required field", v.calls-1)
		if r.Status != api.RunFailed || r.Error.Message != want || len(h.stub.Requests()) != v.calls {
			t.Errorf("budget %v: %s %+v after %d calls, want %d", v.max, r.Status, r.Error, len(h.stub.Requests()), v.calls)
		}
		if len(r.Deliveries) != 0 || len(r.Outputs) != 0 || h.called.Load() != 0 {
			t.Errorf("budget %v: something was delivered: %+v", v.max, r)
		}
	}
}

// C14: a tool call on a repair turn does not run, counts as one wrong answer,
// and leaves the next request well paired.
func TestStrayCallOnRepairTurn(t *testing.T) { // C14, I-10
	h := newHouse(t, chatstub.Replies(
		chatstub.Reply{Text: `{"status":"ok"}`},
		chatstub.Reply{Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}},
		chatstub.Reply{Text: `{"status":"ok","count":1}`},
	))
	r := h.run(&api.CreateSession{OutputContract: &api.OutputContract{Schema: api.Raw(contractT)}}, api.Text("go"))
	if r.Status != api.RunCompleted || r.Counters.Repairs != 2 || h.called.Load() != 0 {
		t.Errorf("%s, %+v, tool called %d times", r.Status, r.Counters, h.called.Load())
	}
}

// hook is a receiver that plays a list of answers and keeps what came.
type hook struct {
	mu    sync.Mutex
	play  []func(http.ResponseWriter, *http.Request)
	heads []http.Header
	body  [][]byte
	came  chan int
}

func (k *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	n := len(k.body)
	k.heads, k.body = append(k.heads, r.Header.Clone()), append(k.body, body)
	answer := k.play[min(n, len(k.play)-1)]
	k.mu.Unlock()
	answer(w, r)
	k.came <- n + 1
}

// C56, C03: every attempt and a forced replay have the same id, the same bytes
// and a good signature; what is delivered is the canonical value, digit for digit.
func TestDeliveryIsOneMessage(t *testing.T) { // C03, C56, I-26
	k := &hook{came: make(chan int, 16), play: []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, // took it, never answers
		func(http.ResponseWriter, *http.Request) {},
	}}
	receiver := httptest.NewServer(k)
	defer receiver.Close()
	const answer = `{"url": "https://x.test/?a=1&b=2", "id": 9007199254740993, "note": "<b>ok</b> & done\u2028"}`
	const canonical = "{\"id\":9007199254740993,\"note\":\"<b>ok</b> & done\u2028\",\"url\":\"https://x.test/?a=1&b=2\"}"
	h := newHouse(t, func(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: answer} })
	const schema = `{"type":"object","properties":{"url":{"type":"string"},"id":{"type":"integer"},"note":{"type":"string"}},
		"required":["url","id","note"],"additionalProperties":false}`
	r := h.run(&api.CreateSession{
		InputContract: &api.InputContract{Schema: api.Raw(schema)}, OutputContract: &api.OutputContract{Schema: api.Raw(schema)},
		ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: receiver.URL}},
	}, api.Raw(answer))
	if r.Outputs[0].Content != canonical || string(r.StructuredOutput) != canonical {
		t.Fatalf("output %q, structured %s", r.Outputs[0].Content, r.StructuredOutput)
	}
	if got := h.stub.Requests()[0].Messages[0].Text(); got != canonical {
		t.Errorf("the model was shown %q", got)
	}
	for want := 1; want <= 3; want++ {
		if n := <-k.came; n != want {
			t.Fatalf("attempt %d came as %d", n, want)
		}
	}
	id := r.Deliveries[0].ID
	h.delivered(id)
	if _, err := h.c.ReplayDelivery(t.Context(), id, &api.ReplayDelivery{}); client.Code(err) != "delivery_state_conflict" {
		t.Errorf("a delivered message was replayed without force: %v", err)
	}
	if _, err := h.c.ReplayDelivery(t.Context(), id, &api.ReplayDelivery{Force: true, Reason: "once more"}); err != nil {
		t.Fatal(err)
	}
	<-k.came
	d := h.delivered(id)
	if d.Attempts != 4 {
		t.Errorf("%d attempts, want 4", d.Attempts)
	}
	h.checkAttempts(k, id, canonical)
}

// delivered waits until a delivery is recorded as delivered.
func (h *house) delivered(id string) *api.Delivery {
	h.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(*patience)
	for {
		d, err := h.c.Delivery(h.t.Context(), id)
		if err != nil {
			h.t.Fatal(err)
		}
		if d.Status == api.DeliveryDelivered {
			return d
		}
		select {
		case <-tick.C:
		case <-limit:
			h.t.Fatalf("the delivery is %+v", d)
		}
	}
}

func (h *house) checkAttempts(k *hook, id, content string) {
	h.t.Helper()
	secret, err := webhook.ParseSecret(readFile(h.t, h.dir+"/holdfast-data/webhook.secret"))
	if err != nil {
		h.t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, body := range k.body {
		if got := k.heads[i].Get("webhook-id"); got != id || string(body) != string(k.body[0]) {
			h.t.Errorf("attempt %d: id %s, other bytes %v", i+1, got, string(body) != string(k.body[0]))
		}
		if err := webhook.Verify(k.heads[i], body, secret, time.Now(), time.Minute); err != nil {
			h.t.Errorf("attempt %d: %v", i+1, err)
		}
		canonical, err := canonjson.Canonicalize(body, canonjson.Limits{})
		if err != nil || string(canonical) != string(body) {
			h.t.Errorf("attempt %d: the body is not canonical: %v", i+1, err)
		}
		if !strings.Contains(string(body), `"structured_output":`+content) {
			h.t.Errorf("attempt %d: %s", i+1, body)
		}
	}
}

// A target that could never be reached is refused when it is named.
func TestTargetsThatMayNotBe(t *testing.T) { // C60
	h := newHouse(t, chatstub.Replies(chatstub.Reply{Text: "hi"}))
	for url, code := range map[string]string{
		"http://10.1.2.3/hook": "target_not_allowed", "http://[fd00::1]/": "target_not_allowed", "http://169.254.169.254/": "target_not_allowed",
		"ftp://a.test/": "invalid_url", "http://127.0.0.1:1/": "", "http://localhost:1/": "", "https://you.example/": "",
	} {
		_, err := h.c.CreateSession(t.Context(), &api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: url}}})
		if client.Code(err) != code {
			t.Errorf("%s: %v, want %q", url, err, code)
		}
	}
}
