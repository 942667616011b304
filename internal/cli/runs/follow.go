package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// errWaiting ends a follow: the run waits for a person.
var errWaiting = errors.New("the run waits for a person")

// follower tells a run's events as lines for a person.
type follower struct {
	w    io.Writer
	live bool // show deltas: a person watches
	open bool // a line of deltas is not ended

	deaf  bool              // it was said that there is no live text
	tools map[string]string // names of calls
}

// fields are the members of event data that are told.
type fields struct {
	Number      int             `json:"number"`
	Repair      int             `json:"repair"`
	NoTools     bool            `json:"no_tools"`
	Attempt     int             `json:"attempt"`
	Budget      int             `json:"budget"`
	Name        string          `json:"name"`
	Arguments   json.RawMessage `json:"arguments"`
	Message     json.RawMessage `json:"message"`
	Error       string          `json:"error"`
	OK          bool            `json:"ok"`
	Class       string          `json:"class"`
	At          string          `json:"at"`
	Code        string          `json:"code"`
	Outcome     string          `json:"outcome"`
	DurationMS  int64           `json:"duration_ms"`
	Model       string          `json:"model"`
	Route       string          `json:"route"`
	Decision    string          `json:"decision"`
	Reason      string          `json:"reason"`
	OutputKind  string          `json:"output_kind"`
	Partial     bool            `json:"partial"`
	Resolution  string          `json:"resolution"`
	Fingerprint string          `json:"fingerprint"`
	Entries     int             `json:"entries"`
	Tokens      int64           `json:"tokens"`
}

// event tells one event; most say nothing that a person must see.
func (v *follower) event(e *api.Event) {
	var d fields
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return // an event of a newer daemon
		}
	}
	if line := v.describe(e, &d); line != "" {
		v.endLine()
		fmt.Fprintf(v.w, "%s  %s\n", e.Time.Local().Format("15:04:05.000"), words.Clean(line))
	}
}

func (v *follower) describe(e *api.Event, d *fields) string {
	switch e.Type {
	case "run.queued":
		return "queued"
	case "run.started":
		return "started"
	case "step.started":
		switch {
		case d.Repair > 0:
			return fmt.Sprintf("turn %d, repair %d: tools withheld", e.Turn, d.Repair)
		case d.NoTools:
			return fmt.Sprintf("turn %d, the last one: tools withheld", e.Turn)
		}
		return fmt.Sprintf("turn %d", e.Turn)
	case "model.call.started":
		if d.Attempt > 1 {
			return fmt.Sprintf("  attempt %d at %s", d.Attempt, d.Model)
		}
		return "  asks " + d.Model
	case "model.call.failed":
		return fmt.Sprintf("  attempt %d failed: %s: %s", d.Attempt, d.Class, unquote(d.Message))
	case "model.retry.scheduled":
		return "  tries again at " + d.At
	case "context.compaction.started":
		return fmt.Sprintf("compacts the context: a summary of %d entries", d.Entries)
	case "context.compaction.failed":
		return "  ✗ the context is not compacted: " + unquote(d.Message)
	case "context.compacted":
		return fmt.Sprintf("  ✓ the context is compacted, to about %d tokens", d.Tokens)
	case "tool.call.requested":
		if v.tools == nil {
			v.tools = map[string]string{}
		}
		v.tools[e.CallID] = d.Name
		return fmt.Sprintf("  → %s %s", d.Name, words.Short(string(d.Arguments)))
	case "tool.call.rejected":
		return fmt.Sprintf("  ✗ %s rejected: %s", v.tools[e.CallID], unquote(d.Message))
	case "tool.call.completed":
		return fmt.Sprintf("  ← %s in %d ms", v.tools[e.CallID], d.DurationMS)
	case "tool.call.failed", "tool.call.timeout":
		return because(fmt.Sprintf("  ✗ %s failed", v.tools[e.CallID]), unquote(d.Message))
	case "tool.call.retrying":
		return fmt.Sprintf("  ↻ %s again: %s", v.tools[e.CallID], d.Reason)
	case "tool.call.interrupted":
		if d.Outcome != "" {
			return because(fmt.Sprintf("  ? %s interrupted, outcome %s", v.tools[e.CallID], d.Outcome), words.Cut(d.Reason, maxReason))
		}
		return because(fmt.Sprintf("  ✗ %s interrupted", v.tools[e.CallID]), words.Cut(d.Reason, maxReason))
	case "contract.checked":
		if d.OK {
			return "  ✓ the answer meets the contract"
		}
		return "  ✗ the answer breaks the contract: " + d.Error
	case "contract.repair.requested":
		return fmt.Sprintf("repair %d of at most %d", d.Attempt, d.Budget)
	case "run.needs_attention":
		return "waits for a person"
	case "run.resumed":
		return "resumed"
	case "run.completed", "run.cancelled", "run.interrupted":
		return because(strings.TrimPrefix(e.Type, "run."), words.Cut(d.Reason, maxReason))
	case "run.failed":
		return "failed: " + unquote(d.Message)
	}
	return ""
}

// because adds a reason, if there is one.
func because(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + reason
}

// delta shows streamed text where a person watches.
func (v *follower) delta(d *api.Delta) {
	if !v.live || d.Type != "text.delta" {
		return
	}
	if !v.open {
		fmt.Fprint(v.w, "              ")
		v.open = true
	}
	fmt.Fprint(v.w, words.Clean(d.Text))
}

// from says once that there is no live text, and why.
func (v *follower) from(where string) {
	if !v.live || v.deaf || where != api.LiveNone {
		return
	}
	v.deaf = true
	v.endLine()
	fmt.Fprintln(v.w, "live text is not available here as long as this node does not do the work, since there is no bus; texts come when they are whole")
}

// gap marks a place where live text is missing; the whole comes with its end.
func (v *follower) gap() {
	if v.live && v.open {
		fmt.Fprint(v.w, " […] ")
	}
}

func (v *follower) endLine() {
	if v.open {
		fmt.Fprintln(v.w)
		v.open = false
	}
}

// maxReason is how much of the reason of a failure is shown, in runes.
const maxReason = 300

// unquote gives the text of a JSON string or of an event content.
func unquote(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return words.Cut(s, maxReason)
	}
	var c struct{ Text string }
	if json.Unmarshal(raw, &c) == nil {
		return words.Cut(c.Text, maxReason)
	}
	return ""
}
