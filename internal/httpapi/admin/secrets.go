package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/slots"
)

// Secrets is the room of secret slots. The door hands values in, and gets none back.
type Secrets interface {
	Set(ctx context.Context, s slots.Setting) (*slots.Done, error)
	Get(ctx context.Context, owner, name string) ([]eventlog.SecretRow, error)
	List(ctx context.Context, owner string, p eventlog.Page) ([]eventlog.SecretRow, string, error)
	Delete(ctx context.Context, owner, name, actor string) error
	Rekey(ctx context.Context, limit int) (slots.Rekeyed, error)
}

// rekeyStep is how many versions one request seals anew.
const rekeyStep = 100

var pSlot = openapi.Query("user_id", "string", "Whose slot is meant. Absent: that of the token's user, and of a token that is not bound to one the daemon's own.")

func (h *Handlers) secretRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.putSecret, openapi.Operation{Method: "PUT", Path: "/v1/secrets/{secret}", ID: "putSecret", Role: gate.Operator, Summary: "Set a secret slot",
			Notes: "Another value is a new version; the one before counts for 24 hours more (`slots.former_for`), so that both sign. The same value again changes nothing. The daemon's own slots, which the configuration may refer to, want an administrator. " +
				"A secret is sent to the hosts that it names and to no other (`secret_not_for_host`).",
			Params: []openapi.Param{pSlot}, Answers: []openapi.Answer{openapi.Gives[api.Secret](201, "The slot, which is new."), openapi.Gives[api.Secret](200, "The slot as it is now.")}, Fails: []int{409, 413, 429, 503}}),
		call.Plain(h.listSecrets, openapi.Operation{Method: "GET", Path: "/v1/secrets", ID: "listSecrets", Role: gate.Operator, Summary: "List secret slots, by user and name",
			Notes: "Never their values.", Params: []openapi.Param{call.Limit, call.Cursor, call.Owner}, Answers: []openapi.Answer{openapi.Gives[api.List[api.Secret]](200, "A page.")}}),
		call.Plain(h.getSecret, openapi.Operation{Method: "GET", Path: "/v1/secrets/{secret}", ID: "getSecret", Role: gate.Operator, Summary: "Read what is known of a secret slot",
			Notes: "Never its value.", Params: []openapi.Param{pSlot}, Answers: []openapi.Answer{openapi.Gives[api.Secret](200, "The slot as it is now.")}}),
		call.Plain(h.deleteSecret, openapi.Operation{Method: "DELETE", Path: "/v1/secrets/{secret}", ID: "deleteSecret", Role: gate.Operator, Summary: "Delete a secret slot, all its versions",
			Params: []openapi.Param{pSlot}, Answers: []openapi.Answer{{Status: 204, Text: "Deleted."}}}),
		call.Plain(h.rekeySecrets, openapi.Operation{Method: "POST", Path: "/v1/rekey-secrets", ID: "rekeySecrets", Role: gate.Admin, Summary: "Seal secret slots anew under the current master key",
			Notes:   "One step of at most 100 versions; repeat it until `left` is 0. It may stop and go on at any time. Of a token that is bound to a user it is refused (`unbound_token_required`).",
			Answers: []openapi.Answer{openapi.Gives[api.Rekeyed](200, "What this step did.")}, Fails: []int{409, 503}}),
	}
}

func (h *Handlers) secrets() (Secrets, error) {
	if h.cfg.Secrets == nil {
		return nil, problem.New(problem.NotFound, "not_found", "this daemon keeps no secrets")
	}
	return h.cfg.Secrets, nil
}

// slotOwner is whose slot a request means. Changing the daemon's own wants an administrator.
func slotOwner(c *call.Call, change bool) (string, error) {
	named := c.Query["user_id"]
	if c.Who.UserID != "" || named != "" {
		return c.Who.User(named)
	}
	if change && c.Who.Role < gate.Admin {
		return "", problem.New(problem.Forbidden, "role_required", "the daemon's own secrets want a token with the role admin; name a user_id for those of a user")
	}
	return slots.Daemon, nil
}

func (h *Handlers) putSecret(c *call.Call, req *api.PutSecret) error {
	room, err := h.secrets()
	if err != nil {
		return err
	}
	owner, err := slotOwner(c, true)
	if err != nil {
		return err
	}
	s := slots.Setting{Owner: owner, Name: c.R.PathValue("secret"), Value: secret.New(req.Value), Generate: req.Generate, Hosts: req.Hosts, Actor: c.Who.Actor}
	if req.FormerFor != nil {
		d, err := time.ParseDuration(*req.FormerFor)
		if err != nil {
			return problem.New(problem.Invalid, "invalid_former_for", "former_for is no duration such as 24h, 0s").With(problem.Issue{Path: "$.former_for", Text: "is no duration"})
		}
		s.FormerFor = &d
	}
	s.Record = func(created bool, hosts string) error {
		r := &event.AuditSecretChanged{Actor: c.Who.Actor, Change: "rotated", Hosts: bounded(hosts), Name: s.Name, Owner: s.Owner, Peer: c.PeerText()}
		if created {
			r.Change = "created"
		}
		return c.Audit(r)
	}
	done, err := room.Set(c.Ctx(), s)
	if err != nil {
		return err
	}
	out, err := shownSecret(done.Rows)
	if err != nil {
		return err
	}
	out.Value = done.Drawn.Reveal()
	if done.New {
		return c.JSON(http.StatusCreated, out)
	}
	return c.JSON(http.StatusOK, out)
}

// bounded is a text of a caller, as far as it is told.
func bounded(text string) string { return strings.ToValidUTF8(text[:min(len(text), 256)], "") }

// shownSecret shows the versions of a slot, the newest first.
func shownSecret(rows []eventlog.SecretRow) (api.Secret, error) {
	var out api.Secret
	for i := range rows {
		r := &rows[i]
		at, err := event.ParseTime(r.CreatedAt)
		if err != nil {
			return out, err
		}
		var until time.Time
		if r.Until != "" {
			if until, err = event.ParseTime(r.Until); err != nil {
				return out, err
			}
		}
		if i == 0 {
			out = api.Secret{Name: r.Name, UserID: r.Owner, Version: r.Version, Hosts: hostList(r.Hosts), KeyID: r.KeyID, CreatedAt: at, CreatedBy: r.CreatedBy}
		} else {
			out.Former = append(out.Former, api.SecretVersion{Version: r.Version, Hosts: hostList(r.Hosts), KeyID: r.KeyID, CreatedAt: at, CreatedBy: r.CreatedBy, Until: until})
		}
		if !until.IsZero() && time.Now().Before(until) && (out.FormerUntil == nil || until.After(*out.FormerUntil)) {
			out.FormerUntil = &until
		}
	}
	return out, nil
}

func hostList(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

func (h *Handlers) listSecrets(c *call.Call) error {
	room, err := h.secrets()
	if err != nil {
		return err
	}
	owner, err := c.Owner()
	if err != nil {
		return err
	}
	p, err := c.Page()
	if err != nil {
		return err
	}
	rows, next, err := room.List(c.Ctx(), owner, p)
	if err != nil {
		return err
	}
	out := api.List[api.Secret]{Items: make([]api.Secret, len(rows)), NextCursor: next}
	for i := range rows {
		if out.Items[i], err = shownSecret(rows[i : i+1]); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getSecret(c *call.Call) error {
	room, err := h.secrets()
	if err != nil {
		return err
	}
	owner, err := slotOwner(c, false)
	if err != nil {
		return err
	}
	rows, err := room.Get(c.Ctx(), owner, c.R.PathValue("secret"))
	if err != nil {
		return err
	}
	out, err := shownSecret(rows)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) deleteSecret(c *call.Call) error {
	room, err := h.secrets()
	if err != nil {
		return err
	}
	owner, err := slotOwner(c, true)
	if err != nil {
		return err
	}
	name := c.R.PathValue("secret")
	if _, err := room.Get(c.Ctx(), owner, name); err != nil {
		return err
	}
	if err := c.Audit(&event.AuditSecretChanged{Actor: c.Who.Actor, Change: "deleted", Name: name, Owner: owner, Peer: c.PeerText()}); err != nil {
		return err
	}
	if err := room.Delete(c.Ctx(), owner, name, c.Who.Actor); err != nil {
		return err
	}
	return c.NoContent()
}

func (h *Handlers) rekeySecrets(c *call.Call) error {
	if err := c.Unbound("the master key is of all users"); err != nil {
		return err
	}
	room, err := h.secrets()
	if err != nil {
		return err
	}
	if err := c.Audit(&event.AuditSecretChanged{Actor: c.Who.Actor, Change: "reencrypted", Peer: c.PeerText()}); err != nil {
		return err
	}
	done, err := room.Rekey(c.Ctx(), rekeyStep)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.Rekeyed{KeyID: done.Key, Resealed: done.Resealed, Left: done.Left})
}
