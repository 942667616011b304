package logs

import (
	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

func (h *Handlers) auditRoutes() []call.Route {
	return []call.Route{
		call.Plain(h.listAudit, openapi.Operation{Method: "GET", Path: "/v1/audit", ID: "listAudit", Role: gate.Admin, Summary: "Read the audit stream",
			Notes: "Who was turned away at the door, counted by peer and reason within a minute, and who changed what of tokens, receivers and secrets: the events whose types begin with `audit.`. " +
				"They stand in a stream of their own and are chained as any. " + narrowedNotes + " A token that is bound to a user is refused (`unbound_token_required`).",
			Params:  []openapi.Param{call.EventsLimit, call.AfterSeq, call.Types, call.Since, call.Until},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}}),
	}
}

func (h *Handlers) listAudit(c *call.Call) error {
	if err := c.Unbound("the audit stream is of all users"); err != nil {
		return err
	}
	return h.events(c, &narrowed{Source: Source{Stream: event.AuditStream}})
}

// mayAudit says whether the caller may see the audit stream.
func mayAudit(c *call.Call) bool { return c.Who.Role >= gate.Admin && c.Who.UserID == "" }
