package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/otlp/otlpstub"
)

// fakeLog holds the events of one stream.
type fakeLog struct {
	events []event.Event
	err    error
	reads  int
}

func (l *fakeLog) Run(_ context.Context, id event.RunID) (eventlog.RunRow, error) {
	if l.err != nil {
		return eventlog.RunRow{}, l.err
	}
	for i := range l.events {
		if l.events[i].RunID == id && l.events[i].Type == event.TypeRunCreated {
			return eventlog.RunRow{ID: id, CreatedSeq: l.events[i].Seq}, nil
		}
	}
	return eventlog.RunRow{}, eventlog.ErrNotFound
}

func (l *fakeLog) ReadBounded(_ context.Context, _ event.Stream, after int64, limit int) ([]event.Event, error) {
	l.reads++
	out := l.events[min(int(after), len(l.events)):]
	return append([]event.Event(nil), out[:min(limit, len(out), 3)]...), nil // short pages
}

// addRun appends a run of one model call, and gives the stamps of its end.
func (l *fakeLog) addRun(id event.RunID) []eventlog.Stamp {
	for _, d := range []event.Data{
		&event.RunCreated{Route: event.Route{Name: "main", Provider: "scripted", Model: "m"}, TextPreview: "xyzzy"}, &event.RunStarted{}, &event.StepStarted{Number: 1},
		&event.ModelCallStarted{Attempt: 1, Route: "main", Provider: "scripted", Model: "m"}, &event.TextEnded{Content: event.TextContent("xyzzy")},
		&event.ModelCallCompleted{Attempt: 1}, &event.StepEnded{}, &event.RunCompleted{},
	} {
		l.events = append(l.events, event.Event{Type: d.EventType(), Stream: "session:ses_1", Seq: int64(len(l.events) + 1), RunID: id, SessionID: "ses_1",
			StepID: event.StepID("step_" + id), Data: d, Time: time.Now()})
	}
	return []eventlog.Stamp{{Stream: "session:ses_1", Events: l.events[len(l.events)-2:]}}
}

// pipes serves a handler to whoever dials, without sockets: a bubble has none.
func pipes(t *testing.T, h http.Handler) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Close(); wg.Wait() })
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		a, b := net.Pipe()
		select {
		case l.conns <- a:
			return b, nil
		case <-l.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func over(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// world is an exporter before a strict collector.
type world struct {
	*Exporter
	stub  *otlpstub.Stub
	log   *fakeLog
	lines *bytes.Buffer
	mu    sync.Mutex
	count map[string]int // signal and outcome; drops
}

func bubble(t *testing.T, f func(t *testing.T, w *world), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{stub: &otlpstub.Stub{}, log: &fakeLog{}, lines: &bytes.Buffer{}, count: map[string]int{}}
		cfg := Config{
			Endpoint: "http://collector.test/", Sample: 1, Log: w.log, Version: "1", Instance: "i", HTTP: over(pipes(t, w.stub)), Logger: slog.New(slog.NewTextHandler(w.lines, nil)),
			Exported: func(signal, outcome string) { w.add(signal+" "+outcome, 1) }, Dropped: func(signal string, n int) { w.add(signal+" dropped", n) },
		}
		for _, c := range change {
			c(&cfg)
		}
		var err error
		if w.Exporter, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		f(t, w)
		for _, v := range w.stub.Violations() {
			t.Errorf("the collector complains: %s", v)
		}
	})
}

func (w *world) add(key string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[key] += n
}

func (w *world) counts() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.count)
}

func stop(w *world) { w.Stop(context.Background()) }

func TestTraces(t *testing.T) { // I-33
	bubble(t, func(t *testing.T, w *world) {
		w.stub.Header = [2]string{"Authorization", "Bearer hush"}
		w.Start()
		first, second := w.log.addRun("run_1"), w.log.addRun("run_2")
		w.Committed(first)
		w.Committed(second)
		w.Committed([]eventlog.Stamp{{Events: []event.Event{{Type: event.TypeRunFailed, RunID: "run_erased", Stream: "session:ses_2"}}}})
		synctest.Wait()
		stop(w)
		spans := w.stub.Spans()
		ids := map[string]int{}
		for _, s := range spans {
			ids[string(s.GetTraceId())]++
		}
		if len(spans) != 8 || len(ids) != 2 {
			t.Errorf("%d spans of %d traces", len(spans), len(ids))
		}
		if strings.Contains(string(w.stub.Raw()), "xyzzy") || strings.Contains(string(w.stub.Raw()), "hush") {
			t.Error("content was sent")
		}
		if w.count["traces dropped"] != 0 || w.count["traces failed"] != 0 || w.count["traces sent"] == 0 {
			t.Error(w.counts())
		}
	}, func(c *Config) {
		c.Headers = func() (map[string]string, error) { return map[string]string{"authorization": "Bearer hush"}, nil }
	})
}

// What may pass is tried again, with the time that the collector asks for; what
// will not pass is not.
func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		answers []otlpstub.Answer
		want    string
		took    time.Duration
		spans   int
	}{
		"busy, then well":  {[]otlpstub.Answer{{Status: 503}, {Status: 429, RetryAfter: 20}}, "map[traces failed:2 traces sent:1]", 21 * time.Second, 4},
		"patience is over": {[]otlpstub.Answer{{Status: 502}, {Status: 504}, {Status: 503}, {Status: 503}, {Status: 503}}, "map[traces dropped:1 traces failed:4]", 7 * time.Second, 0},
		"a rude wait":      {[]otlpstub.Answer{{Status: 503, RetryAfter: 1 << 30}}, "map[traces failed:1 traces sent:1]", maxWait, 4},
		"refused":          {[]otlpstub.Answer{{Status: 400}}, "map[traces dropped:1 traces refused:1]", 0, 0},
		"partly refused":   {[]otlpstub.Answer{{Rejected: 2}}, "map[traces dropped:1 traces refused:1]", 0, 0},
		"sent elsewhere":   {[]otlpstub.Answer{{Status: 307, Location: "http://elsewhere.test/v1/traces"}}, "map[traces dropped:1 traces refused:1]", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.stub.Next("/v1/traces", c.answers...)
				w.Start()
				began := time.Now()
				w.Committed(w.log.addRun("run_1"))
				for w.counts() != c.want && time.Since(began) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				took := time.Since(began)
				stop(w)
				if w.counts() != c.want || took < c.took || took > c.took+time.Second || len(w.stub.Spans()) != c.spans {
					t.Errorf("%s after %v with %d spans, want %s after %v with %d", w.counts(), took, len(w.stub.Spans()), c.want, c.took, c.spans)
				}
			})
		})
	}
}

// A collector that hangs holds up nobody: commits go on, what has no place is
// counted, and the log gets a line a minute, without a word of a secret.
func TestDeadCollector(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var ends [][]eventlog.Stamp
		for i := range 3 * maxQueue {
			ends = append(ends, w.log.addRun(event.RunID(fmt.Sprint("run_", i))))
		}
		w.Start()
		began := time.Now()
		for _, end := range ends {
			w.Committed(end)
		}
		if time.Since(began) != 0 {
			t.Errorf("commits took %v", time.Since(began))
		}
		time.Sleep(10 * time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began = time.Now()
		w.Stop(ctx)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("a stop took %v", took)
		}
		dropped := w.count["traces dropped"]
		if dropped < 2*maxQueue-1 {
			t.Errorf("%d dropped", dropped)
		}
		lines := strings.Count(w.lines.String(), "\n")
		if lines == 0 || lines > 12 || strings.Contains(w.lines.String(), "hush") {
			t.Errorf("%d lines:\n%s", lines, w.lines)
		}
	}, func(c *Config) {
		c.HTTP = over(func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
		c.Headers = func() (map[string]string, error) { return map[string]string{"authorization": "Bearer hush"}, nil }
	})
}

// What cannot be read is dropped and counted, and nothing else stops.
func TestTroubleOnOurSide(t *testing.T) {
	secret := errors.New("no such file")
	bubble(t, func(t *testing.T, w *world) {
		w.Start()
		w.log.err = errors.New("closed")
		w.Committed(w.log.addRun("run_1"))
		synctest.Wait()
		w.log.err = nil
		w.Committed(w.log.addRun("run_2"))
		time.Sleep(time.Minute)
		stop(w)
		if w.counts() != "map[traces dropped:2 traces failed:4]" || w.stub.Requests("/v1/traces") != 0 {
			t.Errorf("%s, %d requests", w.counts(), w.stub.Requests("/v1/traces"))
		}
	}, func(c *Config) { c.Headers = func() (map[string]string, error) { return nil, secret } })
}

// A stop sends what waits.
func TestStopFlushes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for i := range 20 {
			w.Committed(w.log.addRun(event.RunID(fmt.Sprint("run_", i))))
		}
		w.Start()
		stop(w)
		if n := len(w.stub.Spans()); n != 20*4 {
			t.Errorf("%d spans", n)
		}
	})
}

func TestSampleOfNone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.Start()
		w.Committed(w.log.addRun("run_1"))
		stop(w)
		if w.stub.Requests("/v1/traces") != 0 || w.log.reads != 0 {
			t.Errorf("%d requests, %d reads", w.stub.Requests("/v1/traces"), w.log.reads)
		}
	}, func(c *Config) { c.Sample = 0 })
}

func TestMetrics(t *testing.T) {
	families := []*dto.MetricFamily{
		{Name: proto.String("c_total"), Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{{Counter: &dto.Counter{Value: proto.Float64(7)},
			Label: []*dto.LabelPair{{Name: proto.String("route"), Value: proto.String("main")}}}}},
		{Name: proto.String("g"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: proto.Float64(3)}}}},
		{Name: proto.String("h"), Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Histogram: &dto.Histogram{SampleCount: proto.Uint64(6), SampleSum: proto.Float64(9),
			Bucket: []*dto.Bucket{{UpperBound: proto.Float64(1), CumulativeCount: proto.Uint64(2)}, {UpperBound: proto.Float64(5), CumulativeCount: proto.Uint64(5)}}}}}},
		{Name: proto.String("s"), Type: dto.MetricType_SUMMARY.Enum(), Metric: []*dto.Metric{{Summary: &dto.Summary{SampleCount: proto.Uint64(2), SampleSum: proto.Float64(1)}}}},
	}
	bubble(t, func(t *testing.T, w *world) {
		w.stub.Next("/v1/metrics", otlpstub.Answer{Status: 503}) // the first is lost; the next has all of it
		w.Start()
		time.Sleep(65 * time.Second)
		if n := w.stub.Requests("/v1/metrics"); n != 2 {
			t.Errorf("%d requests in 65 s", n)
		}
		stop(w)
		if w.counts() != "map[metrics dropped:1 metrics failed:1 metrics sent:2]" {
			t.Error(w.counts())
		}
		c, h := w.stub.Metric("c_total").GetSum().GetDataPoints()[0], w.stub.Metric("h").GetHistogram().GetDataPoints()[0]
		if c.GetAsDouble() != 7 || c.GetAttributes()[0].GetValue().GetStringValue() != "main" || c.GetStartTimeUnixNano() == 0 {
			t.Errorf("counter %v", c)
		}
		if fmt.Sprint(h.GetBucketCounts(), h.GetExplicitBounds(), h.GetSum()) != "[2 3 1] [1 5] 9" {
			t.Errorf("histogram %v", h)
		}
		if w.stub.Metric("g").GetGauge().GetDataPoints()[0].GetAsDouble() != 3 || w.stub.Metric("s").GetSummary() == nil {
			t.Error("gauge or summary")
		}
	}, func(c *Config) { c.Gather = func() ([]*dto.MetricFamily, error) { return families, nil } })
}
