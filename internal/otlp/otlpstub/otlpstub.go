// Package otlpstub is a strict OTLP/HTTP collector for tests: it takes what the
// protocol allows and complains about anything else.
package otlpstub

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlpmetrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	otlptrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds a request, in bytes.
const maxBody = 8 << 20

// Answer is how a request is answered instead of with 200.
type Answer struct {
	Status     int
	RetryAfter int   // seconds
	Rejected   int64 // with status 200: a partial success
	Location   string
}

// Stub is the collector. The zero value is ready.
type Stub struct {
	// Header, when set, is what every request must carry.
	Header [2]string

	mu         sync.Mutex
	answers    map[string][]Answer // by path
	requests   map[string]int
	spans      []*otlptrace.Span
	metrics    map[string]*otlpmetrics.Metric // the last of each name
	resource   map[string]string
	raw        []byte // everything that came
	violations []string
}

// Next queues answers for requests to a path.
func (s *Stub) Next(path string, answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil {
		s.answers = map[string][]Answer{}
	}
	s.answers[path] = append(s.answers[path], answers...)
}

// ServeHTTP implements http.Handler.
func (s *Stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == nil {
		s.requests, s.metrics, s.resource = map[string]int{}, map[string]*otlpmetrics.Metric{}, map[string]string{}
	}
	s.requests[r.URL.Path]++
	s.raw = append(s.raw, body...)
	if err != nil || len(body) > maxBody {
		s.complain("body of %d bytes: %v", len(body), err)
	}
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
		s.complain("%s with %q", r.Method, r.Header.Get("Content-Type"))
	}
	if s.Header[0] != "" && r.Header.Get(s.Header[0]) != s.Header[1] {
		s.complain("without the header %s", s.Header[0])
	}
	var answer Answer
	if list := s.answers[r.URL.Path]; len(list) > 0 {
		answer, s.answers[r.URL.Path] = list[0], list[1:]
	}
	var out proto.Message
	switch r.URL.Path {
	case "/v1/traces":
		out = &collectortrace.ExportTraceServiceResponse{PartialSuccess: &collectortrace.ExportTracePartialSuccess{RejectedSpans: answer.Rejected}}
		s.traces(body, answer)
	case "/v1/metrics":
		out = &collectormetrics.ExportMetricsServiceResponse{PartialSuccess: &collectormetrics.ExportMetricsPartialSuccess{RejectedDataPoints: answer.Rejected}}
		s.metered(body, answer)
	default:
		s.complain("request to %s", r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if answer.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(answer.RetryAfter))
	}
	if answer.Location != "" {
		w.Header().Set("Location", answer.Location)
	}
	if answer.Status != 0 && answer.Status != http.StatusOK {
		w.WriteHeader(answer.Status)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	b, err := proto.Marshal(out)
	if err != nil {
		s.complain("answer: %v", err)
	}
	_, _ = w.Write(b) // a client that is gone is no concern of ours
}

func (s *Stub) complain(format string, args ...any) {
	s.violations = append(s.violations, fmt.Sprintf(format, args...))
}

func (s *Stub) decode(body []byte, to proto.Message) bool {
	if err := (proto.UnmarshalOptions{}).Unmarshal(body, to); err != nil {
		s.complain("decode: %v", err)
		return false
	}
	if len(to.ProtoReflect().GetUnknown()) > 0 {
		s.complain("unknown fields")
	}
	return true
}

func (s *Stub) traces(body []byte, answer Answer) {
	var req collectortrace.ExportTraceServiceRequest
	if !s.decode(body, &req) {
		return
	}
	for _, rs := range req.GetResourceSpans() {
		s.from(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			if ss.GetScope().GetName() == "" {
				s.complain("spans of no scope")
			}
			for _, span := range ss.GetSpans() {
				s.span(span)
				if answer.Status == 0 && answer.Rejected == 0 {
					s.spans = append(s.spans, span)
				}
			}
		}
	}
}

func (s *Stub) span(span *otlptrace.Span) {
	if len(span.GetTraceId()) != 16 || len(span.GetSpanId()) != 8 || len(span.GetParentSpanId()) != 0 && len(span.GetParentSpanId()) != 8 ||
		slices.Max(span.GetTraceId()) == 0 || slices.Max(span.GetSpanId()) == 0 {
		s.complain("span %q: ids", span.GetName())
	}
	if span.GetName() == "" || span.GetKind() == otlptrace.Span_SPAN_KIND_UNSPECIFIED {
		s.complain("span without name or kind")
	}
	if span.GetStartTimeUnixNano() == 0 || span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() {
		s.complain("span %q: %d to %d", span.GetName(), span.GetStartTimeUnixNano(), span.GetEndTimeUnixNano())
	}
	s.attributes("span "+span.GetName(), span.GetAttributes())
	for _, e := range span.GetEvents() {
		if e.GetName() == "" || e.GetTimeUnixNano() < span.GetStartTimeUnixNano() || e.GetTimeUnixNano() > span.GetEndTimeUnixNano() {
			s.complain("span %q: event %q is not within it", span.GetName(), e.GetName())
		}
		s.attributes("event "+e.GetName(), e.GetAttributes())
	}
}

func (s *Stub) attributes(where string, list []*common.KeyValue) {
	seen := map[string]bool{}
	for _, a := range list {
		if a.GetKey() == "" || seen[a.GetKey()] || a.GetValue().GetValue() == nil {
			s.complain("%s: attribute %q is empty or twice", where, a.GetKey())
		}
		seen[a.GetKey()] = true
		if !utf8.ValidString(a.GetValue().GetStringValue()) {
			s.complain("%s: %s is no UTF-8", where, a.GetKey())
		}
	}
}

func (s *Stub) from(list []*common.KeyValue) {
	s.attributes("resource", list)
	for _, a := range list {
		s.resource[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if s.resource["service.name"] == "" {
		s.complain("of no service")
	}
}

func (s *Stub) metered(body []byte, answer Answer) {
	var req collectormetrics.ExportMetricsServiceRequest
	if !s.decode(body, &req) {
		return
	}
	for _, rm := range req.GetResourceMetrics() {
		s.from(rm.GetResource().GetAttributes())
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				s.metric(m)
				if answer.Status == 0 {
					s.metrics[m.GetName()] = m
				}
			}
		}
	}
}

func (s *Stub) metric(m *otlpmetrics.Metric) {
	if m.GetName() == "" || m.GetData() == nil {
		s.complain("metric %q without data", m.GetName())
	}
	cumulative := otlpmetrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	if sum := m.GetSum(); sum != nil && (sum.GetAggregationTemporality() != cumulative || !sum.GetIsMonotonic()) {
		s.complain("sum %s", m.GetName())
	}
	for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
		s.attributes(m.GetName(), p.GetAttributes())
		if p.GetTimeUnixNano() == 0 {
			s.complain("%s: a point without a time", m.GetName())
		}
	}
	for _, p := range m.GetHistogram().GetDataPoints() {
		s.attributes(m.GetName(), p.GetAttributes())
		total := uint64(0)
		for _, n := range p.GetBucketCounts() {
			total += n
		}
		if len(p.GetBucketCounts()) != len(p.GetExplicitBounds())+1 || total != p.GetCount() || !slices.IsSorted(p.GetExplicitBounds()) {
			s.complain("histogram %s: %d buckets, %d bounds, %d of %d", m.GetName(), len(p.GetBucketCounts()), len(p.GetExplicitBounds()), total, p.GetCount())
		}
	}
}

// Spans gives what was taken so far.
func (s *Stub) Spans() []*otlptrace.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spans)
}

// Metric gives the last of a name, or nil.
func (s *Stub) Metric(name string) *otlpmetrics.Metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metrics[name]
}

// Requests counts the requests to a path.
func (s *Stub) Requests(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[path]
}

// Raw gives every byte that came.
func (s *Stub) Raw() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.raw)
}

// Violations lists what the protocol does not allow.
func (s *Stub) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}
