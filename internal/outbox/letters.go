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
		set(d.DeliveryID, str("status", Pending), num("lane_seq", e.Seq), num("n_cycle", 0), str("next_at", at),
			str("resolved_at", ""), str("resolved_by", ""), str("resolved_reason", ""))
		forced := int64(0)
		if d.Forced {
			forced = 1
		}
		out = append(out,
			derived.Change{Table: derived.Outbox, Op: derived.Add, Key: keyOf(target, d.DeliveryID), Cols: []derived.Col{num("n_replays", 1)}},
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
var ledger = []derived.Table{derived.Outbox, derived.Replays}
