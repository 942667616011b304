package otlp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	attempts    = 4 // of one request
	firstWait   = time.Second
	maxWait     = 30 * time.Second
	postTimeout = 10 * time.Second
	maxAnswer   = 64 << 10 // bytes of an answer that are read
	protobuf    = "application/x-protobuf"
)

// refusal is an answer that no retry makes better.
type refusal struct{ text string }

func (r *refusal) Error() string { return "the collector " + r.text }

// busy is an answer that asks for a later try.
type busy struct {
	status int
	after  time.Duration
}

func (b *busy) Error() string { return "the collector answers " + strconv.Itoa(b.status) }

// post sends a message; with retry it tries again after what may pass, as
// OTLP has it (429, 502, 503, 504, and no answer). The error never holds what the
// collector said.
func (x *Exporter) post(signal string, m proto.Message, retry bool) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	wait := firstWait
	for n := 1; ; n++ {
		err := x.once(signal, body)
		var no *refusal
		switch {
		case err == nil:
			x.cfg.Exported(signal, "sent")
			return nil
		case errors.As(err, &no):
			x.cfg.Exported(signal, "refused")
			return err
		}
		x.cfg.Exported(signal, "failed")
		if !retry || n == attempts {
			return err
		}
		pause := wait
		if b := (*busy)(nil); errors.As(err, &b) {
			pause = max(pause, b.after)
		}
		t := time.NewTimer(min(pause, maxWait))
		select {
		case <-t.C:
		case <-x.ctx.Done():
			t.Stop()
			return err
		case <-x.stopping: // once more, now; then it is given up
			t.Stop()
			n = max(n, attempts-1)
		}
		wait *= 2
	}
}

// once is one request.
func (x *Exporter) once(signal string, body []byte) error {
	req, err := http.NewRequestWithContext(x.ctx, http.MethodPost, x.cfg.Endpoint+"/v1/"+signal, bytes.NewReader(body))
	if err != nil {
		return &refusal{"has no address that can be asked"}
	}
	headers, err := x.cfg.Headers()
	if err != nil {
		return err
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", protobuf)
	req.Header.Set("User-Agent", "holdfast/"+x.cfg.Version)
	res, err := x.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch res.StatusCode {
	case http.StatusOK:
		if err != nil {
			return err
		}
		return partial(signal, answer)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return &busy{res.StatusCode, time.Duration(max(0, min(seconds, int(maxWait.Seconds())))) * time.Second}
	}
	return &refusal{"answers " + strconv.Itoa(res.StatusCode)}
}

// partial says whether the collector took all of it. An answer that cannot be
// read was a good one all the same.
func partial(signal string, answer []byte) error {
	rejected := int64(0)
	if signal == traces {
		var r collectortrace.ExportTraceServiceResponse
		if proto.Unmarshal(answer, &r) == nil {
			rejected = r.GetPartialSuccess().GetRejectedSpans()
		}
	} else {
		var r collectormetrics.ExportMetricsServiceResponse
		if proto.Unmarshal(answer, &r) == nil {
			rejected = r.GetPartialSuccess().GetRejectedDataPoints()
		}
	}
	if rejected > 0 {
		return &refusal{"rejects " + strconv.FormatInt(rejected, 10) + " of a request"}
	}
	return nil
}
