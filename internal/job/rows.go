package job

import (
	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// Rows says which derived rows follow from events of a job's stream (I-03).
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
	id, _ := e.Stream.Job()
	key := []derived.Col{str("job_id", string(id))}
	change := func(op derived.Op, cols ...derived.Col) {
		out = append(out, derived.Change{Table: derived.Jobs, Op: op, Key: key, Cols: cols})
	}
	set := func(cols ...derived.Col) { change(derived.Set, append(cols, str("updated_at", at))...) }
	switch d := e.Data.(type) {
	case *event.JobPlanned:
		change(derived.Insert, str("user_id", e.UserID), str("kind", d.Kind), str("status", Planned), str("actor", d.Actor), str("reason", d.Reason),
			str("created_at", at), str("updated_at", at), str("expires_at", d.ExpiresAt), num("n_total", int64(d.Count)), num("n_limit", int64(d.Limit)),
			flag("n_force", d.Force), flag("n_truncated", d.Truncated), str("filter", encode(d.Filter)), str("digest", d.Digest), str("token_hash", d.TokenHash))
	case *event.JobStarted:
		set(str("status", Running), str("started_at", at))
	case *event.JobAdvanced:
		set()
		change(derived.Add, num("n_done", int64(len(d.Done))), num("n_skipped", int64(len(d.Skipped))))
	case *event.JobCancelRequested:
		set(str("status", Cancelling))
	case *event.JobEnded:
		set(str("status", d.Status), str("finished_at", at))
	case *event.JobExpired:
		change(derived.Delete)
	}
	return out
}

func str(name, value string) derived.Col       { return derived.Col{Name: name, Value: value} }
func num(name string, value int64) derived.Col { return derived.Col{Name: name, Value: value} }

func flag(name string, v bool) derived.Col {
	if v {
		return num(name, 1)
	}
	return num(name, 0)
}

// encode writes what is canonical by construction: a type of the event package.
func encode(v any) string {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic("job: encode row: " + err.Error())
	}
	return string(b)
}
