// Package engine is the thin machine around the rules: read the state, ask
// what is next, append the intent, do it, append the outcome. A restart is the
// same loop on a longer log; there is no second path for recovery.
package engine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Log is what the engine needs of the log.
type Log interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error)
	Now(ctx context.Context) (time.Time, error)
}

// Snapshots keep sessions as they are folded. They are a short cut: nothing
// depends on one being there.
type Snapshots interface {
	// Load gives a state to go on from, or nil.
	Load(ctx context.Context, id event.SessionID) *session.State
	// Due says whether a session whose head has moved so is to be offered.
	Due(before, now int64) bool
	// Offer hands over a state, which nobody else changes from then on. It
	// does not block.
	Offer(st *session.State)
}

// Config is what the engine works with.
type Config struct {
	Log Log
	// Snapshots: nil means that sessions are folded from their first event.
	Snapshots Snapshots
	// Files make snapshots of workspaces. Nil: there are none.
	Files Files
	Hub   *live.Hub
	Tools *tool.Set
	// Model gives the adapter of a captured route; its error is an *llm.Error.
	Model func(event.Route) (llm.Model, error)
	// Takes says whether the model of a route reads files of a media type. Nil: text only.
	Takes  func(r event.Route, mediaType string) bool
	Node   eventlog.NodeID // this process life, as whose owner's appends are made
	Rand   *rand.Rand
	Logger *slog.Logger
	// Held says whether no act may begin now, for want of room to record what
	// would come of it. Outcomes are recorded all the same. Nil: never.
	Held func() bool

	ModelTimeout  time.Duration // of a whole attempt; default 10 min
	ToolTimeout   time.Duration // of a call whose tool names none; default 60 s
	MaxAnswer     int           // bytes of one answer, all parts; default 16 MiB
	MaxToolOutput int           // bytes of a tool result that the model sees; default 32 KiB
	MaxParallel   int           // calls of one turn that run at once; default 8
	BlobCache     int           // bytes of texts kept in memory; default 32 MiB
	FileBytes     int64         // bytes of files in requests that are under way at once; what would be more waits; default 256 MiB
}

// Engine drives sessions. It is safe for concurrent use; one session is driven
// by one caller at a time.
type Engine struct {
	cfg   Config
	blobs *blobCache
	files *semaphore.Weighted // bytes of files in requests under way
	tools toolCache

	randMu sync.Mutex
}

// New makes an engine.
func New(cfg Config) *Engine {
	def(&cfg.ModelTimeout, 10*time.Minute)
	def(&cfg.ToolTimeout, time.Minute)
	def(&cfg.MaxAnswer, 16<<20)
	def(&cfg.MaxToolOutput, 32<<10)
	def(&cfg.MaxParallel, 8)
	def(&cfg.BlobCache, 32<<20)
	if cfg.Takes == nil {
		cfg.Takes = func(_ event.Route, media string) bool { return llm.Capabilities{}.Takes(media) }
	}
	if cfg.Held == nil {
		cfg.Held = func() bool { return false }
	}
	if cfg.FileBytes == 0 {
		cfg.FileBytes = 256 << 20
	}
	return &Engine{cfg: cfg, blobs: newBlobCache(cfg.BlobCache), files: semaphore.NewWeighted(cfg.FileBytes)}
}

func def[T int | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// jitter draws from [0,1).
func (e *Engine) jitter() float64 {
	e.randMu.Lock()
	defer e.randMu.Unlock()
	return e.cfg.Rand.Float64()
}

// page is how many events are read at once.
const page = 512

// Load folds a session from the log: from its snapshot on, where it has one.
func (e *Engine) Load(ctx context.Context, id event.SessionID) (*session.State, error) {
	var st *session.State
	if e.cfg.Snapshots != nil {
		st = e.cfg.Snapshots.Load(ctx, id)
	}
	if st == nil {
		st = &session.State{ID: id}
	}
	from := st.Head
	if err := e.CatchUp(ctx, st); err != nil {
		return nil, err
	}
	if e.cfg.Snapshots != nil && e.cfg.Snapshots.Due(0, st.Head-from) { // it was long
		e.cfg.Snapshots.Offer(st.Clone())
	}
	return st, nil
}

// CatchUp folds what the log holds behind the state.
func (e *Engine) CatchUp(ctx context.Context, st *session.State) error {
	return catchUp(ctx, st, e.cfg.Log.Read)
}

func catchUp(ctx context.Context, st *session.State, read func(context.Context, event.Stream, int64, int) ([]event.Event, error)) error {
	for {
		events, err := read(ctx, st.ID.Stream(), st.Head, page)
		if err != nil {
			return err
		}
		for i := range events {
			if err := events[i].Decode(); err != nil {
				return err
			}
			if err := st.Apply(&events[i]); err != nil {
				return err
			}
		}
		if len(events) < page {
			return nil
		}
	}
}

// Drive works on a session until it asks for nothing more. It takes over the
// state and gives back the state to go on from, when something is due that only
// waits for its time (zero: nothing), and whether its last append has let go of
// the session. bell wakes it to read commands from the log. From the closing of
// draining on no act begins; those in flight are awaited. When ctx ends, what is
// in flight is left in doubt, as after a crash.
//
// Acts outside the log happen only while the term lasts. eventlog.ErrFenced means
// that it has ended, or that the session has another owner: then nothing more is
// done for it, and nothing is said in the log (I-11).
//
// What is offered, which may be nil, is taken where the session is at rest, and
// answered in any case.
func (e *Engine) Drive(ctx context.Context, term eventlog.Term, st *session.State, offer *eventlog.Offer, bell, draining <-chan struct{}) (_ *session.State, due time.Time, rested bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	st.AskForFiles(e.cfg.Files != nil)
	d := &drive{
		e: e, id: st.ID, st: st, term: term, log: e.cfg.Logger.With("session_id", st.ID),
		acts: map[actKey]context.CancelFunc{}, outcomes: make(chan outcome),
		cancel: cancel, head: st.Head,
	}
	due, err = d.run(ctx, offer, bell, draining)
	cancel()
	d.wait.Wait()
	if err == nil && d.unsaved > 0 { // at rest: nobody waits for what this costs
		e.cfg.Snapshots.Offer(d.st.Clone())
	}
	return d.st, due, d.rested, err
}

// restless is how many events a session that does not come to rest may have
// behind the place of its next snapshot before that is made all the same.
const restless = 2000

// moved notes that the head has moved, and offers a snapshot of a session that
// does not come to rest.
func (d *drive) moved() {
	s := d.e.cfg.Snapshots
	if s == nil {
		return
	}
	if d.unsaved == 0 && s.Due(d.head, d.st.Head) {
		d.unsaved = d.st.Head
	}
	d.head = d.st.Head
	if d.unsaved > 0 && d.st.Head-d.unsaved >= restless {
		s.Offer(d.st.Clone())
		d.unsaved = 0
	}
}

// drive is one activation of a session.
type drive struct {
	e  *Engine
	id event.SessionID
	st *session.State // as committed; only the loop touches it
	// term is the lease under which it works.
	term eventlog.Term
	log  *slog.Logger

	acts     map[actKey]context.CancelFunc // in flight
	outcomes chan outcome
	pending  []outcome // done, not committed yet
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	draining bool
	// owned: acts that are open in the state are ours. Before that, and once
	// only, an owner raises the epoch when another was there or left acts open.
	owned bool
	// unsure is where the session stood when an append was made of which nothing is
	// known, 0: there is none; see doubtful.
	unsure int64
	// rested: the last append let go of the session.
	rested bool
	// lost: an act found the lease ended.
	lost bool
	// head is where the session stood when it was last looked at for a snapshot,
	// unsaved where one became due; 0: none is.
	head, unsaved int64
}

// actKey names an act: an attempt of a step or of a call, or a snapshot of files.
type actKey struct {
	step    event.StepID
	call    event.CallID
	attempt int
	files   session.CaptureFiles // zero: it is none
}

// outcome is what came of an act.
type outcome struct {
	key actKey
	// lost: the act did not begin, since the lease had ended.
	lost bool
	// events tells it, for the state at the time of the append. It gives nil
	// when the state does not wait for it any more (I-14).
	events func(*session.State) ([]event.Event, []event.Blob)
}

// run is the loop.
func (d *drive) run(ctx context.Context, offer *eventlog.Offer, bell, draining <-chan struct{}) (time.Time, error) {
	if offer == nil || !d.takeUp(ctx, offer, draining) { // an append at the head that was known: there is nothing behind it
		if err := d.look(ctx); err != nil {
			return time.Time{}, err
		}
		d.moved()
	}
	for {
		select {
		case <-draining: // before anything else that is ready
			d.draining, draining = true, nil
		default:
		}
		actions, due, err := d.settle(ctx)
		if err != nil {
			return time.Time{}, err
		}
		back := d.begin(ctx, actions)
		if d.pending != nil {
			continue
		}
		if len(d.acts) == 0 && !back {
			return d.here(ctx, due)
		}
		var timer <-chan time.Time
		if back {
			timer = time.After(heldAfter)
		}
		if !back && !due.IsZero() {
			now, err := d.now(ctx)
			if err != nil {
				return time.Time{}, err
			}
			timer = time.After(due.Sub(now))
		}
		rung, over, err := d.await(ctx, bell, timer, draining)
		if over {
			d.draining, draining = true, nil
		}
		if err == nil && d.lost {
			err = eventlog.ErrFenced
		}
		if err == nil && rung {
			err = d.catchUp(ctx)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
}

// look folds what the log holds behind a state that was kept. Where an append may be
// on its way a store in trouble is waited for: who ended here would forget the claim
// that is due.
func (d *drive) look(ctx context.Context) error {
	defer func() { d.owned = false }()
	if d.unsure > 0 {
		return d.catchUp(ctx)
	}
	return d.e.CatchUp(ctx, d.st)
}

// doubtful says whether an append that nothing is known of may come yet: where the
// session has moved on it has come, or cannot any more. Else a claim is due.
func (d *drive) doubtful() bool { return d.unsure > 0 && d.st.Head == d.unsure }

// await waits for something to come. Where several things are ready their order
// is fixed, so that a history can be played again: our end, then commands, then
// outcomes, then time.
func (d *drive) await(ctx context.Context, bell <-chan struct{}, timer <-chan time.Time, draining <-chan struct{}) (rung, drain bool, err error) {
	if ctx.Err() != nil {
		return false, false, ctx.Err()
	}
	select {
	case <-bell:
		return true, false, nil
	default:
	}
	d.drainOutcomes()
	if d.pending != nil || d.lost {
		return false, false, nil
	}
	select {
	case o := <-d.outcomes:
		d.took(o)
		d.drainOutcomes()
	case <-bell:
		rung = true
	case <-timer:
	case <-draining:
		drain = true
	case <-ctx.Done():
		err = ctx.Err()
	}
	return rung, drain, err
}

// here gives a time of the store's clock by that of this machine, which may be
// another (I-16). Zero stays zero.
func (d *drive) here(ctx context.Context, due time.Time) (time.Time, error) {
	if due.IsZero() {
		return due, nil
	}
	now, err := d.now(ctx)
	return time.Now().Add(due.Sub(now)), err
}

func (d *drive) took(o outcome) {
	d.acts[o.key]()
	delete(d.acts, o.key)
	if o.lost {
		d.lost = true
		return
	}
	d.pending = append(d.pending, o)
}

// drainOutcomes takes what is ready, so that it commits together.
func (d *drive) drainOutcomes() {
	for {
		select {
		case o := <-d.outcomes:
			d.took(o)
		default:
			return
		}
	}
}

// heldAfter is how soon is looked again whether what was held back may begin.
const heldAfter = time.Second

// begin starts the acts that are asked for and not in flight. While draining
// nothing new begins: the next start finds it in doubt or asks for it again. Nor
// does it while there is no room for outcomes: back says that acts wait for that,
// which are recorded as started and must not be left as in doubt.
func (d *drive) begin(ctx context.Context, actions []session.Action) (back bool) {
	d.dropFiles(actions)
	may := func(key actKey) bool {
		if d.acts[key] != nil || d.draining {
			return false
		}
		if d.e.cfg.Held() {
			back = true
			return false
		}
		return true
	}
	for _, a := range actions {
		switch a := a.(type) {
		case session.Abort:
			for _, cancel := range d.acts {
				cancel()
			}
			d.neverBegan()
		case session.CallModel:
			key := actKey{step: a.Step, attempt: a.Attempt}
			if may(key) {
				act := d.callModel
				if summarises(d.st, key) {
					act = d.callSummary
				}
				d.start(ctx, key, act)
			}
		case session.RunTool:
			key := actKey{call: a.Call, attempt: a.Attempt}
			if len(d.acts) < d.e.cfg.MaxParallel && may(key) {
				d.start(ctx, key, d.runTool)
			}
		case session.CaptureFiles:
			key := actKey{files: a}
			if may(key) {
				d.start(ctx, key, d.captureFiles)
			}
		}
	}
	return back
}

// mayAct is asked right before each act outside the log: whether the lease has
// time left for it. It waits for a beat that is late; eventlog.ErrFenced: the
// lease has ended, and nothing more is done or said (I-11).
func (d *drive) mayAct(ctx context.Context) error {
	if err := d.term.Await(ctx); err != nil {
		if ctx.Err() != nil {
			return llm.Errorf(llm.Aborted, "stopped").Because(err)
		}
		return eventlog.ErrFenced
	}
	return nil
}

// start runs an act in a goroutine that the drive waits for. What the act
// needs of the state it gets as a copy.
func (d *drive) start(ctx context.Context, key actKey, act func(context.Context, actKey, *session.State) outcome) {
	actx, cancel := context.WithCancel(ctx)
	d.acts[key] = cancel
	st := d.st.Clone()
	d.wait.Go(func() {
		o := act(actx, key, st)
		if ctx.Err() != nil {
			return // cut by our own end: in doubt, which is no outcome
		}
		select {
		case d.outcomes <- o:
		case <-ctx.Done(): // ended or lost: the outcome is nobody's to record
		}
	})
}

// neverBegan gives an end to what is recorded as started, must not go on and is
// not in flight: calls that waited for a place among the parallel ones, and
// acts whose intent was committed by an append that seemed to fail. Nobody else
// would ever end them.
func (d *drive) neverBegan() {
	if d.summaryNeverBegan() {
		return
	}
	step := d.st.Active.Step
	key := actKey{step: step.ID, attempt: step.Attempt.Number}
	if step.Attempt.Open && step.Attempt.Epoch == d.st.Epoch && d.acts[key] == nil {
		d.pending = append(d.pending, outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
			if !waitsFor(s, key) {
				return nil, nil
			}
			return session.Failed(s, &session.Answer{}, llm.Errorf(llm.Aborted, session.TextTurnInterrupted), time.Time{}, 0), nil
		}})
	}
	for _, c := range step.Calls {
		key := actKey{call: c.ID, attempt: c.Attempt}
		if c.State != session.CallStarted || c.Epoch != d.st.Epoch || d.acts[key] != nil {
			continue
		}
		d.pending = append(d.pending, d.toolOutcome(key, neverRan(key), time.Time{}))
	}
}

// neverRan is what comes of an attempt of a call whose start is recorded and that
// was stopped before it began.
func neverRan(key actKey) toolResult {
	if key.attempt > 1 { // an earlier attempt may have had its effect
		return toolResult{result: session.ToolOutcome{Stopped: true}}
	}
	return toolResult{result: failed("the run was stopped before the call began").result}
}
