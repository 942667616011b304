package storetest

import (
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// kindPanic is the kind of a run whose derived rows cannot be computed.
const kindPanic = "panic"

// Rows is a function for derived rows that touches every table with every
// operation. It is the suite's own, so that the suite does not move with the rules.
func Rows(stream event.Stream, events []event.Event) []derived.Change {
	var out []derived.Change
	for i := range events {
		out = append(out, rowsOf(&events[i])...)
	}
	return out
}

func rowsOf(e *event.Event) []derived.Change {
	session := []derived.Col{{Name: "session_id", Value: string(e.SessionID)}}
	run := append(session[:1:1], derived.Col{Name: "run_id", Value: string(e.RunID)})
	now := event.FormatTime(e.Time)
	switch d := e.Data.(type) {
	case *event.SessionCreated:
		out := []derived.Change{change(derived.Sessions, derived.Insert, session, "user_id", e.UserID, "alias", d.Alias,
			"status", "open", "title", d.Settings.Title, "created_at", now, "updated_at", now, "settings_version", 1)}
		if d.Alias != "" {
			out = append(out, change(derived.Aliases, derived.Insert, aliasKey(e.UserID, d.Alias), "session_id", string(e.SessionID)))
		}
		return out
	case *event.SessionUpdated:
		out := []derived.Change{change(derived.Sessions, derived.Set, session, "title", d.Settings.Title, "updated_at", now),
			change(derived.Sessions, derived.Add, session, "settings_version", 1)}
		for _, alias := range d.Changed { // the suite's own use of the member: aliases to take over
			out = append(out, change(derived.Aliases, derived.Delete, aliasKey(e.UserID, alias)),
				change(derived.Aliases, derived.Insert, aliasKey(e.UserID, alias), "session_id", string(e.SessionID)))
		}
		return out
	case *event.SessionClosed:
		return []derived.Change{change(derived.Sessions, derived.Set, session, "status", "closed", "updated_at", now)}
	case *event.SessionErased:
		return append(deletes(session, derived.Sessions, derived.Runs, derived.Queue, derived.Idempotency, derived.Inbound, derived.ToolStarts, derived.AssetUses),
			change(derived.Sessions, derived.Insert, session, "user_id", e.UserID, "status", "erased", "updated_at", now))
	case *event.RunCreated:
		if d.Kind == kindPanic {
			panic("a programmer's mistake")
		}
		out := []derived.Change{
			change(derived.Runs, derived.Insert, run, "user_id", e.UserID, "status", "queued", "kind", d.Kind, "submitted_at", now,
				"updated_at", now, "created_seq", e.Seq, "source", d.Source, "route", d.Route.Name, "model", d.Route.Model),
			change(derived.Queue, derived.Insert, run, "created_seq", e.Seq, "status", "queued", "submitted_at", now, "user_id", e.UserID),
		}
		if k := d.Idempotency; k != nil && k.Connector() != "" {
			key := []derived.Col{{Name: "user_id", Value: e.UserID}, {Name: "connector", Value: k.Connector()}, {Name: "event_hash", Value: k.KeyHash}}
			out = append(out, change(derived.Inbound, derived.Insert, key, "fingerprint", k.Fingerprint, "session_id", string(e.SessionID), "run_id", string(e.RunID)))
		} else if k != nil {
			key := append(session[:1:1], derived.Col{Name: "operation", Value: k.Operation}, derived.Col{Name: "key_hash", Value: k.KeyHash})
			out = append(out, change(derived.Idempotency, derived.Insert, key, "fingerprint", k.Fingerprint, "run_id", string(e.RunID)))
		}
		used := map[event.AssetID]bool{}
		for _, it := range d.Input {
			if it.Asset == nil || used[it.Asset.ID] {
				continue
			}
			used[it.Asset.ID] = true
			key := append(run[:2:2], derived.Col{Name: "asset_id", Value: string(it.Asset.ID)})
			out = append(out, change(derived.AssetUses, derived.Insert, key, "user_id", e.UserID))
		}
		return out
	case *event.RunStarted:
		return []derived.Change{change(derived.Runs, derived.Set, run, "status", "running", "started_at", now),
			change(derived.Queue, derived.Set, run, "status", "running")}
	case *event.NeedsAttention:
		return []derived.Change{change(derived.Runs, derived.Set, run, "status", "needs_attention")}
	case *event.OutputEmitted:
		return []derived.Change{change(derived.Runs, derived.Set, run, "output_seq", e.Seq)}
	case *event.RunCompleted:
		return []derived.Change{change(derived.Runs, derived.Set, run, "status", "completed", "finished_at", now),
			change(derived.Queue, derived.Delete, run)}
	case *event.ToolStarted:
		key := append(session[:1:1], derived.Col{Name: "call_id", Value: string(e.CallID)})
		return []derived.Change{change(derived.ToolStarts, derived.Insert, key, "run_id", string(e.RunID))}
	}
	return deliveryRows(e, now)
}

func deliveryRows(e *event.Event, now string) []derived.Change {
	target, _ := e.Stream.Target()
	key := func(id event.DeliveryID) []derived.Col {
		return []derived.Col{{Name: "target_id", Value: string(target)}, {Name: "delivery_id", Value: string(id)}}
	}
	switch d := e.Data.(type) {
	case *event.DeliveryEnqueued:
		out := []derived.Change{}
		if e.Seq == 1 {
			out = append(out, change(derived.Targets, derived.Insert, key("")[:1], "user_id", e.UserID, "type", d.Type, "created_at", now))
		}
		return append(out, change(derived.Outbox, derived.Insert, key(d.DeliveryID), "lane_seq", e.Seq, "session_id", string(e.SessionID),
			"run_id", string(e.RunID), "user_id", e.UserID, "type", d.Type, "status", "pending", "body", d.Body, "address", d.Address,
			"created_at", now, "updated_at", now, "next_at", now, "cycle_at", now))
	case *event.DeliveryAttemptFailed:
		attempt := append(key(d.DeliveryID), derived.Col{Name: "n_attempt", Value: int64(d.Attempt)})
		return []derived.Change{change(derived.Attempts, derived.Insert, attempt, "code", d.Code, "n_status", int64(d.Status), "n_duration_ms", d.DurationMS, "ended_at", now),
			change(derived.Outbox, derived.Set, key(d.DeliveryID), "last_code", d.Code),
			change(derived.Targets, derived.Add, key("")[:1], "n_failures", 1), change(derived.Targets, derived.Set, key("")[:1], "last_code", d.Code)}
	case *event.TargetCircuitOpened:
		return []derived.Change{change(derived.Targets, derived.Set, key("")[:1], "circuit", "open", "open_until", d.Until)}
	case *event.TargetPaused:
		return []derived.Change{change(derived.Targets, derived.Set, key("")[:1], "n_paused", 1, "paused_at", now, "paused_by", d.Actor, "pause_reason", d.Reason)}
	case *event.TargetResumed:
		return []derived.Change{change(derived.Targets, derived.Set, key("")[:1], "n_paused", 0, "resumed_at", now)}
	case *event.DeliveryAttemptStarted:
		return []derived.Change{change(derived.Outbox, derived.Add, key(d.DeliveryID), "n_attempts", 1),
			change(derived.Outbox, derived.Set, key(d.DeliveryID), "n_open", int64(d.Attempt), "n_open_epoch", e.Epoch)}
	case *event.DeliveryDelivered:
		return []derived.Change{change(derived.Outbox, derived.Set, key(d.DeliveryID), "status", "delivered", "n_open", 0,
			"n_last_status", int64(d.Status), "updated_at", now)}
	case *event.DeliveryDeadLettered:
		return []derived.Change{change(derived.Outbox, derived.Set, key(d.DeliveryID), "status", "dead_lettered")}
	case *event.DeliveryResolved:
		return []derived.Change{change(derived.Outbox, derived.Set, key(d.DeliveryID), "status", "resolved")}
	}
	return letterRows(e, now)
}

func aliasKey(user, alias string) []derived.Col {
	return []derived.Col{{Name: "user_id", Value: user}, {Name: "alias", Value: alias}}
}

func deletes(key []derived.Col, tables ...derived.Table) []derived.Change {
	var out []derived.Change
	for _, t := range tables {
		out = append(out, change(t, derived.Delete, key))
	}
	return out
}

// change makes a change from names and values in turn.
func change(t derived.Table, op derived.Op, key []derived.Col, pairs ...any) derived.Change {
	c := derived.Change{Table: t, Op: op, Key: key}
	for i := 0; i < len(pairs); i += 2 {
		v := pairs[i+1]
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		c.Cols = append(c.Cols, derived.Col{Name: pairs[i].(string), Value: v})
	}
	return c
}
