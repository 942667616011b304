package span

import (
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// Folder folds the events of one run, in order. The zero value is not ready: see New.
type Folder struct {
	run     event.RunID
	trace   Trace
	byID    map[ID]int // of open spans: place in trace.Spans
	begun   map[ID]bool
	tools   []string // names that the run captured: any other is a model's own
	step    ID       // of the open turn; zero: none
	attempt ID       // of the open model call
	route   event.Route
	ended   bool
}

// New makes the folder of a run.
func New(run event.RunID) *Folder {
	return &Folder{run: run, trace: Trace{ID: TraceOf(run)}, byID: map[ID]int{}, begun: map[ID]bool{}}
}

// Add folds one event; those of other runs and those without data change
// nothing. Events are decoded.
func (f *Folder) Add(e *event.Event) {
	if e.RunID != f.run || e.Data == nil || f.ended {
		return
	}
	switch d := e.Data.(type) {
	case *event.RunCreated:
		f.created(e, d)
	case *event.RunStarted:
		f.end(f.id("queue"), e.Time, "")
	case *event.NeedsAttention:
		f.begin(f.id("wait"+strconv.FormatInt(e.Seq, 10)), f.root(), "wait", Internal, e.Time, str("holdfast.wait.for", "attention"), num("holdfast.wait.calls", int64(len(d.Calls))))
	case *event.RunResumed:
		f.endWaits(e.Time)
	case *event.RunCompleted:
		f.finish(e, "completed", "", &d.Totals)
	case *event.RunFailed:
		f.finish(e, "failed", word(d.Code), &d.Totals)
	case *event.RunCancelled:
		f.finish(e, "cancelled", "", &d.Totals)
	case *event.RunInterrupted:
		f.finish(e, "interrupted", "", &d.Totals)
	case *event.ContractChecked:
		f.mark(f.root(), e.Time, "contract.checked", str("holdfast.contract.gate", word(d.Gate)), Attr{"holdfast.contract.ok", d.OK})
	case *event.RepairRequested:
		f.mark(f.root(), e.Time, "contract.repair.requested", num("holdfast.repair.attempt", int64(d.Attempt)))
	default:
		if !f.model(e) {
			f.tool(e)
		}
	}
}

// Ended says whether the run's end was folded.
func (f *Folder) Ended() bool { return f.ended }

// Trace gives the spans. What is open ends with the run; a run that is not at
// its end has none.
func (f *Folder) Trace() Trace {
	if !f.ended {
		return Trace{ID: f.trace.ID}
	}
	return f.trace
}

func (f *Folder) root() ID          { return f.id("run") }
func (f *Folder) id(kind string) ID { return idOf(kind, string(f.run)) }

func (f *Folder) created(e *event.Event, d *event.RunCreated) {
	f.route = d.Route
	for _, t := range d.Tools {
		f.tools = append(f.tools, t.Name)
	}
	name := "invoke_agent"
	attrs := []Attr{
		str("gen_ai.operation.name", "invoke_agent"), str("gen_ai.provider.name", provider(d.Route.Provider)),
		str("gen_ai.request.model", d.Route.Model), str("gen_ai.conversation.id", string(e.SessionID)),
		str("holdfast.run.id", string(e.RunID)), str("holdfast.route", d.Route.Name),
	}
	if e.AgentID != "" {
		attrs = append(attrs, str("gen_ai.agent.id", e.AgentID))
	}
	f.begin(f.root(), ID{}, name, Internal, e.Time, attrs...)
	f.begin(f.id("queue"), f.root(), "queue", Internal, e.Time)
}

// finish ends the run, and with it all that is open.
func (f *Folder) finish(e *event.Event, status, failure string, totals *event.Totals) {
	root := f.root()
	for _, i := range sortedPlaces(f.byID) {
		if s := &f.trace.Spans[i]; s.ID != root {
			s.Attrs = append(s.Attrs, Attr{"holdfast.unfinished", true})
			f.end(s.ID, e.Time, "")
		}
	}
	f.set(root, str("holdfast.run.status", status), num("holdfast.run.turns", int64(totals.Turns)), num("holdfast.run.repairs", int64(totals.Repairs)))
	f.set(root, usage(totals.Usage)...)
	f.end(root, e.Time, failure)
	f.ended = true
}

func (f *Folder) model(e *event.Event) bool {
	switch d := e.Data.(type) {
	case *event.StepStarted:
		f.step = idOf("step", string(e.StepID))
		name := "turn " + strconv.Itoa(e.Turn)
		attrs := []Attr{str("holdfast.step.id", string(e.StepID)), num("holdfast.turn", int64(e.Turn))}
		if d.Repair > 0 {
			name, attrs = "repair "+strconv.Itoa(d.Repair), append(attrs, num("holdfast.repair.attempt", int64(d.Repair)))
		}
		f.begin(f.step, f.root(), name, Internal, e.Time, attrs...)
	case *event.StepEnded:
		f.end(idOf("step", string(e.StepID)), e.Time, "")
	case *event.StepFailed:
		f.end(idOf("step", string(e.StepID)), e.Time, word(d.Class))
	case *event.ModelCallStarted:
		f.attempt = idOf("attempt", string(e.StepID)+"/"+strconv.Itoa(d.Attempt))
		f.begin(f.attempt, idOf("step", string(e.StepID)), "chat "+d.Model, Client, e.Time,
			str("gen_ai.operation.name", "chat"), str("gen_ai.provider.name", provider(d.Provider)), str("gen_ai.request.model", d.Model),
			Attr{"gen_ai.request.stream", true}, str("gen_ai.conversation.id", string(e.SessionID)), str("holdfast.route", d.Route),
			num("holdfast.attempt", int64(d.Attempt)))
	case *event.ModelCallCompleted:
		id := idOf("attempt", string(e.StepID)+"/"+strconv.Itoa(d.Attempt))
		f.set(id, Attr{"gen_ai.response.time_to_first_chunk", float64(d.FirstOutputMS) / 1000})
		f.set(id, usage(d.Usage)...)
		f.end(id, e.Time, "")
	case *event.ModelCallFailed:
		id := idOf("attempt", string(e.StepID)+"/"+strconv.Itoa(d.Attempt))
		if d.Status != 0 {
			f.set(id, num("http.response.status_code", int64(d.Status)))
		}
		f.end(id, e.Time, word(d.Class))
	case *event.CompactionStarted:
		parent := f.root()
		if _, open := f.byID[f.step]; open {
			parent = f.step
		}
		f.begin(idOf("step", string(e.StepID)), parent, "compact_context", Internal, e.Time,
			str("holdfast.compaction.reason", word(string(d.Reason))), num("holdfast.compaction.entries", int64(d.Entries)), num("holdfast.compaction.tokens_before", d.Tokens))
	case *event.ContextCompacted:
		id := idOf("step", string(e.StepID))
		f.set(id, num("holdfast.compaction.tokens_after", d.Tokens))
		f.end(id, e.Time, "")
	case *event.CompactionFailed:
		f.end(idOf("step", string(e.StepID)), e.Time, word(d.Code))
	case *event.RetryScheduled:
		f.mark(idOf("step", string(e.StepID)), e.Time, "model.retry.scheduled", str("error.type", word(d.Class)), num("holdfast.attempt", int64(d.Attempt)))
	case *event.InferenceCompleted:
		// The attempt has ended in the same append; its reason to stop is known now.
		if i := f.find(f.attempt); i >= 0 {
			f.trace.Spans[i].Attrs = append(f.trace.Spans[i].Attrs, Attr{"gen_ai.response.finish_reasons", []string{word(d.Finish)}})
		}
	default:
		return false
	}
	return true
}

func (f *Folder) tool(e *event.Event) {
	id := idOf("call", string(e.CallID))
	switch d := e.Data.(type) {
	case *event.ToolRequested:
		name := f.toolName(d.Name)
		attrs := []Attr{
			str("gen_ai.operation.name", "execute_tool"), str("gen_ai.tool.name", name), str("gen_ai.tool.call.id", string(e.CallID)),
			str("gen_ai.tool.type", "function"), str("gen_ai.conversation.id", string(e.SessionID)),
		}
		if l := word(d.Level); d.Level != "" {
			attrs = append(attrs, str("holdfast.tool.level", l))
		}
		if d.Original != "" {
			attrs = append(attrs, str("holdfast.tool.retry_of", string(d.Original)))
		}
		f.begin(id, idOf("step", string(e.StepID)), "execute_tool "+name, Internal, e.Time, attrs...)
	case *event.ToolStarted:
		f.mark(id, e.Time, "tool.call.started")
	case *event.ToolRetrying:
		f.mark(id, e.Time, "tool.call.retrying", num("holdfast.attempt", int64(d.Attempt)))
	case *event.ToolCompleted:
		f.end(id, e.Time, "")
	case *event.ToolFailed:
		f.end(id, e.Time, "tool_error")
	case *event.ToolTimeout:
		f.end(id, e.Time, "timeout")
	case *event.ToolRejected:
		f.end(id, e.Time, "rejected_"+word(d.By))
	case *event.ToolInterrupted:
		f.end(id, e.Time, "interrupted")
	}
}

// toolName is the name of a tool that the run has; a model may ask for anything.
func (f *Folder) toolName(name string) string {
	if slices.Contains(f.tools, name) {
		return name
	}
	return "unknown"
}

// begin opens a span; one that has no place is counted. A second beginning
// changes nothing, and a span whose parent is not there stands under the run.
func (f *Folder) begin(id, parent ID, name string, kind Kind, at time.Time, attrs ...Attr) {
	if f.begun[id] {
		return
	}
	if len(f.trace.Spans) >= MaxSpans {
		f.trace.Dropped++
		return
	}
	if parent != (ID{}) && !f.begun[parent] {
		parent = f.root()
	}
	f.begun[id] = true
	f.byID[id] = len(f.trace.Spans)
	f.trace.Spans = append(f.trace.Spans, Span{ID: id, Parent: parent, Name: name, Kind: kind, Start: at, Attrs: attrs})
}

// end closes an open span. A late end of what is closed changes nothing (I-14).
func (f *Folder) end(id ID, at time.Time, failure string) {
	i, open := f.byID[id]
	if !open {
		return
	}
	delete(f.byID, id)
	s := &f.trace.Spans[i]
	s.End = at
	if failure != "" {
		s.Error = failure
		s.Attrs = append(s.Attrs, str("error.type", failure))
	}
}

func (f *Folder) endWaits(at time.Time) {
	for _, i := range sortedPlaces(f.byID) {
		if s := &f.trace.Spans[i]; s.Name == "wait" {
			f.end(s.ID, at, "")
		}
	}
}

func (f *Folder) set(id ID, attrs ...Attr) {
	if i, open := f.byID[id]; open {
		f.trace.Spans[i].Attrs = append(f.trace.Spans[i].Attrs, attrs...)
	}
}

func (f *Folder) mark(id ID, at time.Time, name string, attrs ...Attr) {
	if i, open := f.byID[id]; open && len(f.trace.Spans[i].Marks) < MaxMarks {
		f.trace.Spans[i].Marks = append(f.trace.Spans[i].Marks, Mark{name, at, attrs})
	}
}

// find gives the place of a span, open or not, near the end of the trace; -1: none.
func (f *Folder) find(id ID) int {
	for i, s := range slices.Backward(f.trace.Spans) {
		if s.ID == id {
			return i
		}
	}
	return -1
}

func sortedPlaces(open map[ID]int) []int {
	list := make([]int, 0, len(open))
	for _, i := range open {
		list = append(list, i)
	}
	slices.Sort(list)
	return list
}
