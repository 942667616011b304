package outbox

import (
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// letterRows says what follows from what people do with deliveries, and from
// the end of their time in the ledger.
func letterRows(out []derived.Change, e *event.Event) []derived.Change {
	at := event.FormatTime(e.Time)
	target, _ := e.Stream.Target()
	set := func(id event.DeliveryID, cols ...derived.Col) {
		out = append(out, derived.Change{Table: derived.Outbox, Op: derived.Set, Key: keyOf(target, id), Cols: append(cols, str("updated_at", at))})
	}
	switch d := e.Data.(type) {
	case *event.DeliveryResolved:
		set(d.DeliveryID, str("status", Resolved), str("next_at", ""), str("resolved_at", at), str("resolved_by", d.Actor), str("resolved_reason", d.Reason))
	case *event.DeliveryReplayed:
		// A replay joins the tail of its lane (I-25), with a new budget: attempts and
		// age are counted from here. What a person said of it before is over.
		set(d.DeliveryID, str("status", Pending), num("lane_seq", e.Seq), num("n_cycle", 0), str("next_at", at), str("cycle_at", at),
			str("last_code", ""), str("last_class", ""), num("n_replays", max(1, int64(d.Number))), str("resolved_at", ""), str("resolved_by", ""), str("resolved_reason", ""))
		forced := int64(0)
		if d.Forced {
			forced = 1
		}
		out = append(out,
			derived.Change{Table: derived.Replays, Op: derived.Insert, Key: append(keyOf(target, d.DeliveryID), num("replay_seq", e.Seq)), Cols: []derived.Col{
				str("at", at), str("actor", d.Actor), str("reason", d.Reason), num("n_forced", forced), str("job_id", string(d.JobID))}})
	case *event.DeliveryExpired:
		for _, id := range d.Deliveries {
			for _, table := range ledger {
				out = append(out, derived.Change{Table: table, Op: derived.Delete, Key: keyOf(target, id)})
			}
		}
	}
	return out
}

// ledger lists the tables that tell of a delivery: what leaves when it expires.
var ledger = []derived.Table{derived.Outbox, derived.Attempts, derived.Replays}

// Why a delivery is not replayed.
const (
	InFlight        = "delivery_in_flight"      // an attempt is on its way
	NoLetter        = "delivery_state_conflict" // it is on its way, or arrived: there is nothing to replay
	AlreadyReplayed = "already_replayed"        // since it was a dead letter
	WasResolved     = "delivery_resolved"       // a person said that it is done with
)

// Replayable says why a delivery is not replayed; empty: it is. Dead letters
// are. force is for what was a dead letter once, and is resolved or was replayed
// already, and for what was delivered and is wanted once more. Nothing overrides
// an attempt that is in flight, and what was never tried to its end has its
// turn anyway.
func Replayable(status string, open, replays int64, force bool) string {
	switch {
	case open != 0:
		return InFlight
	case status == DeadLettered:
		return ""
	case status == Pending && replays == 0:
		return NoLetter
	case force:
		return ""
	case status == Resolved:
		return WasResolved
	case replays > 0:
		return AlreadyReplayed
	}
	return NoLetter
}
