// Package admission is the room in which clients' commands become events: it
// checks who asks and what, captures everything that shapes a run, and appends
// under preconditions that the store checks in the transaction.
//
// It reads rows and the log, never a room's memory, and any node may do it for
// any session.
package admission

import (
	"context"
	"errors"
	"io"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Store is what admission needs of the log and its views.
type Store interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	Session(ctx context.Context, id event.SessionID) (eventlog.SessionRow, error)
	SessionByAlias(ctx context.Context, user, alias string) (event.SessionID, error)
	Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error)
	Runs(ctx context.Context, f eventlog.RunFilter, p eventlog.Page) ([]eventlog.RunRow, string, error)
	Pending(ctx context.Context, s event.SessionID, most int) (int, error)
	Idempotency(ctx context.Context, s event.SessionID, operation, keyHash string) (eventlog.IdempotencyRow, error)
	Inbound(ctx context.Context, user, connector, eventHash string) (eventlog.InboundRow, error)
	Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error)
	Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error)
	Job(ctx context.Context, id event.JobID) (eventlog.JobRow, error)
	Jobs(ctx context.Context, f eventlog.JobFilter, p eventlog.Page) ([]eventlog.JobRow, string, error)
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	TargetState(ctx context.Context, id event.TargetID) (eventlog.TargetState, error)
	PutAsset(ctx context.Context, a eventlog.AssetRow, data []byte, quota int64) (eventlog.AssetRow, bool, error)
	Asset(ctx context.Context, id event.AssetID) (eventlog.AssetRow, error)
	AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error)
	ListAssets(ctx context.Context, user string, p eventlog.Page) ([]eventlog.AssetRow, string, error)
	Now(ctx context.Context) (time.Time, error)
}

// Config says what admission decides by.
type Config struct {
	Store Store
	Tools *tool.Set
	// Route resolves a route by name (empty: the default) and a model (empty:
	// the route's own). Its error is a *problem.Error.
	Route func(name, model string) (event.Route, error)
	// Takes says whether the model of a route reads files of a media type. Nil: text only.
	Takes func(r event.Route, mediaType string) bool
	// Compaction is how the contexts of runs are kept within their windows; nil: not at all.
	Compaction *event.Compaction
	// CheckTarget says whether a reply target of a user may be used, and gives it with
	// what is pinned of it; its error is a *problem.Error. Of its form everything is
	// checked before; a session is another business of admission's own.
	CheckTarget func(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error)
	// Fallback is where answers go whose run and session name no targets; checked. Its
	// error is a *problem.Error. Nil: nowhere.
	Fallback func(ctx context.Context) ([]event.ReplyTarget, error)
	// TryTarget makes one attempt to deliver a test, the way every attempt is made.
	// Nil: there are no tests.
	TryTarget func(ctx context.Context, user string, id event.DeliveryID, t event.ReplyTarget, body []byte) Tried
	// Forget deletes what stands of a session outside the store, when it was
	// erased. Nil: nothing does.
	Forget func(user string, id event.SessionID) error
	// Owner has the sessions that rest in this process, and may begin a run in the
	// append of its submission. Nil: nobody does.
	Owner  Owner
	Random io.Reader // ids; safe for concurrent use
	Limits Limits
}

// Owner works on sessions.
type Owner interface {
	// Rests gives a session that is known to be at rest here, as it was when it was
	// last worked on: without asking the store.
	Rests(id event.SessionID) (eventlog.Resting, bool)
	// Offer hands over an append of one entry, to be made together with what follows
	// from it. Not taken: nothing of it is in the log, and it is the caller's to make.
	Offer(ctx context.Context, id event.SessionID, a eventlog.Append) (taken bool, err error)
}

// nobody owns anything.
type nobody struct{}

func (nobody) Rests(event.SessionID) (eventlog.Resting, bool) { return eventlog.Resting{}, false }
func (nobody) Offer(context.Context, event.SessionID, eventlog.Append) (bool, error) {
	return false, nil
}

// Limits bound what a caller may send. Zero fields take the defaults.
type Limits struct {
	InputBytes        int // of a run's input, all text items together
	InputItems        int
	InstructionsBytes int
	MetadataBytes     int
	MaxTurns          int // ceiling for sessions and runs
	HistoryLimit      int // ceiling
	ReplyTargets      int
	AssetBytes        int64         // of one asset
	UserAssetBytes    int64         // of all assets of one user
	ParallelTools     int           // calls of one turn that run at once, captured by each run; 0: the rules' default
	PlanTime          time.Duration // for which the plan of a bulk replay can be started
	OpenPlans         int           // of bulk replays, that can be started now
	Hops              int           // how many runs may answer into a session, one after the other
	QueuedRuns        int           // of one session, not at their end; a bound that concurrent submissions may pass by their number
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&l.InputBytes, 1<<20)
	def(&l.InputItems, 64)
	def(&l.InstructionsBytes, 256<<10)
	def(&l.MetadataBytes, 16<<10)
	def(&l.MaxTurns, 1000)
	def(&l.HistoryLimit, 10000)
	def(&l.ReplyTargets, 8)
	def(&l.QueuedRuns, 1000)
	def(&l.Hops, 8)
	def(&l.OpenPlans, 100)
	if l.PlanTime == 0 {
		l.PlanTime = 15 * time.Minute
	}
	if l.AssetBytes == 0 {
		l.AssetBytes = 20 << 20
	}
	if l.UserAssetBytes == 0 {
		l.UserAssetBytes = 10 << 30
	}
	return l
}

// Caller is who asks.
type Caller struct {
	Actor string // for the record: token name or "local"
	// UserID binds the caller to one user; empty: an operator for all users.
	UserID string
}

// Admission takes commands. It is safe for concurrent use.
type Admission struct {
	cfg Config

	stopped atomic.Bool
	tests   chan struct{} // test deliveries in flight

	planning chan struct{} // an element while a plan is made

	mu       sync.Mutex
	inputs   map[string]*contract.Schema // compiled input contracts, by rendered schema
	toolsets map[string]*toolset         // what runs capture, by the session's choice
}

// toolset is one selection of tools as runs capture it.
type toolset struct {
	captured []event.CapturedTool
	encoded  []byte // of the full definitions
	ref      string
}

// cacheSize bounds each of the caches.
const cacheSize = 512

// New makes the room.
func New(cfg Config) *Admission {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Takes == nil {
		cfg.Takes = func(_ event.Route, media string) bool { return llm.Capabilities{}.Takes(media) }
	}
	if cfg.Owner == nil {
		cfg.Owner = nobody{}
	}
	return &Admission{cfg: cfg, tests: make(chan struct{}, maxTests), planning: make(chan struct{}, 1), inputs: map[string]*contract.Schema{}, toolsets: map[string]*toolset{}}
}

// Stop ends intake: no session and no run is taken from now on. What exists
// can still be read, ended and settled.
func (a *Admission) Stop() { a.stopped.Store(true) }

var errStopping = problem.New(problem.Unavailable, "stopping", "the daemon is stopping; try again when it is back")

// aliasForm is the form of a caller's own session id.
var aliasForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// userForm bounds user ids: printable, without spaces at the ends.
var userForm = regexp.MustCompile(`^[!-~]([ -~]{0,126}[!-~])?$`)

// DefaultUser owns what names no user.
const DefaultUser = "default"

// User resolves the user that a request is for: the token's, or the one named.
func (c Caller) User(named string) (string, error) {
	switch {
	case c.UserID != "" && named != "" && named != c.UserID:
		return "", problem.New(problem.Forbidden, "wrong_user", "the token is bound to another user")
	case c.UserID != "":
		return c.UserID, nil
	case named == "":
		return DefaultUser, nil
	case !userForm.MatchString(named):
		return "", problem.New(problem.Invalid, "invalid_user_id", "user_id must be 1 to 128 printable ASCII characters")
	}
	return named, nil
}

// Sees says whether the caller may see what belongs to a user (I-34).
func (c Caller) Sees(user string) bool { return c.UserID == "" || c.UserID == user }

var (
	errNoSession  = problem.New(problem.NotFound, "session_not_found", "there is no such session")
	errNoRun      = problem.New(problem.NotFound, "run_not_found", "there is no such run")
	errNoDelivery = problem.New(problem.NotFound, "delivery_not_found", "there is no such delivery")
	errErased     = problem.New(problem.Gone, "session_erased", "the session was erased")
)

// Find resolves a session by its ses_… id, or by its alias within the
// caller's user or the named one.
func (a *Admission) Find(ctx context.Context, c Caller, ref, user string) (eventlog.SessionRow, error) {
	id := event.SessionID(ref)
	row, err := a.cfg.Store.Session(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		u, uerr := c.User(user)
		if uerr != nil {
			return row, uerr
		}
		if id, err = a.cfg.Store.SessionByAlias(ctx, u, ref); err == nil {
			row, err = a.cfg.Store.Session(ctx, id)
		}
	}
	switch {
	case errors.Is(err, eventlog.ErrNotFound), err == nil && !c.Sees(row.UserID):
		return row, errNoSession
	case err != nil:
		return row, err
	case row.Status == session.Erased:
		return row, errErased
	}
	return row, nil
}

// FindRun resolves a run that the caller may see.
func (a *Admission) FindRun(ctx context.Context, c Caller, id event.RunID) (eventlog.RunRow, error) {
	row, err := a.cfg.Store.Run(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Sees(row.UserID) {
		return row, errNoRun
	}
	return row, err
}

// FindDelivery resolves a delivery that the caller may see.
func (a *Admission) FindDelivery(ctx context.Context, c Caller, id event.DeliveryID) (eventlog.DeliveryRow, error) {
	row, err := a.cfg.Store.Delivery(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Sees(row.UserID) {
		return row, errNoDelivery
	}
	return row, err
}

// command appends events to a session's stream without owning it.
func (a *Admission) command(ctx context.Context, s event.SessionID, require []eventlog.Condition, blobs []event.Blob, events ...event.Event) error {
	return a.append(ctx, commandOf(s, require, blobs, events))
}

func commandOf(s event.SessionID, require []eventlog.Condition, blobs []event.Blob, events []event.Event) eventlog.Append {
	blobs = append(blobs, event.Externalize(s, events)...)
	return eventlog.Append{
		Entries: []eventlog.Entry{{Stream: s.Stream(), Expect: eventlog.AnyHead, Events: events}},
		Require: require,
		Blobs:   blobs,
		Uses:    usesOf(events),
	}
}

// append appends. What the store refuses comes back as it is; a store that
// cannot write (a full disk, say) is a daemon that cannot do it now.
func (a *Admission) append(ctx context.Context, ap eventlog.Append) error {
	_, err := a.stamped(ctx, ap)
	return err
}

// stamped is append that says where the entries landed.
func (a *Admission) stamped(ctx context.Context, ap eventlog.Append) ([]eventlog.Stamp, error) {
	stamps, err := a.cfg.Store.Append(ctx, ap)
	return stamps, told(ctx, err)
}

// told gives the error of an append as callers are told it, and nil for none.
func told(ctx context.Context, err error) error {
	var condition *eventlog.ConditionError
	var duplicate *eventlog.DuplicateError
	var asset *eventlog.AssetError
	switch {
	case err == nil, errors.As(err, &condition), errors.As(err, &duplicate), ctx.Err() != nil:
		return err
	case errors.As(err, &asset):
		return errNoAsset(asset.ID)
	case errors.Is(err, eventlog.ErrClosed):
		return errStopping.Because(err)
	}
	return problem.New(problem.Unavailable, "store_unavailable", "the daemon cannot write now; try again, under an Idempotency-Key where work must not be done twice").Because(err)
}

// sessionIs requires a session's status and, when version is not 0, the
// version of the settings that a decision was made by.
func sessionIs(id event.SessionID, version int64, status ...any) []eventlog.Condition {
	where := []derived.Col{{Name: "session_id", Value: string(id)}}
	cs := []eventlog.Condition{{Table: derived.Sessions, Where: where, Column: "status", In: status}}
	if version != 0 {
		cs = append(cs, eventlog.Condition{Table: derived.Sessions, Where: where, Column: "settings_version", In: []any{version}})
	}
	return cs
}

// input gives the compiled input contract of a rendered schema.
func (a *Admission) input(schema canonjson.Value) (*contract.Schema, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.inputs[string(schema)]; ok {
		return s, nil
	}
	s, issues := contract.ParseSchema(schema)
	if len(issues) > 0 {
		return nil, errors.New("stored input contract: " + issues[0].String())
	}
	if len(a.inputs) >= cacheSize {
		clear(a.inputs)
	}
	a.inputs[string(schema)] = s
	return s, nil
}
