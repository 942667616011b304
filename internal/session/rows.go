package session

import (
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// Run status, as clients see it.
const (
	StatusQueued         = "queued"
	StatusRunning        = "running"
	StatusNeedsAttention = "needs_attention"
	StatusCompleted      = "completed"
	StatusFailed         = "failed"
	StatusInterrupted    = "interrupted"
	StatusCancelled      = "cancelled"
)

// StatusCompacting is the status, in the queue, of a compaction that a person
// asked for: it stands there under its own id, so that it is found after a
// crash and nothing overtakes it.
const StatusCompacting = "compacting"

// Terminal says whether a run status is an end.
func Terminal(status string) bool {
	switch status {
	case StatusCompleted, StatusFailed, StatusInterrupted, StatusCancelled:
		return true
	}
	return false
}

// Rows says which derived rows follow from events of a session's stream. It
// looks at nothing else, so that rows rebuilt from the log are equal to the
// rows in place (I-03). Events are decoded; those whose content was erased
// are passed over.
func Rows(events []event.Event) []derived.Change {
	var out []derived.Change
	for i := range events {
		if events[i].Data != nil {
			out = appendRows(out, &events[i])
		}
	}
	return derived.Merge(out)
}

func appendRows(out []derived.Change, e *event.Event) []derived.Change {
	at := event.FormatTime(e.Time)
	session := []derived.Col{{Name: "session_id", Value: string(e.SessionID)}}
	run := []derived.Col{session[0], {Name: "run_id", Value: string(e.RunID)}}
	compaction := []derived.Col{session[0], {Name: "run_id", Value: string(e.StepID)}} // its place in the queue
	set := func(t derived.Table, key []derived.Col, cols ...derived.Col) {
		out = append(out, derived.Change{Table: t, Op: derived.Set, Key: key, Cols: cols})
	}
	insert := func(t derived.Table, key []derived.Col, cols ...derived.Col) {
		out = append(out, derived.Change{Table: t, Op: derived.Insert, Key: key, Cols: cols})
	}
	remove := func(t derived.Table, key []derived.Col) {
		out = append(out, derived.Change{Table: t, Op: derived.Delete, Key: key})
	}
	status := func(s string, more ...derived.Col) {
		set(derived.Runs, run, append([]derived.Col{str("status", s), str("updated_at", at)}, more...)...)
	}
	end := func(s string, totals event.Totals, more ...derived.Col) {
		status(s, append([]derived.Col{str("finished_at", at), str("totals", encode(totals)), str("waiting_on", "")}, more...)...)
		remove(derived.Queue, run)
	}
	switch d := e.Data.(type) {
	case *event.SessionCreated:
		cols := []derived.Col{
			str("user_id", e.UserID), str("alias", d.Alias), str("thread_id", d.ThreadID), str("status", Open),
			str("created_at", at), str("updated_at", at), num("settings_version", 1),
		}
		insert(derived.Sessions, session, append(cols, settingsCols(&d.Settings, allSettings)...)...)
		if d.Alias != "" {
			insert(derived.Aliases, []derived.Col{str("user_id", e.UserID), str("alias", d.Alias)}, session[0])
		}
	case *event.SessionUpdated:
		cols := []derived.Col{str("updated_at", at), num("settings_version", int64(d.Version))}
		set(derived.Sessions, session, append(cols, settingsCols(&d.Settings, d.Changed)...)...)
	case *event.SessionClosed:
		set(derived.Sessions, session, str("status", Closed), str("updated_at", at))
	case *event.SessionErased:
		for _, t := range []derived.Table{derived.Sessions, derived.Aliases, derived.Runs, derived.Queue, derived.Idempotency, derived.Inbound, derived.ToolStarts, derived.AssetUses} {
			remove(t, session)
		}
		insert(derived.Sessions, session, str("user_id", e.UserID), str("status", Erased), str("updated_at", at))
	case *event.RunCreated:
		insert(derived.Runs, run, str("user_id", e.UserID), str("status", StatusQueued), str("kind", d.Kind),
			str("submitted_at", at), str("updated_at", at), num("created_seq", e.Seq), str("source", d.Source), str("actor", d.Actor),
			str("text_preview", d.TextPreview), str("route", d.Route.Name), str("provider", d.Route.Provider), str("model", d.Route.Model))
		insert(derived.Queue, run, num("created_seq", e.Seq), str("status", StatusQueued), str("submitted_at", at), str("user_id", e.UserID))
		for i, it := range d.Input {
			if it.Asset != nil && !usedBefore(d.Input[:i], it.Asset.ID) {
				insert(derived.AssetUses, append(run[:2:2], str("asset_id", string(it.Asset.ID))), str("user_id", e.UserID))
			}
		}
		if k := d.Idempotency; k != nil && k.Connector() != "" {
			insert(derived.Inbound, []derived.Col{str("user_id", e.UserID), str("connector", k.Connector()), str("event_hash", k.KeyHash)},
				str("fingerprint", k.Fingerprint), session[0], run[1])
		} else if k != nil {
			insert(derived.Idempotency, []derived.Col{session[0], str("operation", k.Operation), str("key_hash", k.KeyHash)},
				str("fingerprint", k.Fingerprint), str("contract", k.Contract), run[1])
		}
	case *event.CompactionRequested:
		insert(derived.Queue, compaction, num("created_seq", e.Seq), str("status", StatusCompacting), str("submitted_at", at), str("user_id", e.UserID))
	case *event.CompactionFailed:
		if d.Reason == event.CompactManual {
			remove(derived.Queue, compaction)
		}
	case *event.ContextCompacted:
		if d.Reason == event.CompactManual {
			remove(derived.Queue, compaction)
		}
	case *event.RunStarted:
		status(StatusRunning, str("started_at", at))
		set(derived.Queue, run, str("status", StatusRunning))
	case *event.NeedsAttention:
		status(StatusNeedsAttention, str("waiting_on", encode(d.Calls)))
	case *event.AttentionResolved:
		set(derived.Runs, run, str("updated_at", at), str("waiting_on", encode(d.Remaining)))
	case *event.RunResumed:
		status(StatusRunning, str("waiting_on", ""))
	case *event.OutputEmitted:
		set(derived.Runs, run, num("output_seq", e.Seq))
	case *event.RunCompleted:
		end(StatusCompleted, d.Totals)
	case *event.RunFailed:
		end(StatusFailed, d.Totals, str("error_code", d.Code), str("error_message", d.Message))
	case *event.RunCancelled:
		end(StatusCancelled, d.Totals, str("error_message", d.Reason))
	case *event.RunInterrupted:
		end(StatusInterrupted, d.Totals, str("error_message", d.Reason))
	case *event.ToolStarted:
		insert(derived.ToolStarts, []derived.Col{session[0], str("call_id", string(e.CallID))}, run[1])
	}
	return out
}

// usedBefore says whether earlier items of the input name the asset already.
func usedBefore(items []event.InputItem, id event.AssetID) bool {
	return slices.ContainsFunc(items, func(it event.InputItem) bool { return it.Asset != nil && it.Asset.ID == id })
}

func str(name, value string) derived.Col       { return derived.Col{Name: name, Value: value} }
func num(name string, value int64) derived.Col { return derived.Col{Name: name, Value: value} }

var allSettings = []string{
	"history_limit", "input_contract", "instructions", "max_turns", "metadata", "on_doubt",
	"output_contract", "reply_targets", "route_policy", "title", "tools",
}

// settingsCols gives the columns of the named settings: JSON, or empty where
// nothing is set.
func settingsCols(v *event.Settings, names []string) []derived.Col {
	var cols []derived.Col
	for _, name := range names {
		switch name {
		case "history_limit":
			cols = append(cols, num("n_history_limit", int64(v.HistoryLimit)))
		case "max_turns":
			cols = append(cols, num("n_max_turns", int64(v.MaxTurns)))
		case "input_contract":
			cols = append(cols, str(name, optional(v.InputContract, v.InputContract != nil)))
		case "output_contract":
			cols = append(cols, str(name, optional(v.OutputContract, v.OutputContract != nil)))
		case "route_policy":
			cols = append(cols, str(name, optional(v.RoutePolicy, v.RoutePolicy != nil)))
		case "reply_targets":
			cols = append(cols, str(name, optional(v.ReplyTargets, len(v.ReplyTargets) > 0)))
		case "tools":
			cols = append(cols, str(name, optional(v.Tools, v.Tools != nil)))
		case "instructions":
			cols = append(cols, str(name, optional(v.Instructions, !v.Instructions.Empty())))
		case "metadata":
			cols = append(cols, str(name, string(v.Metadata)))
		case "on_doubt":
			cols = append(cols, str(name, string(v.OnDoubt)))
		case "title":
			cols = append(cols, str(name, v.Title))
		}
	}
	return cols
}

func optional(v any, there bool) string {
	if !there {
		return ""
	}
	return encode(v)
}

// encode writes what is canonical by construction: types of the event package.
func encode(v any) string {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic("session: encode row: " + err.Error())
	}
	return string(canonjson.Value(b))
}
