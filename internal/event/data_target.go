package event

// What the stream of a target says of the receiver itself. The row of the
// target follows from these and from the outcomes of attempts. Those that are
// part of an outcome carry the envelope of its delivery; those that a person
// asked for carry the target's user and no session.

// TargetCircuitOpened leaves the receiver alone until a time. It comes with the
// failure that opened it.
type TargetCircuitOpened struct {
	CooldownMS int64  `json:"cooldown_ms"` // for how long, in milliseconds
	Failures   int    `json:"failures"`    // in a row
	Opens      int    `json:"opens"`       // in a row, this one counted
	Until      string `json:"until"`       // see FormatTime
}

// TargetCircuitHalfOpened lets one attempt through, the one that it comes with.
type TargetCircuitHalfOpened struct {
	DeliveryID DeliveryID `json:"delivery_id"`
}

// TargetCircuitClosed says that all is well again. With an actor it is a person's
// reset: what waits for its time is due at once.
type TargetCircuitClosed struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// Why a target was paused.
const (
	PausedByRequest = "requested" // a person wants it so
	PausedGone      = "gone"      // the receiver said that it is gone for good (410)
)

// TargetPaused parks what is to go to a target until it is resumed. Nothing is
// dropped, and no age counts meanwhile.
type TargetPaused struct {
	Actor      string     `json:"actor,omitzero"`
	Code       string     `json:"code"`
	DeliveryID DeliveryID `json:"delivery_id,omitzero"` // that was answered so
	Reason     string     `json:"reason,omitzero"`
}

// TargetResumed ends a pause. The age of what was parked counts from here.
type TargetResumed struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

func (*TargetCircuitOpened) EventType() Type     { return TypeCircuitOpened }
func (*TargetCircuitHalfOpened) EventType() Type { return TypeCircuitHalfOpened }
func (*TargetCircuitClosed) EventType() Type     { return TypeCircuitClosed }
func (*TargetPaused) EventType() Type            { return TypeTargetPaused }
func (*TargetResumed) EventType() Type           { return TypeTargetResumed }
