// Package outbox holds the rules of deliveries, as pure functions: the rows
// that follow from the events of a target's stream, what becomes of an attempt,
// when the next one is due, when a receiver is left alone, and the bytes that it
// is sent.
package outbox

import (
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
	target, _ := e.Stream.Target()
	at := event.FormatTime(e.Time)
	if e.Seq == 1 { // whatever a stream begins with: its target has a row from then on
		kind := ""
		if d, ok := e.Data.(*event.DeliveryEnqueued); ok {
			kind = d.Type
		}
		out = append(out, derived.Change{Table: derived.Targets, Op: derived.Insert, Key: targetKey(target), Cols: []derived.Col{
			str("user_id", e.UserID), str("type", kind), str("created_at", at), str("updated_at", at)}})
	}
	return appendTarget(appendDelivery(out, e, target, at), e, target, at)
}

// appendDelivery tells what follows for the delivery, and for its attempts.
func appendDelivery(out []derived.Change, e *event.Event, target event.TargetID, at string) []derived.Change {
	set := func(id event.DeliveryID, cols ...derived.Col) {
		out = append(out, derived.Change{Table: derived.Outbox, Op: derived.Set, Key: keyOf(target, id), Cols: append(cols, str("updated_at", at))})
	}
	switch d := e.Data.(type) {
	case *event.DeliveryEnqueued:
		out = append(out, derived.Change{Table: derived.Outbox, Op: derived.Insert, Key: keyOf(target, d.DeliveryID), Cols: []derived.Col{
			num("lane_seq", e.Seq), str("session_id", string(e.SessionID)), str("run_id", string(e.RunID)), str("user_id", e.UserID),
			str("type", d.Type), str("status", Pending), str("body", d.Body), str("address", d.Address),
			str("created_at", at), str("updated_at", at), str("next_at", at), str("cycle_at", at),
		}})
	case *event.DeliveryAttemptStarted:
		cols := []derived.Col{num("n_attempts", int64(d.Attempt)), num("n_cycle", int64(d.Cycle)), num("n_open", int64(d.Attempt)), num("n_open_epoch", e.Epoch)}
		if b := d.Earlier; b != nil {
			cols = append(cols, num("n_delivered", 0))
			out = append(out, derived.Change{Table: derived.Attempts, Op: derived.Insert, Key: attemptKey(target, d.DeliveryID, b.Attempt), Cols: []derived.Col{
				str("ended_at", b.EndedAt), num("n_status", int64(b.Status)), num("n_duration_ms", b.DurationMS)}})
		}
		set(d.DeliveryID, cols...)
	case *event.DeliveryDelivered:
		set(d.DeliveryID, str("status", Delivered), str("next_at", ""), num("n_open", 0), num("n_open_epoch", 0), str("last_code", ""), str("last_class", ""),
			num("n_last_status", int64(d.Status)), num("n_last_ms", d.DurationMS), str("last_at", at), num("n_delivered", int64(d.Attempt)))
	case *event.DeliveryAttemptFailed:
		class := classOf(d.Class, d.Code, d.Status)
		out = append(out, derived.Change{Table: derived.Attempts, Op: derived.Insert, Key: attemptKey(target, d.DeliveryID, d.Attempt), Cols: []derived.Col{
			str("ended_at", at), str("code", d.Code), str("class", class), num("n_status", int64(d.Status)), num("n_duration_ms", d.DurationMS),
			str("excerpt", d.Excerpt), str("retry_at", d.RetryAt)}})
		set(d.DeliveryID, str("next_at", d.RetryAt), num("n_open", 0), num("n_open_epoch", 0), str("last_code", d.Code), str("last_class", class),
			num("n_last_status", int64(d.Status)), num("n_last_ms", d.DurationMS), str("last_at", at), num("n_delivered", 0))
	case *event.DeliveryDeadLettered:
		set(d.DeliveryID, str("status", DeadLettered), str("next_at", ""), num("n_open", 0), num("n_open_epoch", 0),
			str("last_code", d.Code), str("last_class", classOf(d.Class, d.Code, 0)))
	default:
		out = letterRows(out, e)
	}
	return out
}

// appendTarget tells what follows for the receiver: nothing, as long as all is well.
func appendTarget(out []derived.Change, e *event.Event, target event.TargetID, at string) []derived.Change {
	set := func(cols ...derived.Col) {
		out = append(out, derived.Change{Table: derived.Targets, Op: derived.Set, Key: targetKey(target), Cols: append(cols, str("updated_at", at))})
	}
	switch d := e.Data.(type) {
	case *event.DeliveryDelivered:
		if d.Failures > 0 {
			set(num("n_failures", 0))
		}
	case *event.DeliveryAttemptFailed:
		cols := []derived.Col{str("last_code", d.Code), str("last_class", classOf(d.Class, d.Code, d.Status)), str("failed_at", at)}
		if d.Failures != nil {
			cols = append(cols, num("n_failures", int64(*d.Failures)))
		}
		if d.HoldUntil != "" {
			cols = append(cols, str("held_until", d.HoldUntil))
		}
		set(cols...)
	case *event.TargetCircuitOpened:
		set(str("circuit", Open), num("n_failures", int64(d.Failures)), num("n_opens", int64(d.Opens)), str("open_until", d.Until))
	case *event.TargetCircuitHalfOpened:
		set(str("circuit", HalfOpen))
	case *event.TargetCircuitClosed:
		cols := []derived.Col{str("circuit", Closed), num("n_failures", 0), num("n_opens", 0), str("open_until", "")}
		if d.Actor != "" {
			cols = append(cols, str("held_until", ""), str("reset_at", at))
		}
		set(cols...)
	case *event.TargetPaused:
		set(num("n_paused", 1), str("paused_at", at), str("paused_by", d.Actor), str("paused_code", d.Code), str("pause_reason", d.Reason))
	case *event.TargetResumed:
		set(num("n_paused", 0), str("paused_at", ""), str("paused_by", ""), str("paused_code", ""), str("pause_reason", ""), str("resumed_at", at))
	}
	return out
}

func targetKey(t event.TargetID) []derived.Col {
	return []derived.Col{str("target_id", string(t))}
}

func keyOf(t event.TargetID, id event.DeliveryID) []derived.Col {
	return []derived.Col{str("target_id", string(t)), str("delivery_id", string(id))}
}

func attemptKey(t event.TargetID, id event.DeliveryID, attempt int) []derived.Col {
	return append(keyOf(t, id), num("n_attempt", int64(attempt)))
}

func str(name, value string) derived.Col       { return derived.Col{Name: name, Value: value} }
func num(name string, value int64) derived.Col { return derived.Col{Name: name, Value: value} }

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
