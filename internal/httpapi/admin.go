package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// A token that is bound to a user administers the tokens of that user, and no others.

func createToken(c *call, req *api.CreateToken) error {
	if _, ok := roleOf(req.Role); !ok {
		return problem.New(problem.Invalid, "invalid_role", "role must be reader, operator or admin")
	}
	if len(req.Name) > 128 {
		return problem.New(problem.TooLarge, "name_too_large", "name holds more than 128 bytes")
	}
	user := ""
	if req.UserID != "" || c.who.UserID != "" {
		var err error
		if user, err = c.who.User(req.UserID); err != nil {
			return err
		}
	}
	text, row, err := NewToken(c.cfg.Random, req.Name, req.Role, user, time.Now())
	if err != nil {
		return err
	}
	if err := c.cfg.Store.AddToken(c.ctx(), row); err != nil {
		return err
	}
	out := token(&row)
	out.Token = text
	return c.json(http.StatusCreated, out)
}

func token(row *eventlog.TokenRow) api.Token {
	return api.Token{ID: row.ID, Name: row.Name, Role: row.Role, UserID: row.UserID, CreatedAt: row.CreatedAt.UTC()}
}

func listTokens(c *call) error {
	rows, err := c.cfg.Store.ListTokens(c.ctx())
	if err != nil {
		return err
	}
	role, err := c.oneOf("role", roleNames[reader:]...)
	if err != nil {
		return err
	}
	user := c.query["user_id"]
	var seen []api.Token
	for i := range rows {
		if t := token(&rows[i]); c.who.Sees(t.UserID) && (role == "" || t.Role == role) && (user == "" || t.UserID == user) {
			seen = append(seen, t)
		}
	}
	out, err := windowed(c, "tokens", seen, func(t *api.Token) string { return event.FormatTime(t.CreatedAt) + " " + t.ID })
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, out)
}

func deleteToken(c *call) error {
	none := problem.New(problem.NotFound, "token_not_found", "there is no such token")
	id := c.r.PathValue("t")
	rows, err := c.cfg.Store.ListTokens(c.ctx())
	if err != nil {
		return err
	}
	seen := false
	for i := range rows {
		seen = seen || rows[i].ID == id && c.who.Sees(rows[i].UserID)
	}
	if !seen {
		return none
	}
	err = c.cfg.Store.DeleteToken(c.ctx(), id)
	c.tokens.clear()
	if errors.Is(err, eventlog.ErrNotFound) {
		return none
	}
	if err != nil {
		return err
	}
	return c.noContent()
}

func listRoutes(c *call) error {
	provider := c.query["provider"]
	routes := keep(c.cfg.Routes, func(r *api.Route) bool { return provider == "" || r.Provider == provider })
	slices.SortFunc(routes, func(a, b api.Route) int { return strings.Compare(a.Name, b.Name) })
	out, err := windowed(c, "routes", routes, func(r *api.Route) string { return r.Name })
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, out)
}

func listTools(c *call) error {
	effect, err := c.oneOf("side_effect", "none", "read", "write", "external_effect", "irreversible")
	if err != nil {
		return err
	}
	source := c.query["source"]
	tools := keep(c.cfg.Tools, func(t *api.Tool) bool {
		return (source == "" || t.Source == source) && (effect == "" || t.SideEffect == effect)
	})
	slices.SortFunc(tools, func(a, b api.Tool) int { return strings.Compare(a.Name, b.Name) })
	out, err := windowed(c, "tools", tools, func(t *api.Tool) string { return t.Name })
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, out)
}

func listNodes(c *call) error {
	if c.who.UserID != "" {
		return problem.New(problem.Forbidden, "unbound_token_required", "nodes work for all users; this wants a token that is not bound to one")
	}
	rows, err := c.cfg.Store.ListNodes(c.ctx())
	if err != nil {
		return err
	}
	nodes := make([]api.Node, len(rows))
	for i := range rows {
		r := &rows[i]
		nodes[i] = api.Node{
			ID: string(r.ID), Name: r.Name, Version: r.Version, Since: r.Since, Alive: r.Alive, Draining: r.Draining, Released: r.Released,
			ActiveSessions: r.Active, MostSessions: r.Most, Roots: some(r.Roots),
		}
		if !r.Until.IsZero() {
			nodes[i].LeaseUntil = &r.Until
		}
	}
	out, err := windowed(c, "nodes", nodes, func(n *api.Node) string { return event.FormatTime(n.Since) + " " + n.ID })
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, out)
}

// some is list, never nil: an empty list is [].
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func healthz(c *call) error {
	return c.json(http.StatusOK, api.Health{Status: "ok", Version: c.cfg.Version})
}

func readyz(c *call) error {
	if c.cfg.Ready != nil {
		if err := c.cfg.Ready(); err != nil {
			var said *problem.Error
			if errors.As(err, &said) {
				return said
			}
			return problem.New(problem.Unavailable, "not_ready", "the daemon does not take work now").Because(err)
		}
	}
	return c.json(http.StatusOK, api.Health{Status: "ready", Version: c.cfg.Version})
}

func openAPI(c *call) error {
	doc, err := c.openapi()
	if err != nil {
		return err
	}
	return c.bytes(http.StatusOK, "application/json", doc)
}

// metricsType is Prometheus' text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// metricsText shows figures over all users, so that who may see one user only
// does not see them.
func metricsText(c *call) error {
	if c.who.UserID != "" {
		return problem.New(problem.Forbidden, "unbound_token_required", "the figures are of all users; this wants a token that is not bound to one")
	}
	if c.cfg.Metrics == nil {
		return problem.New(problem.NotFound, "not_found", "this daemon counts nothing")
	}
	text, err := c.cfg.Metrics()
	if err != nil {
		return problem.New(problem.Unavailable, "metrics_unavailable", "the figures cannot be given now").Because(err)
	}
	return c.bytes(http.StatusOK, metricsType, text)
}
