package logs

import (
	"context"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// Store is what is read of logs.
type Store interface {
	Reader
	Feed(ctx context.Context, after eventlog.Position, limit int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position, error)
}

// Handlers answer for logs, in pages.
type Handlers struct {
	Admission *admission.Admission
	Store     Store
}

// Routes are the operations that read logs in pages.
func (h *Handlers) Routes() []call.Route { return append(h.logRoutes(), h.auditRoutes()...) }

const narrowedNotes = "Narrowed, a page may hold fewer events than its limit, or none; go on as long as there is a next_cursor."

func (h *Handlers) logRoutes() []call.Route {
	return []call.Route{
		call.Plain(h.runEvents, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/events", ID: "listRunEvents", Role: gate.Reader, Summary: "Read a run's events",
			Notes:   narrowedNotes,
			Params:  []openapi.Param{call.EventsLimit, call.AfterSeq, call.Types, call.Since, call.Until},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}}),
		call.Plain(h.sessionEvents, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/events", ID: "listSessionEvents", Role: gate.Reader, Summary: "Read a session's log",
			Notes:   narrowedNotes,
			Params:  []openapi.Param{call.User, call.EventsLimit, call.AfterSeq, call.Types, call.Since, call.Until},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}, Fails: []int{410}}),
		call.Plain(h.feed, openapi.Operation{Method: "GET", Path: "/v1/events", ID: "listEvents", Role: gate.Reader, Summary: "Read the feed over all streams, in the order of commits",
			Notes: "`next_cursor` is always there: it is the `after` of the next page, also when that has nothing yet, and moves past what the filter held back. With `until` the feed has an end: `next_cursor` stays there.",
			Params: []openapi.Param{call.EventsLimit, openapi.Query("after", "integer", "The next_cursor of an earlier page; 0, the beginning, when absent."),
				call.Types, call.Owner, openapi.Query("session_id", "string", "Only events of this session (`ses_…`), those of its deliveries included."),
				openapi.Query("run_id", "string", "Only events of this run, those of its deliveries included."), call.Since, call.Until},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "A page.")}}),
	}
}
