package api

// What a connector made of an event.
const (
	InboundAccepted  = "accepted"  // a new run
	InboundRepeated  = "repeated"  // the event was taken before: the run that it made
	InboundIgnored   = "ignored"   // no run, and no need to send it again
	InboundChallenge = "challenge" // the sender wanted to read something back
	InboundRefused   = "refused"   // of a test: the event would be refused
)

// Received is the answer of POST /v1/connectors/{name}.
type Received struct {
	Outcome   string `json:"outcome"`
	Reason    string `json:"reason,omitempty"` // why it was ignored
	Event     string `json:"event,omitempty"`  // such as issues.opened
	RunID     string `json:"run_id,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	// SessionCreated: the session was made for the event.
	SessionCreated bool `json:"session_created,omitempty"`
	// TargetsRemembered says, where the connector remembers reply targets,
	// whether those of the run are the session's now; if not, TargetsReason says why.
	TargetsRemembered *bool  `json:"targets_remembered,omitempty"`
	TargetsReason     string `json:"targets_reason,omitempty"`
	Challenge         string `json:"challenge,omitempty"`
}

// Connector is a configured connector. It holds no secret.
type Connector struct {
	Name   string `json:"name"`
	Path   string `json:"path"` // where events are sent
	Type   string `json:"type"` // json, github or slack
	Auth   string `json:"auth"` // bearer, standard_webhooks, github, slack or none
	UserID string `json:"user_id"`
	// Session says where runs go: fixed, key (a session for each value) or new (a session for each event).
	Session         string   `json:"session"`
	SessionID       string   `json:"session_id,omitempty"`  // of a fixed one: its id or alias
	SessionKey      string   `json:"session_key,omitempty"` // the text with placeholders
	SessionTemplate string   `json:"session_template,omitempty"`
	EventID         string   `json:"event_id"` // where an event's id is
	Events          []string `json:"events,omitempty"`
	PayloadTargets  bool     `json:"payload_targets"`
	RememberTargets bool     `json:"remember_targets"`
	BodyBytes       int      `json:"body_bytes"`
	Rate            float64  `json:"rate"` // events a second
	Burst           int      `json:"burst"`
}

// TestConnector is the body of POST /v1/connectors/{name}/test.
type TestConnector struct {
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body"` // the bytes of the event, as text
}

// ConnectorTest says what a connector would make of an event. Nothing was made.
type ConnectorTest struct {
	// Authentication is ok, or why the sender would not be believed.
	Authentication string `json:"authentication"`
	Outcome        string `json:"outcome"`
	Reason         string `json:"reason,omitempty"`
	Event          string `json:"event,omitempty"`
	EventID        string `json:"event_id,omitempty"`
	// SessionID of the session there is; SessionAlias of the one that is looked
	// for, or would be made.
	SessionID      string `json:"session_id,omitempty"`
	SessionAlias   string `json:"session_alias,omitempty"`
	SessionTitle   string `json:"session_title,omitempty"` // of one that would be made
	SessionCreated bool   `json:"session_created,omitempty"`
	RunID          string `json:"run_id,omitempty"` // of a repeat
	Input          Raw    `json:"input,omitempty"`  // a string, or any other JSON value
	Metadata       Raw    `json:"metadata,omitempty"`
	// ReplyTargets of the run; absent: those of the session.
	ReplyTargets  []ReplyTarget `json:"reply_targets,omitempty"`
	TargetsReason string        `json:"targets_reason,omitempty"`
	Challenge     string        `json:"challenge,omitempty"`
	Problem       *Problem      `json:"problem,omitempty"` // of a refusal
}
