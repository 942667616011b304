package otlp

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlpmetrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	otlptrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/holdfast-dev/holdfast/internal/span"
)

const scopeName = "github.com/holdfast-dev/holdfast"

func (x *Exporter) resource() *resource.Resource {
	return &resource.Resource{Attributes: keyValues([]span.Attr{
		{Key: "service.name", Value: "holdfast"}, {Key: "service.version", Value: x.cfg.Version}, {Key: "service.instance.id", Value: x.cfg.Instance},
	})}
}

// traceRequest puts traces into one request.
func traceRequest(batch []span.Trace, from *resource.Resource) *collectortrace.ExportTraceServiceRequest {
	out := &otlptrace.ScopeSpans{Scope: &common.InstrumentationScope{Name: scopeName}}
	for i := range batch {
		t := &batch[i]
		for j := range t.Spans {
			s := spanOf(t, &t.Spans[j])
			if j == 0 && t.Dropped > 0 {
				s.Attributes = append(s.Attributes, keyValues([]span.Attr{{Key: "holdfast.spans_dropped", Value: int64(t.Dropped)}})...)
			}
			out.Spans = append(out.Spans, s)
		}
	}
	return &collectortrace.ExportTraceServiceRequest{ResourceSpans: []*otlptrace.ResourceSpans{{Resource: from, ScopeSpans: []*otlptrace.ScopeSpans{out}}}}
}

func spanOf(t *span.Trace, s *span.Span) *otlptrace.Span {
	out := &otlptrace.Span{
		TraceId: t.ID[:], SpanId: s.ID[:], Name: s.Name, Kind: otlptrace.Span_SPAN_KIND_INTERNAL, Flags: 1, // sampled
		StartTimeUnixNano: nanos(s.Start), EndTimeUnixNano: nanos(s.End), Attributes: keyValues(s.Attrs),
	}
	if s.Parent != (span.ID{}) {
		out.ParentSpanId = s.Parent[:]
	}
	if s.Kind == span.Client {
		out.Kind = otlptrace.Span_SPAN_KIND_CLIENT
	}
	if s.Error != "" {
		out.Status = &otlptrace.Status{Code: otlptrace.Status_STATUS_CODE_ERROR}
	}
	for _, m := range s.Marks {
		out.Events = append(out.Events, &otlptrace.Span_Event{Name: m.Name, TimeUnixNano: nanos(m.Time), Attributes: keyValues(m.Attrs)})
	}
	return out
}

func nanos(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

func keyValues(attrs []span.Attr) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(attrs))
	for _, a := range attrs {
		out = append(out, &common.KeyValue{Key: a.Key, Value: anyValue(a.Value)})
	}
	return out
}

func anyValue(v any) *common.AnyValue {
	switch v := v.(type) {
	case string:
		return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v}}
	case int64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v}}
	case float64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v}}
	case bool:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}
	case []string:
		list := &common.ArrayValue{}
		for _, s := range v {
			list.Values = append(list.Values, anyValue(s))
		}
		return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: list}}
	}
	panic("otlp: an attribute of a type that spans do not have")
}

// metricRequest puts families into one request. Sums and histograms are
// cumulative since the process began.
func metricRequest(families []*dto.MetricFamily, from *resource.Resource, began, now time.Time) *collectormetrics.ExportMetricsServiceRequest {
	out := &otlpmetrics.ScopeMetrics{Scope: &common.InstrumentationScope{Name: scopeName}}
	for _, f := range families {
		out.Metrics = append(out.Metrics, metricOf(f, nanos(began), nanos(now)))
	}
	return &collectormetrics.ExportMetricsServiceRequest{ResourceMetrics: []*otlpmetrics.ResourceMetrics{{Resource: from, ScopeMetrics: []*otlpmetrics.ScopeMetrics{out}}}}
}

const cumulative = otlpmetrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE

func metricOf(f *dto.MetricFamily, began, now uint64) *otlpmetrics.Metric {
	out := &otlpmetrics.Metric{Name: f.GetName(), Description: f.GetHelp()}
	var numbers []*otlpmetrics.NumberDataPoint
	var histograms []*otlpmetrics.HistogramDataPoint
	var summaries []*otlpmetrics.SummaryDataPoint
	number := func(labels []*common.KeyValue, start uint64, v float64) {
		numbers = append(numbers, &otlpmetrics.NumberDataPoint{Attributes: labels, StartTimeUnixNano: start, TimeUnixNano: now,
			Value: &otlpmetrics.NumberDataPoint_AsDouble{AsDouble: v}})
	}
	for _, m := range f.GetMetric() {
		labels := labelsOf(m)
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			number(labels, began, m.GetCounter().GetValue())
		case dto.MetricType_HISTOGRAM:
			histograms = append(histograms, histogramOf(m.GetHistogram(), labels, began, now))
		case dto.MetricType_SUMMARY:
			s := &otlpmetrics.SummaryDataPoint{Attributes: labels, StartTimeUnixNano: began, TimeUnixNano: now,
				Count: m.GetSummary().GetSampleCount(), Sum: m.GetSummary().GetSampleSum()}
			for _, q := range m.GetSummary().GetQuantile() {
				s.QuantileValues = append(s.QuantileValues, &otlpmetrics.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
			}
			summaries = append(summaries, s)
		default:
			number(labels, 0, m.GetGauge().GetValue())
		}
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		out.Data = &otlpmetrics.Metric_Sum{Sum: &otlpmetrics.Sum{DataPoints: numbers, AggregationTemporality: cumulative, IsMonotonic: true}}
	case dto.MetricType_HISTOGRAM:
		out.Data = &otlpmetrics.Metric_Histogram{Histogram: &otlpmetrics.Histogram{DataPoints: histograms, AggregationTemporality: cumulative}}
	case dto.MetricType_SUMMARY:
		out.Data = &otlpmetrics.Metric_Summary{Summary: &otlpmetrics.Summary{DataPoints: summaries}}
	default:
		out.Data = &otlpmetrics.Metric_Gauge{Gauge: &otlpmetrics.Gauge{DataPoints: numbers}}
	}
	return out
}

// histogramOf takes the cumulative buckets apart: OTLP counts each alone, and
// the last one, which has no bound, too.
func histogramOf(h *dto.Histogram, labels []*common.KeyValue, began, now uint64) *otlpmetrics.HistogramDataPoint {
	sum := h.GetSampleSum()
	out := &otlpmetrics.HistogramDataPoint{Attributes: labels, StartTimeUnixNano: began, TimeUnixNano: now, Count: h.GetSampleCount(), Sum: &sum}
	before := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue
		}
		out.ExplicitBounds = append(out.ExplicitBounds, b.GetUpperBound())
		out.BucketCounts = append(out.BucketCounts, b.GetCumulativeCount()-before)
		before = b.GetCumulativeCount()
	}
	out.BucketCounts = append(out.BucketCounts, h.GetSampleCount()-before)
	return out
}

func labelsOf(m *dto.Metric) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		out = append(out, &common.KeyValue{Key: l.GetName(), Value: anyValue(l.GetValue())})
	}
	return out
}
