package session

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Apply folds one event into the state. Events come in order, decoded. A late
// fact about something that is closed changes nothing (I-05, I-14). An error
// means that the log holds what these rules cannot have written.
func (s *State) Apply(e *event.Event) error {
	if e.Seq != s.Head+1 {
		return fmt.Errorf("fold %s: sequence %d follows %d", e.Stream, e.Seq, s.Head)
	}
	if e.Epoch < s.Epoch { // I-15
		return fmt.Errorf("fold %s#%d: epoch %d after %d", e.Stream, e.Seq, e.Epoch, s.Epoch)
	}
	s.Head, s.Epoch = e.Seq, e.Epoch
	if e.FSMState != "" && s.Active != nil && s.Active.ID == e.RunID {
		s.Active.Phase = e.FSMState
	}
	switch d := e.Data.(type) {
	case *event.SessionCreated:
		s.ID, s.UserID, s.ThreadID, s.Status = e.SessionID, e.UserID, d.ThreadID, Open
		s.Settings, s.SettingsVersion = d.Settings, 1
		return s.compile()
	case *event.SessionUpdated:
		s.Settings.Take(d)
		s.SettingsVersion = d.Version
		if s.Active == nil { // a run that has begun keeps what it is shown
			s.trim()
		}
		return s.compile()
	case *event.SessionClosed:
		s.Status = Closed
	case *event.SessionErased:
		*s = State{ID: e.SessionID, UserID: e.UserID, Status: Erased, Head: e.Seq, Epoch: e.Epoch, Owner: s.Owner}
	case *event.OwnerClaimed:
		s.Owner = d.Owner
	case *event.RunCreated:
		s.Queue = append(s.Queue, &Queued{ID: e.RunID, Seq: e.Seq, Created: d, Instructions: s.Settings.Instructions})
	case *event.CancelRequested:
		s.stop(e.RunID, &Stop{Reason: d.Reason})
	case *event.InterruptRequested:
		s.stop(e.RunID, &Stop{Interrupt: true, Reason: d.Reason})
	case *event.RunStarted:
		return s.start(e, d)
	case *event.RunCompleted:
		s.finish(e.RunID, "")
	case *event.RunFailed:
		if s.Active != nil && s.Active.ID == e.RunID && refused(d.Code) {
			s.Active.dropFiles()
			s.Window.left()
		}
		s.finish(e.RunID, NoteFailed)
	case *event.RunCancelled:
		s.finish(e.RunID, NoteStopped)
	case *event.RunInterrupted:
		s.finish(e.RunID, NoteStopped)
	default:
		if !s.applyCompaction(e) && s.Active != nil && s.Active.ID == e.RunID {
			n := len(s.Active.Items)
			s.Active.apply(s, e)
			s.counted(e, n)
		}
	}
	return nil
}

func (s *State) compile() error {
	s.outputContract = nil
	if s.Settings.OutputContract == nil {
		return nil
	}
	schema, issues := contract.ParseSchema(s.Settings.OutputContract.Schema)
	if len(issues) > 0 {
		return fmt.Errorf("fold session %s: stored output contract: %s", s.ID, issues[0])
	}
	s.outputContract = schema
	return nil
}

func (s *State) stop(id event.RunID, stop *Stop) {
	if s.Active != nil && s.Active.ID == id {
		if s.Active.Stop == nil {
			s.Active.Stop = stop
		}
		return
	}
	for _, q := range s.Queue {
		if q.ID == id && q.Stop == nil && !stop.Interrupt {
			q.Stop = stop
		}
	}
}

func (s *State) start(e *event.Event, d *event.RunStarted) error {
	if s.Active != nil || len(s.Queue) == 0 || s.Queue[0].ID != e.RunID {
		return fmt.Errorf("fold %s#%d: run %s cannot start", e.Stream, e.Seq, e.RunID) // I-06
	}
	q := s.Queue[0]
	s.Queue = s.Queue[1:]
	r := &Run{Queued: *q, Usage: &llm.Usage{}, Phase: PhaseIdle}
	if d.OutputContract != nil {
		schema, issues := contract.ParseSchema(d.OutputContract.Schema)
		if len(issues) > 0 {
			return fmt.Errorf("fold %s#%d: pinned contract: %s", e.Stream, e.Seq, issues[0])
		}
		r.Contract = &Pinned{Schema: schema, Budget: d.OutputContract.MaxRepairAttempts}
	}
	r.Items = itemsOf(q.Created)
	s.Active = r
	s.Window.enters(r.Items)
	return nil
}

// itemsOf gives the entries of a run's task.
func itemsOf(c *event.RunCreated) []Item {
	items := make([]Item, 0, len(c.Input))
	for _, in := range c.Input {
		if in.Asset != nil {
			items = append(items, Item{Kind: ItemAsset, Asset: in.Asset})
			continue
		}
		items = append(items, Item{Kind: ItemUser, Content: in.Content, Value: in.Value})
	}
	return items
}

// refused says whether a run failed because the model would not take its request.
func refused(code string) bool {
	switch code {
	case "model_" + string(llm.InvalidRequest), "model_" + string(llm.ContentFilter), "model_" + string(llm.ContextOverflow):
		return true
	}
	return false
}

// dropFiles leaves of the run's files their names. A file that a vendor refuses
// by a limit of its own would have every later run of the session refused.
func (r *Run) dropFiles() {
	r.Items = slices.Clone(r.Items)
	for i := range r.Items {
		if a := r.Items[i].Asset; a != nil {
			text := "[The file " + fileLabel(a) + " is not shown any more: the request that it was part of was refused. If it is needed, it must be handed in again.]"
			r.Items[i] = Item{Kind: ItemUser, Content: event.Content{Text: text}}
		}
	}
}

// finish ends a run, queued or active. What a later run may be shown of it is
// its input, its settled steps and its answer; drafts are dropped. A note
// closes a task that got no answer, so that no later run takes it up again.
func (s *State) finish(id event.RunID, note string) {
	for i, q := range s.Queue {
		if q.ID == id {
			s.Queue = append(s.Queue[:i:i], s.Queue[i+1:]...)
			return
		}
	}
	if s.Active == nil || s.Active.ID != id {
		return // a second terminal changes nothing (I-05)
	}
	var kept []Item
	for _, it := range s.Active.Items {
		if !it.Draft {
			kept = append(kept, it)
		}
	}
	if len(kept) < len(s.Active.Items) {
		s.Window.left()
	}
	if note != "" {
		kept = append(kept, Item{Kind: ItemText, Content: event.Content{Text: note}})
	}
	s.keep(past{seq: s.Active.Seq, items: kept})
	s.Active = nil
	s.trim()
}

// keep adds a finished run to the past.
func (s *State) keep(p past) {
	p.bytes = sizeOf(p.items)
	s.history = append(s.history, p)
	s.shown += len(p.items)
	s.bytes += p.bytes
}

// trim drops the oldest runs past the history limit; the last run stays whole.
func (s *State) trim() {
	limit := s.historyLimit()
	drop := 0
	for drop < len(s.history)-1 && s.shown > limit {
		s.shown -= len(s.history[drop].items)
		s.bytes -= s.history[drop].bytes
		s.omitted += len(s.history[drop].items)
		drop++
	}
	if drop > 0 {
		s.history = append([]past(nil), s.history[drop:]...)
		s.Window.left()
	}
}

func (s *State) historyLimit() int {
	if s.Settings.HistoryLimit > 0 {
		return s.Settings.HistoryLimit
	}
	return DefaultHistoryLimit
}

func (r *Run) apply(s *State, e *event.Event) {
	switch d := e.Data.(type) {
	case *event.StepStarted:
		if d.Repair == 0 {
			r.Turn++
		}
		r.Steps++
		r.Step = &Step{ID: e.StepID, Number: d.Number, Repair: d.Repair, NoTools: d.NoTools}
	case *event.NeedsAttention:
		r.Waiting = true
	case *event.RunResumed:
		r.Waiting = false
	case *event.RepairRequested:
		r.Repairs = d.Attempt
		r.Items = append(r.Items, Item{Kind: ItemRepair, Content: event.Content{Text: d.Error}, Draft: true})
	case *event.AttentionResolved: // a command: it knows the call, not the step
		if r.Step != nil && r.Waiting {
			r.resolve(e.CallID, d)
		}
	default:
		if r.Step != nil && r.Step.ID == e.StepID {
			r.applyStep(e)
		}
	}
}

func (r *Run) applyStep(e *event.Event) {
	st := r.Step
	switch d := e.Data.(type) {
	case *event.ModelCallStarted:
		if st.Paused { // what came stands, whatever becomes of the next attempt
			st.Kept = append(st.Kept, st.inOrder(st.Attempt.Number)...)
		}
		st.Attempt = Attempt{Number: d.Attempt, Epoch: e.Epoch, Open: true}
		st.RetryAt, st.Failed, st.Parts, st.Paused = "", nil, nil, false
	case *event.ModelCallCompleted:
		if d.Attempt == st.Attempt.Number {
			st.Attempt.Open = false
			u := usageOf(d.Usage)
			if r.Usage = r.Usage.Add(u); st.Pauses > 0 {
				u = u.Add(st.Usage)
			}
			if st.Usage = u; d.Paused {
				st.Paused = true
				st.Pauses++
				st.Bytes = d.AnswerBytes
			}
		}
	case *event.ModelCallFailed:
		if d.Attempt != st.Attempt.Number {
			return
		}
		st.Attempt.Open, st.Failed, st.Parts = false, d, nil // I-20
		if costs(d) {
			r.Usage = nil
		}
		if llm.Class(d.Class) == llm.Abandoned {
			st.Abandoned++
		} else {
			st.Failures++
		}
	case *event.RetryScheduled:
		st.RetryAt = d.At
	case *event.TextEnded:
		if d.Partial {
			st.cut(d.Content)
		} else {
			st.Parts = append(st.Parts, Item{Kind: ItemText, Step: st.ID, Content: d.Content, State: d.State, Maker: d.Maker, Part: d.Part})
		}
	case *event.ReasoningEnded:
		if !d.Partial && d.State != "" {
			st.Parts = append(st.Parts, Item{Kind: ItemReasoning, Step: st.ID, State: d.State, Maker: d.Maker, Part: d.Part})
		}
	case *event.InferenceCompleted:
		st.Whole, st.Finish = true, llm.FinishReason(d.Finish)
	case *event.ContractChecked:
		st.Accepted = d.OK
	case *event.StepEnded:
		r.endStep()
	case *event.StepFailed:
		if st.Whole && st.local() {
			r.endStep() // its effects happened: a later run must see them
		}
		r.Step = nil
	case *event.ToolRequested:
		r.request(e.CallID, d)
	case *event.ToolCompleted:
		st.hosted(d.Maker, d.State, d.Part)
		r.applyCall(e)
	case *event.ToolFailed:
		st.hosted(d.Maker, d.State, d.Part)
		r.applyCall(e)
	default:
		r.applyCall(e)
	}
}

func (r *Run) request(id event.CallID, d *event.ToolRequested) {
	c := &Call{
		ID: id, Original: d.Original, Name: d.Name, Part: d.Part, Arguments: d.Arguments, Large: d.Large,
		Malformed: d.Malformed, Level: d.Level, State: CallRequested,
		Hosted: d.Source == SourceHosted, WireID: d.WireID, MadeIn: r.Step.Attempt.Number, Sealed: d.State, SealedBy: d.Maker,
	}
	if c.Hosted {
		r.Step.hosted(d.Maker, d.State, d.Part)
	}
	if t := r.tool(d.Name); t != nil {
		c.Idempotent = t.Idempotent
	}
	r.Step.Calls = append(r.Step.Calls, c)
	r.ToolCalls++
}

// cut keeps what an attempt had said before it broke, in the place of what an
// earlier one had. After a pause nothing is kept: the provider goes on from its
// own words, which must stand last.
func (st *Step) cut(text event.Content) {
	if st.Pauses > 0 {
		return
	}
	if st.CutIn != st.Attempt.Number {
		st.Cut, st.CutIn = nil, st.Attempt.Number
	}
	have := 0
	for _, c := range st.Cut {
		have += max(c.Bytes, len(c.Text))
	}
	if have < MaxCut {
		st.Cut = append(st.Cut, shrink(text))
	}
}

// hosted keeps a block of a hosted call or of its result as the provider gave it.
func (st *Step) hosted(maker, state string, part int) {
	if state != "" {
		st.Parts = append(st.Parts, Item{Kind: ItemHosted, Step: st.ID, State: state, Maker: maker, Part: part})
	}
}

// inOrder gives the entries of one attempt in the order of its answer: parts,
// and the calls that run here.
func (st *Step) inOrder(attempt int) []Item {
	items := slices.Clone(st.Parts)
	for _, c := range st.Calls {
		if c.Original != "" || c.Hosted || c.MadeIn != attempt {
			continue
		}
		args := c.Arguments
		if args == nil && c.Large.Empty() { // what is no JSON object never goes back to a vendor
			args = canonjson.Value("{}")
		}
		items = append(items, Item{
			Kind: ItemCall, Step: st.ID, CallID: c.ID, Name: c.Name, Value: args, Content: c.Large, State: c.Sealed, Maker: c.SealedBy, Part: c.Part,
		})
	}
	slices.SortStableFunc(items, func(a, b Item) int { return a.Part - b.Part })
	return items
}

// applyCall folds what happens to a call. A closed call stays as it is (I-14).
func (r *Run) applyCall(e *event.Event) {
	var c *Call
	for _, x := range r.Step.Calls {
		if x.ID == e.CallID {
			c = x
		}
	}
	if c == nil || c.State == CallDone {
		return
	}
	switch d := e.Data.(type) {
	case *event.PolicyChecked:
		if d.Decision == "allow" {
			c.State = CallAllowed
		}
	case *event.ToolStarted:
		c.State, c.Attempt, c.Epoch = CallStarted, 1, e.Epoch
		if d.Snapshot != nil {
			r.Step.FilesBefore = d.Snapshot
		}
	case *event.ToolRetrying:
		c.State, c.Attempt, c.Epoch, c.RetryAt = CallStarted, d.Attempt, e.Epoch, d.At
		if d.At != "" {
			c.State = CallPlanned
		}
	case *event.ToolCompleted:
		c.State, c.Result = CallDone, d.Output
	case *event.ToolRejected:
		c.State, c.Result, c.IsError = CallDone, event.Content{Text: d.Message}, true
	case *event.ToolFailed:
		c.State, c.Result, c.IsError = CallDone, d.Message, true
	case *event.ToolTimeout:
		c.State, c.Result, c.IsError = CallDone, event.Content{Text: d.Message}, true
	case *event.ToolInterrupted:
		c.State, c.Result, c.IsError = CallDone, event.Content{Text: d.Message}, true
		c.Reason = d.Reason
		if c.InDoubt = d.Outcome == OutcomeUnknown; c.InDoubt {
			c.Result.Text += TextUnknown
		}
	}
}

// resolve takes a person's word on a call in doubt: it sets what the model
// sees as the call's result (I-14). The first word counts.
func (r *Run) resolve(id event.CallID, d *event.AttentionResolved) {
	for _, c := range r.Step.Calls {
		if c.ID != id || !c.InDoubt || c.Resolution != "" {
			continue
		}
		c.Resolution = d.Resolution
		switch d.Resolution {
		case event.ResolveCompleted:
			c.Result, c.IsError = d.Output, false
		case event.ResolveFailed:
			c.Result, c.IsError = event.Content{Text: failedText(d.Reason)}, true
		}
	}
}

// endStep turns the step into entries of the conversation: what the assistant
// said, in order, then the results in call order, one for each call (I-13).
func (r *Run) endStep() {
	st := r.Step
	// Also calls on a repair turn are a wrong answer (I-10).
	draft := r.Contract != nil && !st.Accepted && (!st.local() || st.Repair > 0)
	for _, it := range append(st.Kept, st.inOrder(st.Attempt.Number)...) {
		it.Content = shrink(it.Content)
		it.Draft = draft
		r.Items = append(r.Items, it)
	}
	for _, c := range st.Calls {
		if c.Original != "" || c.Hosted {
			continue
		}
		res := answerOf(st.Calls, c)
		r.Items = append(r.Items, Item{
			Kind: ItemResult, Step: st.ID, CallID: c.ID, Name: c.Name, Content: shrink(res.Result), IsError: res.IsError, Draft: draft,
		})
	}
	r.Step = nil
}

// answerOf follows a person's retries from a call to the one whose result counts.
func answerOf(calls []*Call, c *Call) *Call {
	for _, x := range calls { // a retry stands behind its original
		if x.Original == c.ID {
			c = x
		}
	}
	return c
}

// shrink keeps a large text as the reference under which it is stored.
func shrink(c event.Content) event.Content {
	if c.Ref == "" && len(c.Text) > event.InlineLimit {
		return event.Content{Bytes: len(c.Text), Ref: event.RefOf([]byte(c.Text)), Replaced: c.Replaced}
	}
	return c
}

func usageOf(u *event.TokenUsage) *llm.Usage {
	if u == nil {
		return nil
	}
	return &llm.Usage{CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, Input: u.Input, Output: u.Output, Reasoning: u.Reasoning}
}

// TokenUsage is the event's form of a usage; nil stays "not known".
func TokenUsage(u *llm.Usage) *event.TokenUsage {
	if u == nil {
		return nil
	}
	return &event.TokenUsage{CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, Input: u.Input, Output: u.Output, Reasoning: u.Reasoning}
}
