// Package session holds the rules of a session and its runs, as pure
// functions: Apply folds an event into the state, Next says what the state
// asks for, Rows says which derived rows follow from events.
//
// There is no clock, no I/O, no goroutine and no context here. What takes time
// or may fail is an action for the engine, which records its outcome as events;
// recovery after a crash is the same loop on a longer log.
package session

import (
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Defaults and bounds of the rules.
const (
	DefaultMaxTurns      = 50
	DefaultParallelTools = 8   // calls of one turn that run at once
	DefaultHistoryLimit  = 400 // entries of earlier runs shown to the model
	DefaultMaxAttempts   = 5   // of a model by one step, the first included
	MaxAbandoned         = 20  // attempts of one step or call that a crash may cut before it fails
	MaxToolAttempts      = 5   // of an idempotent call whose outcome is not known
	MaxPauses            = 10  // of the provider in one step
	// MaxCut bounds what a model is shown of an attempt that was cut, in bytes.
	MaxCut = 32 << 10
	// MaxOpenHosted bounds the hosted calls that a pause may leave open: they
	// are ended in one append.
	MaxOpenHosted = 1024
)

// State is what the rules know of a session. It is bounded: finished runs live
// on as the entries that a model may still be shown, and no further.
type State struct {
	ID       event.SessionID
	UserID   string
	ThreadID string
	Status   string // open, closed, erased

	Head  int64 // sequence of the last event folded
	Epoch int64
	Owner string // of the epoch: one process life of a node

	Settings        event.Settings
	SettingsVersion int
	outputContract  *contract.Schema // compiled form of Settings.OutputContract

	Queue   []*Queued // in admission order; the active run is not among them
	Active  *Run
	Window  Window
	history []past // finished runs, oldest first
	shown   int    // entries in history
	bytes   int    // of history in memory, roughly
	omitted int    // entries of earlier runs that the limit dropped
	files   filesSeen
}

// Session status.
const (
	Open   = "open"
	Closed = "closed"
	Erased = "erased"
)

// Queued is a run that has not started.
type Queued struct {
	ID           event.RunID
	Seq          int64 // of run.created
	Created      *event.RunCreated
	Instructions event.Content // in force at creation
	Stop         *Stop
}

// Stop is a request to end a run.
type Stop struct {
	Interrupt bool // else a cancel
	Reason    string
}

// past is what is left of a finished run.
type past struct {
	seq   int64 // of run.created
	items []Item
	bytes int // in memory, roughly; follows from items
}

// Run is the active run.
type Run struct {
	Queued
	Phase     string // place on the process path
	Contract  *Pinned
	Turn      int // from 1; a repair keeps the number
	Steps     int
	Repairs   int
	ToolCalls int
	Usage     *llm.Usage // nil: some attempt's usage is not known
	Items     []Item     // entries of this run, without those of the open step
	Step      *Step      // the open step; nil between steps
	Waiting   bool       // for a person
	Tried     int        // number of the last step for which a compaction began
}

// Pinned is the output contract that the run must meet.
type Pinned struct {
	Schema *contract.Schema
	Budget int
}

// Step is the open logical model call of the active run.
type Step struct {
	ID      event.StepID
	Number  int
	Repair  int
	NoTools bool

	Attempt   Attempt
	Failures  int    // attempts that broke
	Abandoned int    // attempts that a former owner left behind
	RetryAt   string // planned start of the next attempt; empty: none
	Failed    *event.ModelCallFailed

	Whole  bool // the output is whole
	Finish llm.FinishReason
	Usage  *llm.Usage
	// Accepted: the answer meets the contract.
	Accepted bool
	Parts    []Item // text, reasoning and hosted blocks of the last attempt, in the order of the answer
	Calls    []*Call
	// What the last attempt that was cut in the middle had said, within MaxCut.
	// The next one is shown it; it is never part of an answer (I-20).
	Cut   []event.Content
	CutIn int // the attempt
	// What came before the provider paused, in order; it is shown to it again.
	Kept   []Item
	Paused bool // the last attempt ended in a pause
	Pauses int
	Bytes  int // of what came before the pauses, as the engine counts an answer
	// Compacted: the context was compacted because an attempt's request was too large.
	Compacted bool
	// FilesBefore: the workspace before the first call that may have changed it.
	FilesBefore *event.FileSnapshot
}

// Attempt is the last physical attempt of a step.
type Attempt struct {
	Number int
	Epoch  int64 // epoch in which it started; below the state's own it is in doubt
	Open   bool
}

// CallState is the place of a tool call in its life.
type CallState string

// The states of a call. Done is terminal; a result is kept in the call.
const (
	CallRequested CallState = "requested"
	CallAllowed   CallState = "allowed"
	CallStarted   CallState = "started"
	CallPlanned   CallState = "planned" // to be started again, at a time
	CallDone      CallState = "done"
)

// Call is a tool call of the open step.
type Call struct {
	ID         event.CallID
	Original   event.CallID // set on a person's retry: the call whose result this gives
	Name       string
	Part       int
	Arguments  canonjson.Value
	Large      event.Content // in the place of Arguments past event.InlineLimit
	Malformed  string
	Level      string
	Idempotent bool
	Hosted     bool   // run by the provider
	WireID     string // hosted: the provider's id
	MadeIn     int    // attempt of the step that asked for it
	SealedBy   string // maker of Sealed
	Sealed     string // blob that goes back with the call

	State   CallState
	Attempt int    // from 1 once started
	RetryAt string // of a planned call
	Epoch   int64  // in which it (re)started

	Result  event.Content
	IsError bool
	// InDoubt: started, stopped, and nobody knows whether the effect happened.
	InDoubt    bool
	Reason     string           // why it is in doubt
	Resolution event.Resolution // a person's word on it
}

// ItemKind says what an entry of the conversation is.
type ItemKind string

// The kinds of entries.
const (
	ItemUser      ItemKind = "user"
	ItemAsset     ItemKind = "asset" // a file of the user
	ItemText      ItemKind = "text"
	ItemReasoning ItemKind = "reasoning"
	ItemCall      ItemKind = "call"
	ItemResult    ItemKind = "result"
	ItemHosted    ItemKind = "hosted" // a block of a hosted call or its result
	ItemRepair    ItemKind = "repair" // our request for a corrected answer
)

// Item is one entry of the conversation as the model is shown it.
type Item struct {
	Kind    ItemKind
	Step    event.StepID
	Content event.Content
	Value   canonjson.Value // user: structured input; call: arguments
	Asset   *event.AssetRef
	CallID  event.CallID
	Name    string
	IsError bool
	State   string // sealed blob, for its maker alone
	Maker   string
	Part    int
	// Draft marks a wrong answer and the request to repair it: they are shown
	// within their run and dropped with its end.
	Draft bool
	// Short: the text was kept over a compaction, and is shown within TailOutput.
	Short bool
}

// Clone gives a copy that can be folded further without touching s. Entries
// and contracts are shared: they never change.
func (s *State) Clone() *State {
	c := *s
	c.Queue = make([]*Queued, len(s.Queue))
	for i, q := range s.Queue {
		qq := *q
		c.Queue[i] = &qq
	}
	c.history = s.history[:len(s.history):len(s.history)]
	if s.Window.Open != nil {
		o := *s.Window.Open
		c.Window.Open = &o
	}
	if s.Active != nil {
		r := *s.Active
		r.Items = r.Items[:len(r.Items):len(r.Items)]
		if r.Step != nil {
			st := *r.Step
			st.Parts = st.Parts[:len(st.Parts):len(st.Parts)]
			st.Kept = st.Kept[:len(st.Kept):len(st.Kept)]
			st.Cut = st.Cut[:len(st.Cut):len(st.Cut)]
			st.Calls = make([]*Call, len(r.Step.Calls))
			for i, call := range r.Step.Calls {
				cc := *call
				st.Calls[i] = &cc
			}
			r.Step = &st
		}
		c.Active = &r
	}
	return &c
}

// Size is roughly what the state takes in memory, in bytes. It does not walk
// over the past.
func (s *State) Size() int {
	n := stateBytes + s.bytes
	if sum := s.Window.Summary; sum != nil {
		n += itemBytes + len(sum.Text.Text) + len(sum.First.Text)
	}
	for _, q := range s.Queue {
		n += q.size()
	}
	if r := s.Active; r != nil {
		n += r.size() + sizeOf(r.Items)
		if r.Step != nil {
			n += sizeOf(r.Step.Parts) + sizeOf(r.Step.Kept) + min(len(r.Step.Cut)*itemBytes, MaxCut)
			for _, c := range r.Step.Calls {
				n += itemBytes + len(c.Arguments) + len(c.Large.Text) + len(c.Result.Text)
			}
		}
	}
	return n
}

// What a value takes without its texts, roughly.
const (
	stateBytes = 2 << 10
	runBytes   = 1 << 10
	itemBytes  = 256
)

func (q *Queued) size() int {
	n := runBytes + len(q.Instructions.Text)
	if q.Created != nil {
		n += len(q.Created.Metadata) + len(q.Created.Tools)*itemBytes
		for _, in := range q.Created.Input {
			n += itemBytes + len(in.Content.Text) + len(in.Value)
		}
	}
	return n
}

func sizeOf(items []Item) int {
	n := len(items) * itemBytes
	for i := range items {
		n += len(items[i].Content.Text) + len(items[i].Value)
	}
	return n
}

// call finds a call of the open step.
func (s *State) call(id event.CallID) *Call {
	if s.Active == nil || s.Active.Step == nil {
		return nil
	}
	for _, c := range s.Active.Step.Calls {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// Call finds a call of the open step of the active run, or nil.
func (s *State) Call(id event.CallID) *Call { return s.call(id) }

// HasOpenActs says whether something was begun whose outcome is not recorded.
// An owner that did not begin it itself must raise the epoch first.
func (s *State) HasOpenActs() bool {
	if s.Window.Open != nil && s.Window.Open.Attempt.Open {
		return true
	}
	if s.Active == nil || s.Active.Step == nil {
		return false
	}
	if s.Active.Step.Attempt.Open {
		return true
	}
	for _, c := range s.Active.Step.Calls {
		if c.State == CallStarted {
			return true
		}
	}
	return false
}

// local says whether the step's answer calls a tool that runs here.
func (st *Step) local() bool {
	for _, c := range st.Calls {
		if !c.Hosted {
			return true
		}
	}
	return false
}

// tool gives what the run captured of a tool, or nil.
func (r *Run) tool(name string) *event.CapturedTool {
	for i := range r.Created.Tools {
		if r.Created.Tools[i].Name == name {
			return &r.Created.Tools[i]
		}
	}
	return nil
}
