package deliveries

import (
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// wayRoutes are about the ways out: whether one works, and by which key a receiver
// knows who sent.
func (h *Handlers) wayRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.testTarget, openapi.Operation{Method: "POST", Path: "/v1/targets/test", ID: "testTarget", Role: gate.Operator, Summary: "Send a test to a reply target",
			Notes: "The checks, the attempt and its signature are those of a delivery; there is one attempt, and no run. The answer tells what came of it, also when it failed. Two events in the target's stream " +
				"keep who asked and how it ended (`target.test.started`, `target.test.ended`); what the receiver answered is shown and not kept. A target of type `session` is checked and sent nothing (`not_sent`): it would begin a run.",
			Params: []openapi.Param{openapi.Query("user_id", "string", "Whose target it is; `default` when absent. A token that is bound to a user fixes it.")}, Answers: []openapi.Answer{openapi.Gives[api.TargetTest](200, "What came of the attempt.")}, Fails: []int{404, 409, 410, 429}}),
		call.Plain(h.getSigningKey, openapi.Operation{Method: "GET", Path: "/v1/signing-keys/{key}", ID: "getSigningKey", Role: gate.Reader, Summary: "Read the public key of webhooks signed with ed25519",
			Notes:   "Receivers verify `v1a` signatures with it (Standard Webhooks). After a rotation there are two for as long as the key before signs too.",
			Answers: []openapi.Answer{openapi.Gives[api.SigningKey](200, "The public halves, the current one first.")}, Fails: []int{404, 409}}),
	}
}

func (h *Handlers) testTarget(c *call.Call, req *api.TestTarget) error {
	out, err := h.Admission.TestTarget(c.Ctx(), c.Who.Caller, c.Query["user_id"], &req.Target)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getSigningKey(c *call.Call) error {
	name := c.R.PathValue("key")
	if h.SigningKey == nil {
		return problem.New(problem.NotFound, "signing_key_not_found", "no secret of this name holds an ed25519 key")
	}
	keys, err := h.SigningKey(c.Ctx(), c.Who.UserID, name)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.SigningKey{Secret: name, PublicKeys: keys})
}
