// Package otlp sends traces of runs, and the metrics, to an OpenTelemetry
// collector over OTLP/HTTP.
//
// The trace of a run is made when the run has ended, from the run's events as
// the log has them: so it is one trace over restarts, and sending it twice
// sends the same ids. Nothing waits for a collector: what has no place in a
// bounded queue is dropped and counted, and a commit is never held up.
//
// The messages are OpenTelemetry's own; what sends them is ours, because the
// exporters of its SDK bring gRPC along and cannot give a span an id.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/span"
)

const (
	maxQueue  = 1024    // ended runs that wait to be read
	maxSpans  = 1024    // of one request, save those of one run
	maxEvents = 100_000 // that are read for one run; its stream holds other runs too
	readPage  = 512
)

// Log is what is read of the log.
type Log interface {
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error)
}

// Config says where to, what, and what of it. Zero members take the defaults.
type Config struct {
	Endpoint string // base URL: /v1/traces and /v1/metrics are added
	// Headers gives the headers of a request, at each request. Its values are secrets.
	Headers  func() (map[string]string, error)
	Sample   float64       // share of runs whose traces are sent
	Interval time.Duration // between two sendings of metrics; default 30 s
	Log      Log
	Gather   func() ([]*dto.MetricFamily, error) // nil: no metrics are sent
	Version  string
	Instance string // names this process life
	// HTTP goes to the collector and nowhere else: by no proxy and after no
	// redirect, which would carry the headers along. Its connections are guarded.
	HTTP   *http.Client
	Logger *slog.Logger // default: none
	// Exported and Dropped count: signal is traces or metrics, outcome sent,
	// refused or failed.
	Exported func(signal, outcome string)
	Dropped  func(signal string, n int)
}

// Signals.
const (
	traces  = "traces"
	metrics = "metrics"
)

// Exporter sends until it is stopped. Start it once.
type Exporter struct {
	cfg       Config
	http      *http.Client
	queue     chan ended
	began     time.Time
	stopping  chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	stopOnce  sync.Once
	complains complaint
}

// ended is a run that came to its end.
type ended struct {
	stream event.Stream
	run    event.RunID
	seq    int64 // of its last event
}

// New makes an exporter. A Config that cannot work is an error.
func New(cfg Config) (*Exporter, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" {
		return nil, errors.New("otlp: the endpoint is no absolute URL")
	}
	if cfg.Log == nil {
		return nil, errors.New("otlp: no log given")
	}
	cfg.Endpoint = strings.TrimSuffix(cfg.Endpoint, "/")
	if cfg.Interval == 0 {
		cfg.Interval = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Headers == nil {
		cfg.Headers = func() (map[string]string, error) { return nil, nil }
	}
	if cfg.Exported == nil {
		cfg.Exported = func(string, string) {}
	}
	if cfg.Dropped == nil {
		cfg.Dropped = func(string, int) {}
	}
	own := *cfg.HTTP
	own.Timeout = postTimeout
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	x := &Exporter{cfg: cfg, http: &own, queue: make(chan ended, maxQueue), began: time.Now(), stopping: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	return x, nil
}

// Committed looks for runs that ended. It is called by the log's writer and
// never blocks: a run that finds no place is dropped and counted.
func (x *Exporter) Committed(stamps []eventlog.Stamp) {
	for i := range stamps {
		for j := range stamps[i].Events {
			e := &stamps[i].Events[j]
			switch e.Type {
			case event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted:
			default:
				continue
			}
			if !span.TraceOf(e.RunID).Sampled(x.cfg.Sample) {
				continue
			}
			select {
			case x.queue <- ended{e.Stream, e.RunID, e.Seq}:
			default:
				x.drop(traces, 1, errors.New("more runs end than the collector takes"))
			}
		}
	}
}

// Start begins to send.
func (x *Exporter) Start() {
	x.running.Go(x.sendTraces)
	if x.cfg.Gather != nil {
		x.running.Go(x.sendMetrics)
	}
}

// Stop sends what waits, and the metrics once more, until ctx ends; then it
// drops the rest.
func (x *Exporter) Stop(ctx context.Context) {
	x.stopOnce.Do(func() { close(x.stopping) })
	done := make(chan struct{})
	go func() { x.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		x.cancel()
		<-done
	}
	x.cancel()
	x.http.CloseIdleConnections()
}

// sendTraces takes what ended, and puts into one request what waits meanwhile.
func (x *Exporter) sendTraces() {
	for {
		select {
		case next := <-x.queue:
			x.sendBatch(next)
		case <-x.stopping:
			select { // what waits still goes
			case next := <-x.queue:
				x.sendBatch(next)
			default:
				return
			}
		}
	}
}

func (x *Exporter) sendBatch(next ended) {
	var batch []span.Trace
	spans := 0
	for {
		if t, err := x.read(next); err != nil {
			x.drop(traces, 1, err)
		} else if len(t.Spans) > 0 {
			batch, spans = append(batch, t), spans+len(t.Spans)
		}
		if spans >= maxSpans {
			break
		}
		select {
		case next = <-x.queue:
			continue
		default:
		}
		break
	}
	if len(batch) == 0 {
		return
	}
	if err := x.post(traces, traceRequest(batch, x.resource()), true); err != nil {
		x.drop(traces, len(batch), err)
	}
}

// read folds a run's events as the log has them.
func (x *Exporter) read(r ended) (span.Trace, error) {
	row, err := x.cfg.Log.Run(x.ctx, r.run)
	if errors.Is(err, eventlog.ErrNotFound) {
		return span.Trace{}, nil // erased since
	}
	if err != nil {
		return span.Trace{}, err
	}
	f := span.New(r.run)
	for after, n := row.CreatedSeq-1, 0; after < r.seq; {
		events, err := x.cfg.Log.ReadBounded(x.ctx, r.stream, after, readPage)
		if err != nil {
			return span.Trace{}, err
		}
		if len(events) == 0 {
			break
		}
		for i := range events {
			e := &events[i]
			after = e.Seq
			if e.RunID != r.run {
				continue
			}
			if err := e.Decode(); err != nil {
				return span.Trace{}, err
			}
			f.Add(e)
		}
		if n += len(events); n > maxEvents {
			return span.Trace{}, fmt.Errorf("%s spans more than %d events of its stream", r.run, maxEvents)
		}
	}
	return f.Trace(), nil
}

// sendMetrics sends all metrics again and again: their values are cumulative,
// so that one sending that fails loses nothing.
func (x *Exporter) sendMetrics() {
	tick := time.NewTicker(x.cfg.Interval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-x.stopping:
			last = true
		}
		families, err := x.cfg.Gather()
		if err == nil {
			err = x.post(metrics, metricRequest(families, x.resource(), x.began, time.Now()), false)
		}
		if err != nil {
			x.drop(metrics, 1, err)
		}
	}
}

// complaint lets one line through a minute.
type complaint struct {
	mu      sync.Mutex
	last    time.Time
	dropped int // since then
}

const complainEvery = time.Minute

// drop counts what is lost, and says so once a minute at most.
func (x *Exporter) drop(signal string, n int, err error) {
	x.cfg.Dropped(signal, n)
	c := &x.complains
	c.mu.Lock()
	c.dropped += n
	now := time.Now()
	if !c.last.IsZero() && now.Sub(c.last) < complainEvery {
		c.mu.Unlock()
		return
	}
	lost := c.dropped
	c.last, c.dropped = now, 0
	c.mu.Unlock()
	x.cfg.Logger.Warn("telemetry is dropped", "signal", signal, "dropped", lost, "err", err)
}
