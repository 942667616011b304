// Package api holds the types of the wire: what the daemon's HTTP interface
// takes and gives, as JSON. They are the promise to clients; stored and
// internal types are others.
package api

import (
	"encoding/json"
	"time"
)

// Raw is JSON in place.
type Raw = json.RawMessage

// CreateSession is the body of POST /v1/sessions. Every member is optional.
type CreateSession struct {
	// ID is the caller's own name for the session: [A-Za-z0-9._-]{1,128},
	// unique per user. The daemon makes the ses_… id.
	ID             string          `json:"id,omitempty"`
	UserID         string          `json:"user_id,omitempty"` // "default" when empty; bound tokens fix it
	ThreadID       string          `json:"thread_id,omitempty"`
	Title          string          `json:"title,omitempty"`
	Instructions   string          `json:"instructions,omitempty"`
	Metadata       Raw             `json:"metadata,omitempty"`
	Tools          *[]string       `json:"tools,omitempty"` // absent: every configured tool
	OnDoubt        string          `json:"on_doubt,omitempty"`
	MaxTurns       int             `json:"max_turns,omitempty"`
	HistoryLimit   int             `json:"history_limit,omitempty"`
	InputContract  *InputContract  `json:"input_contract,omitempty"`
	OutputContract *OutputContract `json:"output_contract,omitempty"`
	RoutePolicy    *RoutePolicy    `json:"route_policy,omitempty"`
	ReplyTargets   []ReplyTarget   `json:"reply_targets,omitempty"`
}

// UpdateSession is the body of PATCH /v1/sessions/{s}: members that are
// present change, null clears (RFC 7396 for these members).
type UpdateSession struct {
	Title        *string `json:"title,omitempty"`
	Instructions *string `json:"instructions,omitempty"`
	Metadata     Raw     `json:"metadata,omitempty"`
	Tools        Raw     `json:"tools,omitempty"` // null: every configured tool
	OnDoubt      *string `json:"on_doubt,omitempty"`
	MaxTurns     *int    `json:"max_turns,omitempty"`
	HistoryLimit *int    `json:"history_limit,omitempty"`
}

// InputContract is the closed JSON Schema that submissions must meet.
type InputContract struct {
	Schema Raw `json:"schema"`
}

// OutputContract is the closed JSON Schema that answers must meet.
// MaxRepairAttempts: 3 when absent, 5 at most, 0 for none.
type OutputContract struct {
	Schema            Raw  `json:"schema"`
	MaxRepairAttempts *int `json:"max_repair_attempts,omitempty"`
}

// RoutePolicy is a session's choice of route and model.
type RoutePolicy struct {
	Route string `json:"route,omitempty"`
	Model string `json:"model,omitempty"`
}

// ReplyTargets is the body of PUT /v1/sessions/{s}/reply-targets.
type ReplyTargets struct {
	ReplyTargets []ReplyTarget `json:"reply_targets"`
}

// Session is a session as clients see it.
type Session struct {
	ID              string          `json:"id"`
	Alias           string          `json:"alias,omitempty"`
	UserID          string          `json:"user_id"`
	ThreadID        string          `json:"thread_id,omitempty"`
	Status          string          `json:"status"` // open, closed
	Title           string          `json:"title,omitempty"`
	Instructions    string          `json:"instructions,omitempty"`
	Metadata        Raw             `json:"metadata,omitempty"`
	Tools           *[]string       `json:"tools,omitempty"`
	OnDoubt         string          `json:"on_doubt"`
	MaxTurns        int             `json:"max_turns"`
	HistoryLimit    int             `json:"history_limit"`
	InputContract   *InputContract  `json:"input_contract,omitempty"`
	OutputContract  *OutputContract `json:"output_contract,omitempty"`
	RoutePolicy     *RoutePolicy    `json:"route_policy,omitempty"`
	ReplyTargets    []ReplyTarget   `json:"reply_targets,omitempty"`
	SettingsVersion int64           `json:"settings_version"`
	CreatedAt       time.Time       `json:"created_at"`
	UpdatedAt       time.Time       `json:"updated_at"`
}

// SubmitRun is the body of POST /v1/sessions/{s}/runs: either Content or
// InputItems, and maybe Attachments.
type SubmitRun struct {
	// Content is a string, or any other JSON value, whose text is then the input.
	Content    Raw         `json:"content,omitempty"`
	InputItems []InputItem `json:"input_items,omitempty"`
	// Attachments are ids of assets (ast_…), shown behind the input.
	Attachments []string `json:"attachments,omitempty"`
	Route       string   `json:"route,omitempty"`
	Model       string   `json:"model,omitempty"`
	// ReplyTargets: absent takes the session's, an empty list means none.
	ReplyTargets *[]ReplyTarget `json:"reply_targets,omitempty"`
	MaxTurns     int            `json:"max_turns,omitempty"`
	Metadata     Raw            `json:"metadata,omitempty"`
}

// Text is a string as the Content of a submission.
func Text(s string) Raw {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always encodes
	}
	return b
}

// InputItem is one item of an input: a text, an asset that was handed in before
// (asset_reference), or a file that comes along (inline_asset).
type InputItem struct {
	Type    string `json:"type"`
	Text    string `json:"text,omitempty"`
	AssetID string `json:"asset_id,omitempty"`
	// Data is the file of an inline_asset, in base64 (RFC 4648, section 4).
	Data string `json:"data,omitempty"`
	Name string `json:"name,omitempty"` // a file name, shown to the model
	// MediaType tells kinds of text apart; of other files the bytes say what they are.
	MediaType string `json:"media_type,omitempty"`
}

// Asset is a file that was handed in. Equal bytes of one user are one asset.
type Asset struct {
	ID        string    `json:"id"`
	UserID    string    `json:"user_id"`
	Digest    string    `json:"digest"` // sha256:… of the bytes
	MediaType string    `json:"media_type"`
	Name      string    `json:"name,omitempty"`
	Bytes     int64     `json:"bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// Attachment is a file that a run was given.
type Attachment struct {
	AssetID   string `json:"asset_id"`
	MediaType string `json:"media_type"`
	Name      string `json:"name,omitempty"`
	Bytes     int64  `json:"bytes"`
}

// Run status.
const (
	RunQueued         = "queued"
	RunRunning        = "running"
	RunNeedsAttention = "needs_attention"
	RunCompleted      = "completed"
	RunFailed         = "failed"
	RunInterrupted    = "interrupted"
	RunCancelled      = "cancelled"
)

// Run is a run as clients see it.
type Run struct {
	ID            string     `json:"id"`
	SessionID     string     `json:"session_id"`
	UserID        string     `json:"user_id"`
	Kind          string     `json:"kind"`
	Status        string     `json:"status"`
	SubmittedAt   time.Time  `json:"submitted_at"`
	UpdatedAt     time.Time  `json:"updated_at"`
	StartedAt     *time.Time `json:"started_at,omitempty"`
	FinishedAt    *time.Time `json:"finished_at,omitempty"`
	QueuePosition int64      `json:"queue_position,omitempty"`
	Request       RunRequest `json:"request"`
	InputMetadata Raw        `json:"input_metadata,omitempty"`
	// InputAttachments are the files that the run was given, in their order.
	InputAttachments []Attachment `json:"input_attachments"`
	Attention        []Attention  `json:"attention,omitempty"` // calls in doubt that wait for a person
	Outputs          []Output     `json:"outputs"`
	// StructuredOutput is the answer under an output contract, as real JSON.
	StructuredOutput Raw        `json:"structured_output,omitempty"`
	Deliveries       []Delivery `json:"deliveries"`
	// DeliveriesExpired counts the deliveries that the ledger has no more, after
	// their retention; the log has them.
	DeliveriesExpired int       `json:"deliveries_expired,omitempty"`
	Usage             *Usage    `json:"usage,omitempty"` // absent: not known
	Counters          *Counters `json:"counters,omitempty"`
	Error             *RunError `json:"error,omitempty"`
}

// Terminal says whether the run is at its end.
func (r *Run) Terminal() bool {
	switch r.Status {
	case RunCompleted, RunFailed, RunInterrupted, RunCancelled:
		return true
	}
	return false
}

// RunRequest is what was asked, and how it was routed.
type RunRequest struct {
	Source      string `json:"source"`
	Actor       string `json:"actor,omitempty"`
	TextPreview string `json:"text_preview,omitempty"`
	Route       string `json:"route"`
	Provider    string `json:"provider"`
	Model       string `json:"model"`
}

// Attention is a tool call whose effect nobody knows.
type Attention struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool,omitempty"`
	Reason string `json:"reason,omitempty"` // what is known of it
}

// Output is an answer.
type Output struct {
	OutputKind string `json:"output_kind"`
	Content    string `json:"content"`
	// ContentRef stands in lists in place of a Content of more than 16 KiB;
	// GET /v1/runs/{r} has the content, and so has the session's blob of that name.
	ContentRef       string    `json:"content_ref,omitempty"`
	StructuredOutput Raw       `json:"structured_output,omitempty"`
	At               time.Time `json:"at"`
}

// Usage counts tokens.
type Usage struct {
	Input     int64      `json:"input"`
	Output    int64      `json:"output"`
	Reasoning int64      `json:"reasoning"`
	Cache     CacheUsage `json:"cache"`
}

// CacheUsage counts cached tokens.
type CacheUsage struct {
	Read  int64 `json:"read"`
	Write int64 `json:"write"`
}

// Counters count what a run did.
type Counters struct {
	Turns   int `json:"turns"`
	Steps   int `json:"steps"`
	Tools   int `json:"tools"`
	Repairs int `json:"repairs"`
}

// RunError says why a run did not complete.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ResolveAttention is the body of POST /v1/runs/{r}/attention.
type ResolveAttention struct {
	CallID     string `json:"call_id"`
	Resolution string `json:"resolution"` // completed, failed, retry
	Output     string `json:"output,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// StopRun is the body of POST /v1/runs/{r}/cancel and /v1/sessions/{s}/interrupt.
type StopRun struct {
	Reason string `json:"reason,omitempty"`
}

// Interrupt is the answer of POST /v1/sessions/{s}/interrupt. Requested says
// whether there was an active run that was asked to stop.
type Interrupt struct {
	Requested bool `json:"requested"`
}

// Delivery status.
const (
	DeliveryPending      = "pending"
	DeliveryRetrying     = "retrying"
	DeliveryDelivered    = "delivered"
	DeliveryDeadLettered = "dead_lettered"
	DeliveryResolved     = "resolved" // a person said that it is done with
)

// Delivery is one outbound message and its fate.
type Delivery struct {
	ID         string     `json:"id"`
	TargetID   string     `json:"target_id"`
	SessionID  string     `json:"session_id"`
	RunID      string     `json:"run_id"`
	UserID     string     `json:"user_id"`
	Type       string     `json:"type"`
	Status     string     `json:"status"`
	Attempts   int64      `json:"attempts"`
	CreatedAt  time.Time  `json:"created_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	NextAt     *time.Time `json:"next_at,omitempty"`
	LastCode   string     `json:"last_code,omitempty"`
	LastClass  string     `json:"last_class,omitempty"` // of the failure
	LastStatus int64      `json:"last_status,omitempty"`
	Replays    int64      `json:"replays,omitempty"`
	// ReplayHistory holds the first 100 replays, oldest first; lists leave it out.
	ReplayHistory []Replay    `json:"replay_history,omitempty"`
	Resolution    *Resolution `json:"resolution,omitempty"` // who said that it is done with, and why
	// Receiver is where it goes: the URL, or what the target names. Lists leave it
	// out; it goes with the session's content.
	Receiver string `json:"receiver,omitempty"`
}

// Target is a receiver: where deliveries of one user go, one after the other.
type Target struct {
	ID     string `json:"id"`
	UserID string `json:"user_id"`
	Type   string `json:"type"`
	// Receiver is who it is: the URL, or what the target names. Absent when the
	// session of its last delivery was erased, or the delivery is not listed any more.
	Receiver     string `json:"receiver,omitempty"`
	Pending      int64  `json:"pending"` // deliveries that wait in its lane
	DeadLettered int64  `json:"dead_lettered"`
	// OldestPendingAt is when the first delivery of the lane was made, NextAt when
	// it is due; absent: none is pending.
	OldestPendingAt *time.Time `json:"oldest_pending_at,omitempty"`
	NextAt          *time.Time `json:"next_at,omitempty"`
	// LastDeliveryID is the delivery that was made last; what follows is of it.
	// Absent: the ledger has none any more, or had none yet.
	LastDeliveryID string     `json:"last_delivery_id,omitempty"`
	LastMadeAt     *time.Time `json:"last_made_at,omitempty"`
	LastStatus     string     `json:"last_status,omitempty"`
	LastCode       string     `json:"last_code,omitempty"`
	InFlight       int64      `json:"in_flight"`
	Blocked        int64      `json:"blocked"` // deliveries that wait behind one that waits, or for the end of a pause
	// Circuit is closed, open or half_open, Failures the failures in a row. Nothing
	// is sent before OpenUntil, nor before HeldUntil, which the receiver asked for.
	Circuit     string     `json:"circuit"`
	Failures    int64      `json:"failures"`
	OpenUntil   *time.Time `json:"open_until,omitempty"`
	HeldUntil   *time.Time `json:"held_until,omitempty"`
	Paused      *Pause     `json:"paused,omitempty"`
	LastFailure *Failure   `json:"last_failure,omitempty"`
	// Unchanged, in the answer to a change: the target was so already, and the reason
	// that came with the change is kept nowhere.
	Unchanged bool `json:"unchanged,omitempty"`
}

// List is a page. NextCursor is empty on the last one.
type List[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// Event is an event on the wire. Data is by type; null when it was erased.
type Event struct {
	ID         string    `json:"id"`
	Type       string    `json:"type"`
	Version    int       `json:"version"`
	Stream     string    `json:"stream"`
	Seq        int64     `json:"seq"`
	SessionID  string    `json:"session_id,omitempty"`
	RunID      string    `json:"run_id,omitempty"`
	Turn       int       `json:"turn,omitempty"`
	StepID     string    `json:"step_id,omitempty"`
	CallID     string    `json:"call_id,omitempty"`
	UserID     string    `json:"user_id,omitempty"`
	AgentID    string    `json:"agent_id,omitempty"`
	FSMState   string    `json:"fsm_state,omitempty"`
	Epoch      int64     `json:"epoch"`
	Time       time.Time `json:"time"`
	CausedBy   string    `json:"caused_by,omitempty"`
	Data       Raw       `json:"data"`
	DataDigest string    `json:"data_digest"`
	Hash       string    `json:"hash"`
}

// Delta is a live-only piece of a stream: it has no sequence and no id, and is
// not in the log. The …ended event holds the whole value.
type Delta struct {
	Type    string `json:"type"`
	RunID   string `json:"run_id"`
	StepID  string `json:"step_id"`
	Attempt int    `json:"attempt"`
	Part    int    `json:"part"`
	Text    string `json:"text,omitempty"`
	Name    string `json:"name,omitempty"`
	// Epoch is that of the owner who makes the attempt.
	Epoch int64 `json:"epoch,omitzero"`
	// Number counts the deltas of an attempt, from 1. One that is missing was lost.
	Number int64 `json:"number,omitzero"`
	// After is a sequence of the log: what stands up to it came before the attempt.
	After int64 `json:"after,omitzero"`
}

// Synced is the data of the one synced marker of a stream: what follows is live.
type Synced struct {
	// Seq is the last sequence that the reader has, or where it asked to begin.
	Seq int64 `json:"seq"`
	// Live says where live deltas come from: see the Live constants.
	Live string `json:"live"`
}

// Where live deltas of a stream come from. Durable events come in any case.
const (
	LiveLocal = "local" // from this daemon, which does the work itself
	LiveBus   = "bus"   // from whichever node does the work, over the bus
	LiveNone  = "none"  // from nowhere: this daemon does not do the work, nobody or another node does, and there is no bus now
)

// LiveNote is the data of a live marker: where live deltas come from has changed.
type LiveNote struct {
	Live string `json:"live"` // local, bus or none
}

// Gap is the data of a gap marker: live deltas were lost to this reader, or it
// came when an attempt had begun. No durable event is missing, and the …ended
// events hold the whole.
type Gap struct {
	Reason  string `json:"reason"` // slow_reader, bus or late
	RunID   string `json:"run_id,omitempty"`
	StepID  string `json:"step_id,omitempty"`
	Attempt int    `json:"attempt,omitzero"`
	// Missing is how many deltas of the attempt are missing at this place; 0: not known.
	Missing int64 `json:"missing,omitzero"`
}

// Why live deltas are missing.
const (
	GapSlow = "slow_reader" // the reader did not take them in time
	GapBus  = "bus"         // they were lost between nodes
	GapLate = "late"        // the reader came later
)

// Cut is the data of a cut marker, the last thing in a stream whose reader is
// too slow.
type Cut struct {
	// ResumeAfter is where to go on: the sequence up to which the reader has everything.
	ResumeAfter int64  `json:"resume_after"`
	Reason      string `json:"reason"` // slow_reader
}

// CreateToken is the body of POST /v1/tokens.
type CreateToken struct {
	Name   string `json:"name,omitempty"`
	Role   string `json:"role"`              // reader, operator, admin
	UserID string `json:"user_id,omitempty"` // binds the token to one user
	// ExpiresIn is how long it is good, as 720h; ExpiresAt until when. At most one
	// of them; without both it is as the daemon's tokens.expiry says.
	ExpiresIn string     `json:"expires_in,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Token is an access token. Token itself is shown once, at creation.
type Token struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Role      string    `json:"role"`
	UserID    string    `json:"user_id,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt is when it ends; absent: never.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// LastUsed is the minute in which it was used last, told a minute or two later; absent: never.
	LastUsed *time.Time `json:"last_used,omitempty"`
	Token    string     `json:"token,omitempty"`
}

// Route is a configured way to a model.
type Route struct {
	Name     string `json:"name"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Default  bool   `json:"default"`
}

// Tool is a configured tool.
type Tool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Source      string `json:"source"`
	SideEffect  string `json:"side_effect"`
	Policy      string `json:"policy,omitempty"`
	InputSchema Raw    `json:"input_schema"`
}

// Node is a process that shares the store with others.
type Node struct {
	ID      string    `json:"id"`   // of one process life
	Name    string    `json:"name"` // host and process id
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	// LeaseUntil is how long it counts as alive unless it is heard of again;
	// absent where there is one node only.
	LeaseUntil *time.Time `json:"lease_until,omitempty"`
	Alive      bool       `json:"alive"`
	Draining   bool       `json:"draining"` // it takes nothing more
	Released   bool       `json:"released"` // it ended in order
	// ActiveSessions and MostSessions are how many sessions it works on, and how
	// many it can, as it said last.
	ActiveSessions int      `json:"active_sessions"`
	MostSessions   int      `json:"most_sessions"`
	Roots          []string `json:"workspace_roots"`
}

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status  string `json:"status"`
	Version string `json:"version"`
}

// Problem is an error (RFC 9457). Code is stable; Detail is safe to show.
type Problem struct {
	Type   string  `json:"type"`
	Title  string  `json:"title"`
	Status int     `json:"status"`
	Code   string  `json:"code"`
	Detail string  `json:"detail"`
	Issues []Issue `json:"issues,omitempty"`
}

// Issue is one of several findings.
type Issue struct {
	Path string `json:"path,omitempty"`
	Text string `json:"text"`
}
