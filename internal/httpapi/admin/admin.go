package admin

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// A token that is bound to a user administers the tokens of that user, and no others.

// expiry is when a token ends that is made now; zero: never.
func (h *Handlers) expiry(req *api.CreateToken, now time.Time) (time.Time, error) {
	bad := func(text string) error {
		return problem.New(problem.Invalid, "invalid_expiry", "%s", text)
	}
	good := h.cfg.TokenExpiry
	switch {
	case req.ExpiresIn != "" && req.ExpiresAt != nil:
		return time.Time{}, bad("either expires_in or expires_at")
	case req.ExpiresAt != nil:
		if req.ExpiresAt.Year() > 9999 {
			return time.Time{}, bad("expires_at is too far away; without it the token does not end")
		}
		good = req.ExpiresAt.Sub(now) // past 292 years that
	case req.ExpiresIn != "":
		d, err := time.ParseDuration(req.ExpiresIn)
		if err != nil || d == 0 {
			return time.Time{}, bad("expires_in must be a duration such as 720h")
		}
		good = d
	}
	named := req.ExpiresIn != "" || req.ExpiresAt != nil
	switch most := h.cfg.MaxTokenExpiry; {
	case named && good <= 0:
		return time.Time{}, bad("the token would have expired already")
	case most > 0 && named && good > most:
		return time.Time{}, bad("tokens.max_expiry allows " + most.String() + " at most")
	case most > 0 && good == 0:
		good = most
	}
	if good == 0 {
		return time.Time{}, nil
	}
	return now.Add(good).UTC().Truncate(time.Second), nil
}

func (h *Handlers) createToken(c *call.Call, req *api.CreateToken) error {
	switch role, ok := gate.RoleOf(req.Role); {
	case !ok:
		return problem.New(problem.Invalid, "invalid_role", "role must be reader, operator or admin")
	case role > c.Who.Role:
		return problem.New(problem.Forbidden, "role_required", "a token makes none with a role above its own")
	}
	if len(req.Name) > 128 {
		return problem.New(problem.TooLarge, "name_too_large", "name holds more than 128 bytes")
	}
	user := ""
	if req.UserID != "" || c.Who.UserID != "" {
		var err error
		if user, err = c.Who.User(req.UserID); err != nil {
			return err
		}
	}
	now := time.Now()
	expires, err := h.expiry(req, now)
	if err != nil {
		return err
	}
	text, row, err := tokens.New(h.cfg.Random, req.Name, req.Role, user, now)
	if err != nil {
		return err
	}
	row.ExpiresAt = expires
	record := &event.AuditTokenCreated{Actor: c.Who.Actor, Name: row.Name, Peer: c.PeerText(), Role: row.Role, TokenID: row.ID, UserID: row.UserID}
	if !expires.IsZero() {
		record.ExpiresAt = event.FormatTime(expires)
	}
	if err := c.Audit(record); err != nil {
		return err
	}
	if err := h.cfg.Store.AddToken(c.Ctx(), row); err != nil {
		return err
	}
	out := token(&row)
	out.Token = text
	return c.JSON(http.StatusCreated, out)
}

func token(row *eventlog.TokenRow) api.Token {
	t := api.Token{ID: row.ID, Name: row.Name, Role: row.Role, UserID: row.UserID, CreatedAt: row.CreatedAt.UTC()}
	if !row.ExpiresAt.IsZero() {
		t.ExpiresAt = &row.ExpiresAt
	}
	if !row.LastUsed.IsZero() {
		t.LastUsed = &row.LastUsed
	}
	return t
}

func (h *Handlers) listTokens(c *call.Call) error {
	rows, err := h.cfg.Store.ListTokens(c.Ctx())
	if err != nil {
		return err
	}
	role, err := c.OneOf("role", gate.Roles()...)
	if err != nil {
		return err
	}
	user := c.Query["user_id"]
	var seen []api.Token
	for i := range rows {
		if t := token(&rows[i]); c.Who.Sees(t.UserID) && (role == "" || t.Role == role) && (user == "" || t.UserID == user) {
			seen = append(seen, t)
		}
	}
	out, err := call.Window(c, "tokens", seen, func(t *api.Token) string { return event.FormatTime(t.CreatedAt) + " " + t.ID })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) deleteToken(c *call.Call) error {
	none := problem.New(problem.NotFound, "token_not_found", "there is no such token")
	id := c.R.PathValue("t")
	rows, err := h.cfg.Store.ListTokens(c.Ctx())
	if err != nil {
		return err
	}
	seen := false
	for i := range rows {
		seen = seen || rows[i].ID == id && c.Who.Sees(rows[i].UserID)
	}
	if !seen {
		return none
	}
	if err := c.Audit(&event.AuditTokenRevoked{Actor: c.Who.Actor, Peer: c.PeerText(), TokenID: id}); err != nil {
		return err
	}
	err = h.cfg.Store.DeleteToken(c.Ctx(), id)
	h.cfg.Forget(id)
	if errors.Is(err, eventlog.ErrNotFound) {
		return none
	}
	if err != nil {
		return err
	}
	return c.NoContent()
}

func (h *Handlers) listRoutes(c *call.Call) error {
	provider := c.Query["provider"]
	routes := keep(h.cfg.Routes, func(r *api.Route) bool { return provider == "" || r.Provider == provider })
	slices.SortFunc(routes, func(a, b api.Route) int { return strings.Compare(a.Name, b.Name) })
	out, err := call.Window(c, "routes", routes, func(r *api.Route) string { return r.Name })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) listTools(c *call.Call) error {
	effect, err := c.OneOf("side_effect", "none", "read", "write", "external_effect", "irreversible")
	if err != nil {
		return err
	}
	source := c.Query["source"]
	tools := keep(h.cfg.Tools, func(t *api.Tool) bool {
		return (source == "" || t.Source == source) && (effect == "" || t.SideEffect == effect)
	})
	slices.SortFunc(tools, func(a, b api.Tool) int { return strings.Compare(a.Name, b.Name) })
	out, err := call.Window(c, "tools", tools, func(t *api.Tool) string { return t.Name })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) listNodes(c *call.Call) error {
	if err := c.Unbound("nodes work for all users"); err != nil {
		return err
	}
	rows, err := h.cfg.Store.ListNodes(c.Ctx())
	if err != nil {
		return err
	}
	nodes := make([]api.Node, len(rows))
	for i := range rows {
		r := &rows[i]
		nodes[i] = api.Node{
			ID: string(r.ID), Name: r.Name, Version: r.Version, Since: r.Since, Alive: r.Alive, Draining: r.Draining, Released: r.Released,
			ActiveSessions: r.Active, MostSessions: r.Most, Roots: call.NonNil(r.Roots),
		}
		if !r.Until.IsZero() {
			nodes[i].LeaseUntil = &r.Until
		}
	}
	out, err := call.Window(c, "nodes", nodes, func(n *api.Node) string { return event.FormatTime(n.Since) + " " + n.ID })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) healthz(c *call.Call) error {
	return c.JSON(http.StatusOK, api.Health{Status: "ok", Version: h.cfg.Version})
}

func (h *Handlers) readyz(c *call.Call) error {
	if h.cfg.Ready != nil {
		if err := h.cfg.Ready(); err != nil {
			var said *problem.Error
			if errors.As(err, &said) {
				return said
			}
			return problem.New(problem.Unavailable, "not_ready", "the daemon does not take work now").Because(err)
		}
	}
	return c.JSON(http.StatusOK, api.Health{Status: "ready", Version: h.cfg.Version})
}

func (h *Handlers) openAPI(c *call.Call) error {
	doc, err := h.cfg.OpenAPI()
	if err != nil {
		return err
	}
	return c.Bytes(http.StatusOK, "application/json", doc)
}

// metricsType is Prometheus' text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// metricsText shows figures over all users, so that who may see one user only
// does not see them.
func (h *Handlers) metricsText(c *call.Call) error {
	if err := c.Unbound("the figures are of all users"); err != nil {
		return err
	}
	if h.cfg.Metrics == nil {
		return problem.New(problem.NotFound, "not_found", "this daemon counts nothing")
	}
	text, err := h.cfg.Metrics()
	if err != nil {
		return problem.New(problem.Unavailable, "metrics_unavailable", "the figures cannot be given now").Because(err)
	}
	return c.Bytes(http.StatusOK, metricsType, text)
}

// keep gives the items that pass.
func keep[T any](list []T, pass func(*T) bool) []T {
	out := []T{}
	for i := range list {
		if pass(&list[i]) {
			out = append(out, list[i])
		}
	}
	return out
}
