// Package outbox holds the rules of deliveries, as pure functions: the rows
// that follow from the events of a target's stream, when the next attempt is
// due, and the bytes that a receiver is sent.
package outbox

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// Delivery status.
const (
	Pending      = "pending"
	Delivered    = "delivered"
	DeadLettered = "dead_lettered"
	Resolved     = "resolved"
)

// Rows says which derived rows follow from events of a target's stream (I-03).
func Rows(events []event.Event) []derived.Change {
	var out []derived.Change
	for i := range events {
		if events[i].Data != nil {
			out = appendRows(out, &events[i])
		}
	}
	return derived.Merge(out)
}

func appendRows(out []derived.Change, e *event.Event) []derived.Change {
	at := event.FormatTime(e.Time)
	target, _ := e.Stream.Target()
	set := func(id event.DeliveryID, cols ...derived.Col) {
		out = append(out, derived.Change{Table: derived.Outbox, Op: derived.Set, Key: keyOf(target, id), Cols: append(cols, str("updated_at", at))})
	}
	switch d := e.Data.(type) {
	case *event.DeliveryEnqueued:
		out = append(out, derived.Change{Table: derived.Outbox, Op: derived.Insert, Key: keyOf(target, d.DeliveryID), Cols: []derived.Col{
			num("lane_seq", e.Seq), str("session_id", string(e.SessionID)), str("run_id", string(e.RunID)), str("user_id", e.UserID),
			str("type", d.Type), str("status", Pending), str("body", d.Body), str("address", d.Address),
			str("created_at", at), str("updated_at", at), str("next_at", at),
		}})
	case *event.DeliveryAttemptStarted:
		set(d.DeliveryID, num("n_attempts", int64(d.Attempt)), num("n_cycle", int64(d.Cycle)), num("n_open", int64(d.Attempt)), num("n_open_epoch", e.Epoch))
	case *event.DeliveryDelivered:
		set(d.DeliveryID, str("status", Delivered), str("next_at", ""), num("n_open", 0), num("n_open_epoch", 0), str("last_code", ""), num("n_last_status", int64(d.Status)))
	case *event.DeliveryAttemptFailed:
		set(d.DeliveryID, str("next_at", d.RetryAt), num("n_open", 0), num("n_open_epoch", 0), str("last_code", d.Code), num("n_last_status", int64(d.Status)))
	case *event.DeliveryDeadLettered:
		set(d.DeliveryID, str("status", DeadLettered), str("next_at", ""), num("n_open", 0), num("n_open_epoch", 0), str("last_code", d.Code))
	case *event.DeliveryResolved:
		set(d.DeliveryID, str("status", Resolved), str("next_at", ""))
	case *event.DeliveryReplayed:
		// A replay joins the tail of its lane (I-25).
		set(d.DeliveryID, str("status", Pending), num("lane_seq", e.Seq), num("n_cycle", 0), str("next_at", at))
	}
	return out
}

func keyOf(t event.TargetID, id event.DeliveryID) []derived.Col {
	return []derived.Col{str("target_id", string(t)), str("delivery_id", string(id))}
}

func str(name, value string) derived.Col       { return derived.Col{Name: name, Value: value} }
func num(name string, value int64) derived.Col { return derived.Col{Name: name, Value: value} }

// Schedule bounds the attempts of one delivery. Zero fields take the defaults.
type Schedule struct {
	MaxAttempts    int // of one cycle; a replay begins another
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	MaxAge         time.Duration // of the cycle: enqueued or replayed until given up
}

// WithDefaults fills what is zero.
func (s Schedule) WithDefaults() Schedule {
	if s.MaxAttempts == 0 {
		s.MaxAttempts = 12
	}
	if s.InitialBackoff == 0 {
		s.InitialBackoff = 5 * time.Second
	}
	if s.MaxBackoff == 0 {
		s.MaxBackoff = 6 * time.Hour
	}
	if s.MaxAge == 0 {
		s.MaxAge = 72 * time.Hour
	}
	return s
}

// Next says when an attempt that failed is followed by another: exponential
// from InitialBackoff with jitter in [0,1) upwards, never below what the
// receiver asked for. The zero time: no further attempt. cycle counts the
// attempts since the delivery was enqueued or replayed, which was at began.
func (s Schedule) Next(cycle int, began, now time.Time, retryAfter time.Duration, permanent bool, jitter float64) time.Time {
	s = s.WithDefaults()
	if permanent || cycle >= s.MaxAttempts {
		return time.Time{}
	}
	d := s.InitialBackoff
	for i := 1; i < cycle && d < s.MaxBackoff; i++ {
		d *= 2
	}
	d = min(d, s.MaxBackoff)
	d += time.Duration(float64(d) * jitter / 4)
	at := now.Add(max(min(d, s.MaxBackoff), retryAfter))
	if at.Sub(began) > s.MaxAge {
		return time.Time{}
	}
	return at
}

// Message is what a receiver is told of an output.
type Message struct {
	DeliveryID event.DeliveryID
	SessionID  event.SessionID
	ThreadID   string
	RunID      event.RunID
	OutputKind string
	Text       string          // canonical JSON of a structured output
	Structured canonjson.Value // nil for a text
	Hops       int             // of the run; see event.RunCreated
}

// Body is the canonical JSON that every attempt sends (RFC 8785), so that the
// bytes and their signature never change (I-26).
func (m Message) Body() []byte {
	b := append([]byte(nil), `{"content":`...)
	b = canonjson.AppendString(b, m.Text)
	b = append(b, `,"delivery_id":`...)
	b = canonjson.AppendString(b, string(m.DeliveryID))
	b = append(b, `,"metadata":{"output_kind":`...)
	b = canonjson.AppendString(b, m.OutputKind)
	if m.Structured != nil {
		b = append(b, `,"structured_output":`...)
		b = append(b, m.Structured...)
	}
	b = append(b, `},"parts":[{"text":`...)
	b = canonjson.AppendString(b, m.Text)
	b = append(b, `,"type":"text"}],"run_id":`...)
	b = canonjson.AppendString(b, string(m.RunID))
	b = append(b, `,"session_id":`...)
	b = canonjson.AppendString(b, string(m.SessionID))
	if m.ThreadID != "" {
		b = append(b, `,"thread_id":`...)
		b = canonjson.AppendString(b, m.ThreadID)
	}
	return append(b, '}')
}
