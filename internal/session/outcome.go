package session

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// OutputPart is one part of a model's answer as the engine collected it.
type OutputPart struct {
	Kind  llm.PartKind // TextEnd, ReasoningEnd, ToolCallWhole, HostedCall or HostedResult
	Index int
	Text  string // whole value, or what had come of it
	Name  string
	Open  bool // its end never came
	// Invalid says why a call's arguments do not meet the tool's schema.
	Invalid string
	State   string // reference of the sealed blob that goes back to its maker
	Maker   string
	WireID  string // hosted calls and results: what pairs them
	IsError bool   // of a hosted result
}

// Answer is what one attempt gave, whole or broken.
type Answer struct {
	Parts       []OutputPart
	Finish      llm.FinishReason
	RawFinish   string
	Usage       *llm.Usage
	Bytes       int // of the answer, with those of the step before its pauses
	Duration    time.Duration
	FirstOutput time.Duration
}

// calls says whether the answer calls a tool that runs here.
func (a *Answer) calls() bool {
	for i := range a.Parts {
		if a.Parts[i].Kind == llm.ToolCallWhole {
			return true
		}
	}
	return false
}

// hasOutput says whether some of the answer proper had come: text or a call.
func (a *Answer) hasOutput() bool {
	for i := range a.Parts {
		if a.Parts[i].Kind != llm.ReasoningEnd && (a.Parts[i].Text != "" || a.Parts[i].Name != "") {
			return true
		}
	}
	return false
}

// Answered tells a whole answer as events: parts, the attempt's end, the calls
// as requested, and that the step's output is whole. No tool starts before that
// (I-13). Hosted calls are told with their outcome. After a pause the output is
// not whole: the provider goes on in the step's next attempt, and a hosted call
// may stay open until then. A result whose call was ended before it came (it
// waited for calls that run here) ends nothing, but goes back to the provider
// in its place.
func Answered(s *State, a *Answer) []event.Event {
	st := s.Active.Step
	w := newScript(s)
	msg := messageID(st.ID)
	paused := a.Finish == llm.FinishPause && !a.calls()
	calls := 0
	for i := range a.Parts {
		p := &a.Parts[i]
		switch p.Kind {
		case llm.TextEnd:
			if p.Text != "" {
				w.add(&event.TextEnded{Content: event.TextContent(p.Text), Maker: p.Maker, MessageID: msg, Part: p.Index, State: p.State})
			}
		case llm.ReasoningEnd:
			w.add(&event.ReasoningEnded{Maker: p.Maker, MessageID: msg, Part: p.Index, State: p.State})
		}
	}
	whole := &event.ModelCallCompleted{
		Attempt: st.Attempt.Number, DurationMS: a.Duration.Milliseconds(), FirstOutputMS: a.FirstOutput.Milliseconds(),
		Paused: paused, RawFinish: bounded(a.RawFinish, 64), Usage: TokenUsage(a.Usage),
	}
	if paused { // what it may still grow by is counted from here
		whole.AnswerBytes = a.Bytes
	}
	w.add(whole)
	open := st.openHosted()
	for i := range a.Parts {
		switch p := &a.Parts[i]; p.Kind {
		case llm.ToolCallWhole:
			calls++
			s.requested(w, p, msg)
		case llm.HostedCall:
			calls++
			wire := WireID(p.WireID)
			if id, ok := open[wire]; ok { // an id that is given again ends the call that had it
				w.failHosted([]event.CallID{id})
			}
			open[wire] = s.requestedHosted(w, p, msg)
		case llm.HostedResult:
			wire := WireID(p.WireID)
			if id, ok := open[wire]; ok {
				w.about(id, hostedOutcome(p))
				delete(open, wire)
			} else if p.State != "" {
				w.add(&event.ReasoningEnded{Maker: p.Maker, MessageID: msg, Part: p.Index, State: p.State})
			}
		}
	}
	if paused {
		return w.out
	}
	w.failHosted(slices.Sorted(maps.Values(open))) // I-12
	w.add(&event.InferenceCompleted{Calls: calls, Finish: string(a.Finish), MessageID: msg})
	w.enter(PhaseAction)
	return w.out
}

// requested records a call as the model asked for it.
func (s *State) requested(w *script, p *OutputPart, msg string) {
	d := &event.ToolRequested{MessageID: msg, Name: cleanName(p.Name), Part: p.Index}
	if t := s.Active.tool(d.Name); t != nil {
		d.Level, d.Source = t.Level, t.Source
	}
	d.State, d.Maker = p.State, p.Maker
	args, err := canonjson.Canonicalize([]byte(p.Text), canonjson.Limits{})
	switch most := canonjson.DefaultLimits().Bytes; {
	case len(p.Text) > most:
		d.Malformed, d.Raw = "they are larger than "+strconv.Itoa(most)+" bytes", event.TextContent(p.Text)
	case err != nil:
		d.Malformed, d.Raw = "not one strict JSON value", event.TextContent(p.Text)
	case args[0] != '{':
		d.Malformed, d.Raw = "JSON, but not an object", event.TextContent(p.Text)
	default:
		d.Malformed = p.Invalid
		if len(args) > event.InlineLimit {
			d.Large = event.Content{Text: string(args)}
		} else {
			d.Arguments = args
		}
	}
	w.about(CallIDAt(w.step, s.Active.Step.Attempt.Number, p.Index), d)
}

// openHosted gives the hosted calls that a pause left without a result, by the
// provider's ids.
func (st *Step) openHosted() map[string]event.CallID {
	open := map[string]event.CallID{}
	for _, c := range st.Calls {
		if c.Hosted && c.State != CallDone {
			open[c.WireID] = c.ID
		}
	}
	return open
}

// maxWireID bounds a provider's call id in the log, in bytes.
const maxWireID = 128

// WireID is a provider's call id as it is kept.
func WireID(id string) string { return bounded(id, maxWireID) }

// requestedHosted records a call that the provider runs, and gives its id.
func (s *State) requestedHosted(w *script, p *OutputPart, msg string) event.CallID {
	d := &event.ToolRequested{
		Level: "read", Maker: p.Maker, MessageID: msg, Name: cleanName(p.Name), Part: p.Index, Source: SourceHosted, State: p.State,
		WireID: WireID(p.WireID),
	}
	args, err := canonjson.Canonicalize([]byte(p.Text), canonjson.Limits{})
	switch {
	case err != nil || args[0] != '{':
		d.Raw = event.TextContent(p.Text)
	case len(args) > event.InlineLimit:
		d.Large = event.Content{Text: string(args)}
	default:
		d.Arguments = args
	}
	id := CallIDAt(w.step, s.Active.Step.Attempt.Number, p.Index)
	w.about(id, d)
	return id
}

func hostedOutcome(p *OutputPart) event.Data {
	if p.IsError {
		return &event.ToolFailed{Maker: p.Maker, Message: event.TextContent(p.Text), Part: p.Index, State: p.State}
	}
	return &event.ToolCompleted{Maker: p.Maker, Output: event.TextContent(p.Text), Part: p.Index, State: p.State}
}

// failHosted closes hosted calls whose results never came.
func (w *script) failHosted(ids []event.CallID) {
	for _, id := range ids {
		w.about(id, &event.ToolFailed{Message: event.Content{Text: TextNoHostedResult}})
	}
}

// closeHosted closes the hosted calls that a pause left open, before the step ends.
func (w *script) closeHosted(st *Step) { w.failHosted(slices.Sorted(maps.Values(st.openHosted()))) }

// cleanName bounds what a model may put as a tool's name into the log.
func cleanName(name string) string { return bounded(name, 128) }

// bounded makes a word or a text of a vendor fit for the log: valid UTF-8 of
// at most n bytes. What is not could not be appended at all.
func bounded(text string, n int) string {
	clean, _ := canonjson.ReplaceInvalid(text)
	return canonjson.CutRunes(clean, n)
}

// Failed tells a broken attempt as events. Text that had come is closed as
// partial (I-19) and is never part of the answer (I-20). Another attempt is
// planned within the budget, for classes that it may help, also where some of
// the answer had come: nothing of that has run (I-13), and the next attempt is
// shown the text. now and jitter in [0,1) place it in time.
func Failed(s *State, a *Answer, e *llm.Error, now time.Time, jitter float64) []event.Event {
	st := s.Active.Step
	w := newScript(s)
	msg := messageID(st.ID)
	for i := range a.Parts {
		p := &a.Parts[i]
		switch {
		case p.Kind == llm.TextEnd && p.Text != "":
			w.add(&event.TextEnded{Content: event.TextContent(p.Text), MessageID: msg, Part: p.Index, Partial: true})
		case p.Kind == llm.ReasoningEnd:
			w.add(&event.ReasoningEnded{Maker: p.Maker, MessageID: msg, Part: p.Index, Partial: true})
		case p.Kind == llm.ToolCallWhole, p.Kind == llm.HostedCall:
			w.add(&event.ToolInputEnded{Content: event.TextContent(p.Text), MessageID: msg, Name: cleanName(p.Name), Part: p.Index, Partial: true})
		}
	}
	d := &event.ModelCallFailed{
		Attempt: st.Attempt.Number, Class: string(e.Class), Code: bounded(e.Code, 64), DurationMS: a.Duration.Milliseconds(),
		Message: bounded(e.Message, 1024), Output: a.hasOutput(), Status: e.Status,
	}
	w.add(d)
	if r := retriesOf(s.Active.Created.Route); e.Class.Retryable() && st.Failures < r.most && s.Active.Stop == nil {
		at := now.Add(r.delay(st.Failures, e.RetryAfter, jitter))
		w.add(&event.RetryScheduled{At: event.FormatTime(at), Attempt: st.Attempt.Number + 1, Class: d.Class})
	}
	return w.out
}

// Defaults of retries; see retries.
const (
	DefaultInitialBackoff = time.Second
	DefaultBackoffPercent = 200
	DefaultMaxBackoff     = 15 * time.Minute
)

// retries are how often is tried again, and when: exponential, with jitter upwards,
// never below what the vendor asked for, and never past the cap.
type retries struct {
	most          int // further attempts after the first that failed
	base, longest time.Duration
	percent       int
}

// retriesOf are those that a route is pinned with.
func retriesOf(route event.Route) retries {
	r := retries{DefaultMaxAttempts - 1, DefaultInitialBackoff, DefaultMaxBackoff, DefaultBackoffPercent}
	set := route.Retries
	if set.MaxAttempts > 0 {
		r.most = set.MaxAttempts - 1
	}
	if set.InitialBackoffMS > 0 {
		r.base = time.Duration(set.InitialBackoffMS) * time.Millisecond
	}
	if set.MaxBackoffMS > 0 {
		r.longest = time.Duration(set.MaxBackoffMS) * time.Millisecond
	}
	if set.BackoffPercent >= 100 {
		r.percent = set.BackoffPercent
	}
	return r
}

// delay is the wait behind an attempt that failed after so many that did before.
func (r retries) delay(failures int, after time.Duration, jitter float64) time.Duration {
	d := min(r.base, r.longest)
	for i := 0; i < failures && d < r.longest && r.percent > 100; i++ {
		d = min(d/100*time.Duration(r.percent), r.longest)
	}
	d += time.Duration(float64(d) * jitter / 2)
	return min(max(d, after), r.longest)
}

// ToolOutcome is what came of one call.
type ToolOutcome struct {
	Output   event.Content // what the model sees
	Paths    []string      // blobs that hold what was cut off
	Total    int           // size of the whole result where Output is cut, in bytes
	Failed   bool          // Output is the message
	Timeout  bool
	Unknown  bool   // the effect may have happened, nobody knows
	Reason   string // of an unknown outcome: what is known, bounded
	Stopped  bool   // we stopped it
	Duration time.Duration
}

// ToolEnded tells the outcome of a call as events; of a call that is not in
// flight there are none. An unknown outcome of a
// call that may be repeated under its idempotency key starts it again, a
// bounded number of times; of any other call with an effect it is in doubt.
func ToolEnded(s *State, id event.CallID, o *ToolOutcome, now time.Time, jitter float64) []event.Event {
	c := s.call(id)
	if c == nil || c.State != CallStarted {
		return nil // late (I-14)
	}
	w := newScript(s)
	ms := o.Duration.Milliseconds()
	effect := effect(c)
	switch {
	case o.Stopped, o.Unknown && effect, o.Timeout && effect:
		if c.Idempotent && !o.Stopped && c.Attempt < MaxToolAttempts {
			at := event.FormatTime(now.Add(retriesOf(event.Route{}).delay(c.Attempt-1, 0, jitter)))
			w.about(id, &event.ToolRetrying{At: at, Attempt: c.Attempt + 1, Reason: reasonOf(o)})
			break
		}
		d := &event.ToolInterrupted{Message: TextInterrupted, Reason: reasonOf(o)}
		if effect {
			d.Outcome = OutcomeUnknown
		}
		w.about(id, d)
	case o.Timeout:
		w.about(id, &event.ToolTimeout{AfterMS: ms, Message: "The tool did not answer in time."})
	case o.Failed, o.Unknown:
		w.about(id, &event.ToolFailed{DurationMS: ms, Message: o.Output})
	default:
		w.about(id, &event.ToolCompleted{DurationMS: ms, Output: o.Output, OutputPaths: o.Paths, TotalBytes: o.Total})
	}
	return w.out
}

func reasonOf(o *ToolOutcome) string {
	switch {
	case o.Stopped:
		return "the run was stopped"
	case o.Timeout:
		return "no answer in time"
	}
	if o.Reason != "" {
		return o.Reason
	}
	return "the answer was lost"
}

// FailedText is the text of a tool failure as the model sees it.
func FailedText(message string) string { return failedText(message) }
