package httpapi

import (
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// wayRoutes are about the ways out: whether one works, and by which key a receiver
// knows who sent.
func wayRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/targets/test", id: "testTarget", role: gate.Operator, summary: "Send a test to a reply target",
			notes: "The checks, the attempt and its signature are those of a delivery; there is one attempt, and no run. The answer tells what came of it, also when it failed. Two events in the target's stream " +
				"keep who asked and how it ended (`target.test.started`, `target.test.ended`); what the receiver answered is shown and not kept. A target of type `session` is checked and sent nothing (`not_sent`): it would begin a run.",
			params: []param{{"user_id", "query", "string", "Whose target it is; `default` when absent. A token that is bound to a user fixes it."}}, action: takes(testTarget), answers: []answer{gives[api.TargetTest](200, "What came of the attempt.")}, fails: []int{404, 409, 410, 429}},
		{method: "GET", path: "/v1/signing-keys/{key}", id: "getSigningKey", role: gate.Reader, summary: "Read the public key of webhooks signed with ed25519",
			notes:  "Receivers verify `v1a` signatures with it (Standard Webhooks). After a rotation there are two for as long as the key before signs too.",
			action: plain(getSigningKey), answers: []answer{gives[api.SigningKey](200, "The public halves, the current one first.")}, fails: []int{404, 409}},
	}
}

func testTarget(c *call, req *api.TestTarget) error {
	out, err := c.cfg.Admission.TestTarget(c.Ctx(), c.who.Caller, c.query["user_id"], &req.Target)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func getSigningKey(c *call) error {
	name := c.R.PathValue("key")
	if c.cfg.SigningKey == nil {
		return problem.New(problem.NotFound, "signing_key_not_found", "no secret of this name holds an ed25519 key")
	}
	keys, err := c.cfg.SigningKey(c.Ctx(), c.who.UserID, name)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.SigningKey{Secret: name, PublicKeys: keys})
}
