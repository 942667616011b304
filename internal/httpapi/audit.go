package httpapi

import (
	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
)

func auditRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/audit", id: "listAudit", role: gate.Admin, summary: "Read the audit stream",
			notes: "Who was turned away at the door, counted by peer and reason within a minute, and who changed what of tokens, receivers and secrets: the events whose types begin with `audit.`. " +
				"They stand in a stream of their own and are chained as any. " + narrowedNotes + " A token that is bound to a user is refused (`unbound_token_required`).",
			params: []param{pEvents, pAfter, pTypes, pSince, pUntil}, action: plain(listAudit),
			answers: []answer{gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}},
	}
}

func listAudit(c *call) error {
	if err := c.unbound("the audit stream is of all users"); err != nil {
		return err
	}
	return c.events(&source{stream: event.AuditStream})
}

// mayAudit says whether the caller may see the audit stream.
func (c *call) mayAudit() bool { return c.who.role >= gate.Admin && c.who.UserID == "" }
