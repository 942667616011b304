package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// SessionRow is the derived row of a session. JSON columns are as stored: the
// member of the settings as JSON, or empty.
type SessionRow struct {
	ID                                                                                               event.SessionID
	UserID, Alias, ThreadID, Status, Title                                                           string
	CreatedAt, UpdatedAt                                                                             string
	SettingsVersion                                                                                  int64
	Instructions, Metadata, Tools, OnDoubt, InputContract, OutputContract, RoutePolicy, ReplyTargets string
	MaxTurns, HistoryLimit                                                                           int64
}

// RunRow is the derived row of a run. Position is its place among the
// session's queued runs, from 1, or 0 when it is not queued.
type RunRow struct {
	ID                                                 event.RunID
	SessionID                                          event.SessionID
	UserID, Status, Kind                               string
	SubmittedAt, UpdatedAt, StartedAt, FinishedAt      string
	CreatedSeq, OutputSeq                              int64
	Source, Actor, TextPreview, Route, Provider, Model string
	ErrorCode, ErrorMessage, Totals, WaitingOn         string
	Position                                           int64
}

// DeliveryRow is the derived row of a delivery.
type DeliveryRow struct {
	ID                                  event.DeliveryID
	TargetID                            event.TargetID
	SessionID                           event.SessionID
	RunID                               event.RunID
	UserID, Type, Status, Body, Address string
	LaneSeq                             int64
	CreatedAt, UpdatedAt, NextAt        string
	CycleAt                             string // when it was enqueued, or replayed last
	Attempts                            int64  // over all replays
	Cycle                               int64  // since the last replay
	Open, OpenEpoch                     int64  // attempt in flight, and its epoch; 0: none
	// Of the last failure since it was enqueued or replayed; empty: there was none,
	// and while it is pending it was not tried to an end.
	LastCode, LastClass string
	// Of the last attempt that ended, before a replay too.
	LastAt             string
	LastStatus, LastMS int64
	DeliveredAttempt   int64 // the attempt that the receiver took, when that was the last; 0: none
	Replays            int64
	// When, by whom and why it was resolved; empty: it is not.
	ResolvedAt, ResolvedBy, ResolvedReason string
}

// Outgoing is a pending delivery with what is sent. Size is that of the body,
// which may be left out; Gone: the body or the address are not there.
type Outgoing struct {
	DeliveryRow
	Message, To []byte
	Size        int64
	Gone        bool
}

// Ahead bounds a look into a lane.
type Ahead struct {
	Limit   int    // deliveries
	Bytes   int64  // of the bodies that are read, taken together; the one that passes it is the last
	Largest int64  // of a body that is read
	Due     string // stored time: bodies of what is due later, and has no attempt open, are not read; empty: all are
}

// AttemptRow is an attempt of a delivery that is over, as the derived rows keep
// it: all that failed, and those that were delivered before a forced replay.
type AttemptRow struct {
	Number                        int64
	EndedAt, Code, Class, RetryAt string // Code is empty when it was delivered
	Status, DurationMS            int64
	Excerpt                       string // blob of the delivery's session, or empty
}

// TargetState is how a receiver fares. Times are in the stored form.
type TargetState struct {
	ID                      event.TargetID
	UserID, Type            string
	CreatedAt, UpdatedAt    string
	Circuit                 string // closed: empty, open or half_open
	Failures, Opens         int64  // in a row
	OpenUntil, HeldUntil    string
	LastCode, LastClass     string // of the last failure
	FailedAt                string
	Paused                  int64 // 0 or 1
	PausedAt, PausedBy      string
	PausedCode, PauseReason string
	ResumedAt, ResetAt      string
}

// ReplayRow is one replay of a delivery.
type ReplayRow struct {
	Seq               int64 // of its event, in the target's stream
	At, Actor, Reason string
	Forced            bool
	JobID             event.JobID
}

// JobRow is the derived row of a job.
type JobRow struct {
	ID                                                     event.JobID
	UserID, Kind, Status, Actor, Reason                    string
	CreatedAt, UpdatedAt, StartedAt, FinishedAt, ExpiresAt string
	Total, Done, Skipped, Limit                            int64
	Force, Truncated                                       bool
	Filter, Digest, TokenHash                              string
}

// JobFilter narrows a list of jobs; an empty member does not.
type JobFilter struct {
	UserID, Status string
	Range
}

// IdempotencyRow is a known key.
type IdempotencyRow struct {
	Fingerprint, Contract string
	RunID                 event.RunID
}

// InboundRow is an event that a connector took.
type InboundRow struct {
	Fingerprint string
	SessionID   event.SessionID
	RunID       event.RunID
}

// Page bounds a list. Cursor is what the page before gave; empty: the start.
type Page struct {
	Limit  int
	Cursor string
}

// Range narrows a list by the time at which its rows were made, and says in
// which direction it goes. The zero value is everything, newest first.
type Range struct {
	Since time.Time // from then on; zero: from the beginning
	Until time.Time // before then; zero: to the end
	Asc   bool      // oldest first
}

// SessionFilter, RunFilter and DeliveryFilter narrow a list; an empty member
// does not. Of erased sessions only Status erased tells.
type SessionFilter struct {
	UserID, Status, ThreadID string
	Range
}

// RunFilter narrows a list of runs.
type RunFilter struct {
	UserID, Status string
	SessionID      event.SessionID
	Range
}

// DeliveryFilter narrows a list of deliveries.
type DeliveryFilter struct {
	UserID, Status string
	SessionID      event.SessionID
	RunID          event.RunID
	TargetID       event.TargetID
	Class          string // of the last failure since it was enqueued or replayed
	// Tried narrows to those whose last attempt failed, or with Untried to those
	// that did not fail yet since they were enqueued or replayed.
	Tried, Untried bool
	Range
}

// TargetRow is what the deliveries to a target tell of it.
type TargetRow struct {
	ID                    event.TargetID
	UserID, Type          string
	Pending, DeadLettered int64
	// The first delivery of the lane: when it was made, and when it is due. Empty: none is pending.
	OldestPending, NextAt string
	// The delivery that was made last, and how it stands.
	LastDelivery event.DeliveryID
	LastMade     string
	LastStatus   string
	LastCode     string
	// FirstFailedAt is when the last attempt of the first delivery of the lane ended.
	FirstFailedAt string
	InFlight      int64 // attempts that have begun
	State         TargetState
}

// TargetFilter narrows a list of targets; an empty member does not. Lists are in
// the order of ids, which has no meaning.
type TargetFilter struct {
	UserID, Type string
	Status       string // of a delivery that the target must have: pending or dead_lettered
}

// TokenRow is an access token; only its digest is stored.
type TokenRow struct {
	ID, Name, Role, UserID, Hash string
	CreatedAt                    time.Time
	ExpiresAt                    time.Time // zero: never
	LastUsed                     time.Time // see TouchTokens; zero: never
}

// Views are the reads over derived rows. Each room names the few it uses.
type Views interface {
	Session(ctx context.Context, id event.SessionID) (SessionRow, error) // ErrNotFound
	SessionByAlias(ctx context.Context, user, alias string) (event.SessionID, error)
	Sessions(ctx context.Context, f SessionFilter, p Page) ([]SessionRow, string, error)
	Run(ctx context.Context, id event.RunID) (RunRow, error) // ErrNotFound
	Runs(ctx context.Context, f RunFilter, p Page) ([]RunRow, string, error)
	Idempotency(ctx context.Context, s event.SessionID, operation, keyHash string) (IdempotencyRow, error) // ErrNotFound
	// Inbound gives what became of an event of a connector, by the digest of its id.
	Inbound(ctx context.Context, user, connector, eventHash string) (InboundRow, error) // ErrNotFound
	// Pending counts a session's runs that are not at their end, up to most.
	Pending(ctx context.Context, s event.SessionID, most int) (int, error)
	// Unfinished lists the sessions that have runs not at their end, those
	// whose oldest run was submitted first in front.
	Unfinished(ctx context.Context) ([]event.SessionID, error)

	Delivery(ctx context.Context, id event.DeliveryID) (DeliveryRow, error) // ErrNotFound
	Deliveries(ctx context.Context, f DeliveryFilter, p Page) ([]DeliveryRow, string, error)
	// NextDelivery gives the first pending delivery of a target's lane, or ErrNotFound.
	NextDelivery(ctx context.Context, t event.TargetID) (DeliveryRow, error)
	// Ahead gives the pending deliveries at the front of a target's lane, with what
	// is sent.
	Ahead(ctx context.Context, t event.TargetID, q Ahead) ([]Outgoing, error)
	// Attempts lists attempts that are over in their order, but for the one by
	// which the row of the delivery says that it was delivered.
	Attempts(ctx context.Context, t event.TargetID, id event.DeliveryID, p Page) ([]AttemptRow, string, error)
	TargetState(ctx context.Context, id event.TargetID) (TargetState, error) // ErrNotFound
	Target(ctx context.Context, id event.TargetID) (TargetRow, error)        // ErrNotFound: nothing was ever delivered there
	Targets(ctx context.Context, f TargetFilter, p Page) ([]TargetRow, string, error)
	// Replays lists the replays of a delivery, oldest first, up to limit.
	Replays(ctx context.Context, t event.TargetID, id event.DeliveryID, limit int) ([]ReplayRow, error)
	// SettledDeliveries lists deliveries of a status, delivered or resolved, that have not
	// changed since before a time, those that changed first in front.
	SettledDeliveries(ctx context.Context, status string, before time.Time, limit int) ([]DeliveryRow, error)
	Job(ctx context.Context, id event.JobID) (JobRow, error) // ErrNotFound
	Jobs(ctx context.Context, f JobFilter, p Page) ([]JobRow, string, error)
	// UnfinishedJobs lists the jobs that are started and not at their end.
	UnfinishedJobs(ctx context.Context) ([]event.JobID, error)
	// PendingTargets lists the targets that have pending deliveries.
	PendingTargets(ctx context.Context) ([]event.TargetID, error)
	// Backlog counts what is not at its end. It costs as much as waits, up to
	// MaxBacklog of each kind, and nothing for what was.
	Backlog(ctx context.Context) (Backlog, error)
}

// MaxBacklog is where the counts of a Backlog stop.
const MaxBacklog = 1_000_000

// Backlog is what waits, over all users. Times are in the stored form, empty
// when there is none.
type Backlog struct {
	Runs              map[string]int64 // not at their end, by status; a status without runs may be missing
	OldestQueued      string           // when the queued run that waits longest was submitted
	PendingDeliveries int64            // that are not at their end
	Retrying          int64            // of those, whose last attempt failed
	OldestDelivery    string           // when the pending delivery that waits longest was enqueued, or replayed last
	DeadLettered      int64            // deliveries that wait for a person
	BlockedTargets    int64            // with deliveries that wait behind one that is retried
	OpenCircuits      int64            // of targets
	HalfOpenCircuits  int64
	PausedTargets     int64
}

// AssetRow describes a file that was handed in.
type AssetRow struct {
	ID                           event.AssetID
	UserID, Ref, MediaType, Name string
	Bytes                        int64
	CreatedAt                    string // when it was handed in first
}

// Assets stand outside the log; the log refers to them.
type Assets interface {
	// PutAsset keeps a file. Equal bytes of one user are one asset: then created
	// is false and what was known of it stays, but it counts as handed in anew
	// where unused ones are collected. quota
	// bounds the bytes of all assets of the user; past it the error is ErrQuota.
	PutAsset(ctx context.Context, a AssetRow, data []byte, quota int64) (row AssetRow, created bool, err error)
	Asset(ctx context.Context, id event.AssetID) (AssetRow, error)                   // ErrNotFound
	AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error)                // ErrNotFound
	ListAssets(ctx context.Context, user string, p Page) ([]AssetRow, string, error) // newest first
	// CollectAssets deletes up to limit assets that no run uses and that were
	// handed in last before a time, and says how many. It takes fewer at once where
	// they are large; 0: there are none.
	CollectAssets(ctx context.Context, before time.Time, limit int) (int, error)
}

// ErrQuota: the user's assets hold more than they may.
var ErrQuota = errors.New("quota exceeded")

// Tokens stand outside the log.
type Tokens interface {
	AddToken(ctx context.Context, t TokenRow) error
	TokenByID(ctx context.Context, id string) (TokenRow, error)     // ErrNotFound
	TokenByHash(ctx context.Context, hash string) (TokenRow, error) // ErrNotFound
	ListTokens(ctx context.Context) ([]TokenRow, error)
	DeleteToken(ctx context.Context, id string) error // ErrNotFound
	// TouchTokens says when tokens were used, by their ids. It moves no time back,
	// and passes over tokens that are gone.
	TouchTokens(ctx context.Context, used map[string]time.Time) error
}

// Settings reads the session's settings from its row.
func (r *SessionRow) Settings() (event.Settings, error) {
	s := event.Settings{
		HistoryLimit: int(r.HistoryLimit), MaxTurns: int(r.MaxTurns), OnDoubt: event.OnDoubt(r.OnDoubt),
		Title: r.Title, Metadata: canonjson.Value(r.Metadata),
	}
	if r.Metadata == "" {
		s.Metadata = nil
	}
	for _, m := range []struct {
		text string
		to   any
	}{
		{r.InputContract, &s.InputContract}, {r.OutputContract, &s.OutputContract}, {r.RoutePolicy, &s.RoutePolicy},
		{r.ReplyTargets, &s.ReplyTargets}, {r.Tools, &s.Tools}, {r.Instructions, &s.Instructions},
	} {
		if m.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(m.text), m.to); err != nil {
			return s, fmt.Errorf("settings of %s: %w", r.ID, err)
		}
	}
	return s, nil
}

// Waiting lists the calls in doubt that the run waits for.
func (r *RunRow) Waiting() ([]event.DoubtCall, error) {
	if r.WaitingOn == "" {
		return nil, nil
	}
	var calls []event.DoubtCall
	if err := json.Unmarshal([]byte(r.WaitingOn), &calls); err != nil {
		return nil, fmt.Errorf("run %s waits on: %w", r.ID, err)
	}
	return calls, nil
}
