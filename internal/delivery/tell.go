package delivery

import "github.com/holdfast-dev/holdfast/internal/event"

// tell writes into the daemon's log what was recorded and has somebody look: a
// delivery that is tried no more, and a receiver that is left alone.
func (t *turn) tell(e *event.Event) {
	log := t.cfg.Logger.With("target_id", t.id)
	switch d := e.Data.(type) {
	case *event.DeliveryDeadLettered:
		log.Warn("a delivery is a dead letter: it is not tried again until it is replayed", "delivery_id", d.DeliveryID, "run_id", e.RunID, "attempts", d.Attempts, "code", d.Code)
	case *event.TargetPaused:
		log.Warn("the receiver says that it is gone: nothing is sent to it until its target is resumed", "delivery_id", d.DeliveryID)
	case *event.TargetCircuitOpened:
		log.Warn("the receiver keeps failing and is left alone for a while", "failures", d.Failures, "until", d.Until)
	case *event.TargetCircuitClosed:
		log.Info("the receiver answers again", "actor", d.Actor)
	}
}
