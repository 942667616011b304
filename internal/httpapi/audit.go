package httpapi

import (
	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

func auditRoutes() []route {
	return []route{
		plain(listAudit, openapi.Operation{Method: "GET", Path: "/v1/audit", ID: "listAudit", Role: gate.Admin, Summary: "Read the audit stream",
			Notes: "Who was turned away at the door, counted by peer and reason within a minute, and who changed what of tokens, receivers and secrets: the events whose types begin with `audit.`. " +
				"They stand in a stream of their own and are chained as any. " + narrowedNotes + " A token that is bound to a user is refused (`unbound_token_required`).",
			Params:  []openapi.Param{pEvents, pAfter, pTypes, pSince, pUntil},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}}),
	}
}

func listAudit(c *call) error {
	if err := c.Unbound("the audit stream is of all users"); err != nil {
		return err
	}
	return c.events(&source{stream: event.AuditStream})
}

// mayAudit says whether the caller may see the audit stream.
func (c *call) mayAudit() bool { return c.Who.Role >= gate.Admin && c.Who.UserID == "" }
