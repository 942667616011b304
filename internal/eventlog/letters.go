package eventlog

import (
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Replay is the entry that replays a delivery as it was seen, and what must
// hold for that: nobody has replayed, sent or resolved it since, no attempt is in
// flight, and its content was not erased.
func (r *DeliveryRow) Replay(d *event.DeliveryReplayed) (Entry, []Condition) {
	d.DeliveryID, d.Number = r.ID, int(r.Replays)+1
	here := r.key()
	return Entry{Stream: r.TargetID.Stream(), Expect: AnyHead, Events: []event.Event{{SessionID: r.SessionID, UserID: r.UserID, RunID: r.RunID, Data: d}}},
		[]Condition{
			{Table: derived.Outbox, Where: here, Column: "lane_seq", In: []any{r.LaneSeq}},
			{Table: derived.Outbox, Where: here, Column: "status", In: []any{r.Status}},
			{Table: derived.Outbox, Where: here, Column: "n_open", In: []any{int64(0)}},
			{Table: derived.Sessions, Where: []derived.Col{{Name: "session_id", Value: string(r.SessionID)}}, Column: "status", In: []any{session.Open, session.Closed}},
		}
}

func (r *DeliveryRow) key() []derived.Col {
	return []derived.Col{{Name: "target_id", Value: string(r.TargetID)}, {Name: "delivery_id", Value: string(r.ID)}}
}

// Unchanged requires that nothing has happened to the delivery since it was seen.
func (r *DeliveryRow) Unchanged() Condition {
	return Condition{Table: derived.Outbox, Where: r.key(), Column: "updated_at", In: []any{r.UpdatedAt}}
}
