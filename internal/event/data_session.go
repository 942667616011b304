package event

import "github.com/holdfast-dev/holdfast/internal/canonjson"

// Fields stand in the order of their JSON names, so that what is marshalled is
// canonical (RFC 8785) without a second pass; a test holds every type to it.

// SessionCreated opens a session's stream.
type SessionCreated struct {
	Alias    string   `json:"alias,omitzero"` // the caller's own id, unique per user
	Settings Settings `json:"settings"`
	ThreadID string   `json:"thread_id,omitzero"`
}

// Settings are the defaults of a session. They shape the runs created after
// them; a run that exists keeps what it captured (I-08).
type Settings struct {
	HistoryLimit   int             `json:"history_limit,omitzero"` // entries of earlier context kept; 0: the daemon's default
	InputContract  *InputContract  `json:"input_contract,omitzero"`
	Instructions   Content         `json:"instructions,omitzero"`
	MaxTurns       int             `json:"max_turns,omitzero"` // 0: the daemon's default
	Metadata       canonjson.Value `json:"metadata,omitzero"`
	OnDoubt        OnDoubt         `json:"on_doubt,omitzero"`
	OutputContract *OutputContract `json:"output_contract,omitzero"`
	ReplyTargets   []ReplyTarget   `json:"reply_targets,omitzero"`
	RoutePolicy    *RoutePolicy    `json:"route_policy,omitzero"`
	Title          string          `json:"title,omitzero"`
	Tools          *[]string       `json:"tools,omitzero"` // nil: every configured tool
}

// OnDoubt says what happens to a run whose effect in doubt nobody can settle.
type OnDoubt string

// The choices.
const (
	DoubtAsk      OnDoubt = "ask"      // wait in needs_attention for a person
	DoubtContinue OnDoubt = "continue" // tell the model that the outcome is unknown, and go on
)

// InputContract is the schema that submissions must conform to.
type InputContract struct {
	Schema canonjson.Value `json:"schema"` // rendered form
}

// OutputContract is the schema that final answers must conform to.
type OutputContract struct {
	MaxRepairAttempts *int            `json:"max_repair_attempts,omitzero"` // nil: the default; 0: none
	Schema            canonjson.Value `json:"schema"`                       // rendered form
}

// RoutePolicy is the session's choice of a model.
type RoutePolicy struct {
	Model string `json:"model,omitzero"`
	Route string `json:"route,omitzero"`
}

// SessionUpdated changes settings. Changed names the members of Settings that
// take the value given here; a named member without a value is cleared.
type SessionUpdated struct {
	Actor    string   `json:"actor,omitzero"`
	Changed  []string `json:"changed"`
	Settings Settings `json:"settings"`
	Version  int      `json:"version"` // of the settings, 1 at creation
}

// SessionClosed ends intake; what was accepted still runs.
type SessionClosed struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// SessionErased says that the content of all earlier events is gone.
type SessionErased struct {
	Actor string `json:"actor,omitzero"`
}

// OwnerClaimed begins an epoch: the one of its envelope.
type OwnerClaimed struct {
	Owner string `json:"owner"` // one process life of a node
}

func (*SessionCreated) EventType() Type { return TypeSessionCreated }
func (*SessionUpdated) EventType() Type { return TypeSessionUpdated }
func (*SessionClosed) EventType() Type  { return TypeSessionClosed }
func (*SessionErased) EventType() Type  { return TypeSessionErased }
func (*OwnerClaimed) EventType() Type   { return TypeOwnerClaimed }

func (d *SessionCreated) contents() []*Content { return []*Content{&d.Settings.Instructions} }
func (d *SessionUpdated) contents() []*Content { return []*Content{&d.Settings.Instructions} }

// Take applies a change: the named members take the values given.
func (s *Settings) Take(d *SessionUpdated) {
	v := d.Settings
	for _, name := range d.Changed {
		switch name {
		case "history_limit":
			s.HistoryLimit = v.HistoryLimit
		case "input_contract":
			s.InputContract = v.InputContract
		case "instructions":
			s.Instructions = v.Instructions
		case "max_turns":
			s.MaxTurns = v.MaxTurns
		case "metadata":
			s.Metadata = v.Metadata
		case "on_doubt":
			s.OnDoubt = v.OnDoubt
		case "output_contract":
			s.OutputContract = v.OutputContract
		case "reply_targets":
			s.ReplyTargets = v.ReplyTargets
		case "route_policy":
			s.RoutePolicy = v.RoutePolicy
		case "title":
			s.Title = v.Title
		case "tools":
			s.Tools = v.Tools
		}
	}
}
