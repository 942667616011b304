package client

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// Page asks for one page of a list. The zero value is the first page of the
// daemon's default size.
type Page struct {
	Limit  int
	Cursor string // next_cursor of the page before
}

// Range narrows a list by the time at which its items were made, and says in
// which direction it goes. The zero value is everything, newest first.
type Range struct {
	Since time.Time // from then on
	Until time.Time // before then
	Asc   bool      // oldest first; a cursor goes on in its own direction only
}

// SessionsQuery narrows a list of sessions; an empty member does not.
type SessionsQuery struct {
	Status   string // open or closed
	ThreadID string
	Range
}

// RunsQuery narrows a list of runs; an empty member does not.
type RunsQuery struct {
	SessionID, Status string
	Range
}

// DeliveriesQuery narrows a list of deliveries; an empty member does not.
type DeliveriesQuery struct {
	SessionID, RunID, TargetID, Status string
	ErrorClass                         string // of the last failure since it was made or replayed
	Unresolved                         bool   // only dead letters that nobody resolved
	Range
}

// TargetsQuery narrows a list of targets; an empty member does not. Status is that
// of deliveries which the target must have: pending or dead_lettered.
type TargetsQuery struct{ Type, Status string }

// TokensQuery narrows a list of tokens; an empty member does not.
type TokensQuery struct{ Role, UserID string }

// RoutesQuery narrows a list of routes; an empty member does not.
type RoutesQuery struct{ Provider string }

// ToolsQuery narrows a list of tools; an empty member does not.
type ToolsQuery struct{ Source, SideEffect string }

// EventsQuery narrows events; an empty member does not. SessionID and RunID are
// for the feed over all streams only.
type EventsQuery struct {
	Types            []string
	SessionID, RunID string
	Since, Until     time.Time
}

func (r *request) page(p Page) *request { return r.count("limit", p.Limit).with("cursor", p.Cursor) }

func (r *request) count(name string, n int) *request {
	if n != 0 {
		r.query.Set(name, strconv.Itoa(n))
	}
	return r
}

func (r *request) at(name string, t time.Time) *request {
	if !t.IsZero() {
		r.query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
	return r
}

func (r *request) within(q Range) *request {
	if q.Asc {
		r.query.Set("order", "asc")
	}
	return r.at("since", q.Since).at("until", q.Until)
}

func (r *request) events(q EventsQuery, limit int) *request {
	return r.with("type", strings.Join(q.Types, ",")).with("session_id", q.SessionID).with("run_id", q.RunID).
		at("since", q.Since).at("until", q.Until).count("limit", limit)
}

// Sessions lists sessions, newest first unless the query says otherwise.
func (c *Client) Sessions(ctx context.Context, q SessionsQuery, p Page) (*api.List[api.Session], error) {
	return call[api.List[api.Session]](ctx, c, to(http.MethodGet, "v1", "sessions").
		with("user_id", c.user).with("status", q.Status).with("thread_id", q.ThreadID).within(q.Range).page(p))
}

// Runs lists runs, newest first unless the query says otherwise.
func (c *Client) Runs(ctx context.Context, q RunsQuery, p Page) (*api.List[api.Run], error) {
	return call[api.List[api.Run]](ctx, c, to(http.MethodGet, "v1", "runs").
		with("user_id", c.user).with("session_id", q.SessionID).with("status", q.Status).within(q.Range).page(p))
}

// Deliveries lists deliveries, newest first unless the query says otherwise.
func (c *Client) Deliveries(ctx context.Context, q DeliveriesQuery, p Page) (*api.List[api.Delivery], error) {
	unresolved := ""
	if q.Unresolved {
		unresolved = "true"
	}
	return call[api.List[api.Delivery]](ctx, c, to(http.MethodGet, "v1", "deliveries").with("user_id", c.user).with("session_id", q.SessionID).
		with("run_id", q.RunID).with("target_id", q.TargetID).with("status", q.Status).with("error_class", q.ErrorClass).with("unresolved", unresolved).
		within(q.Range).page(p))
}

// Targets lists the receivers that deliveries went to.
func (c *Client) Targets(ctx context.Context, q TargetsQuery, p Page) (*api.List[api.Target], error) {
	return call[api.List[api.Target]](ctx, c, to(http.MethodGet, "v1", "targets").
		with("user_id", c.user).with("type", q.Type).with("status", q.Status).page(p))
}

// Target reads how deliveries to a receiver stand.
func (c *Client) Target(ctx context.Context, target string) (*api.Target, error) {
	return call[api.Target](ctx, c, to(http.MethodGet, "v1", "targets", target))
}

// ConnectorsQuery narrows a list of connectors; an empty member does not.
type ConnectorsQuery struct{ Type string }

// Connectors lists the configured connectors, by name.
func (c *Client) Connectors(ctx context.Context, q ConnectorsQuery, p Page) (*api.List[api.Connector], error) {
	return call[api.List[api.Connector]](ctx, c, to(http.MethodGet, "v1", "connectors").with("type", q.Type).page(p))
}

// Tokens lists tokens, oldest first.
func (c *Client) Tokens(ctx context.Context, q TokensQuery, p Page) (*api.List[api.Token], error) {
	return call[api.List[api.Token]](ctx, c, to(http.MethodGet, "v1", "tokens").with("role", q.Role).with("user_id", q.UserID).page(p))
}

// Nodes lists the nodes that share the store, oldest first.
func (c *Client) Nodes(ctx context.Context, p Page) (*api.List[api.Node], error) {
	return call[api.List[api.Node]](ctx, c, to(http.MethodGet, "v1", "nodes").page(p))
}

// Routes lists the configured routes to models, by name.
func (c *Client) Routes(ctx context.Context, q RoutesQuery, p Page) (*api.List[api.Route], error) {
	return call[api.List[api.Route]](ctx, c, to(http.MethodGet, "v1", "routes").with("provider", q.Provider).page(p))
}

// Tools lists the configured tools, by name.
func (c *Client) Tools(ctx context.Context, q ToolsQuery, p Page) (*api.List[api.Tool], error) {
	return call[api.List[api.Tool]](ctx, c, to(http.MethodGet, "v1", "tools").with("source", q.Source).with("side_effect", q.SideEffect).page(p))
}

// SessionEvents reads a page of a session's log after a sequence, ascending.
// NextCursor is empty when nothing follows yet; narrowed, a page may hold few
// events, or none, and have one. Limit 0: the daemon's default.
func (c *Client) SessionEvents(ctx context.Context, session string, q EventsQuery, after int64, limit int) (*api.List[api.Event], error) {
	return call[api.List[api.Event]](ctx, c, c.inSession(http.MethodGet, session, "events").events(q, limit).with("after", sequence(after)))
}

// RunEvents is SessionEvents of one run.
func (c *Client) RunEvents(ctx context.Context, run string, q EventsQuery, after int64, limit int) (*api.List[api.Event], error) {
	return call[api.List[api.Event]](ctx, c, to(http.MethodGet, "v1", "runs", run, "events").events(q, limit).with("after", sequence(after)))
}

// Audit reads a page of the audit stream after a sequence, as SessionEvents does
// of a session's. It wants an administrator's token that is not bound to a user.
func (c *Client) Audit(ctx context.Context, q EventsQuery, after int64, limit int) (*api.List[api.Event], error) {
	return call[api.List[api.Event]](ctx, c, to(http.MethodGet, "v1", "audit").events(q, limit).with("after", sequence(after)))
}

func sequence(n int64) string { return strconv.FormatInt(n, 10) }

// Events reads a page of the feed over all streams, in the order of commits.
// Cursor is the NextCursor of an earlier page, which is always there; empty:
// the beginning.
func (c *Client) Events(ctx context.Context, q EventsQuery, cursor string, limit int) (*api.List[api.Event], error) {
	return call[api.List[api.Event]](ctx, c, to(http.MethodGet, "v1", "events").events(q, limit).with("after", cursor).with("user_id", c.user))
}

// every goes over the items of all pages. An error comes last, with a zero item.
func every[T any](read func(cursor string) (*api.List[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cursor := ""
		for {
			page, err := read(cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.NextCursor == "" || page.NextCursor == cursor {
				return
			}
			cursor = page.NextCursor
		}
	}
}

// AllSessions goes over the sessions of a query, page by page as they are asked
// for. What is made meanwhile moves nothing. An error comes last, with a zero item.
func (c *Client) AllSessions(ctx context.Context, q SessionsQuery) iter.Seq2[api.Session, error] {
	return every(func(cursor string) (*api.List[api.Session], error) { return c.Sessions(ctx, q, Page{Cursor: cursor}) })
}

// AllRuns is AllSessions of runs.
func (c *Client) AllRuns(ctx context.Context, q RunsQuery) iter.Seq2[api.Run, error] {
	return every(func(cursor string) (*api.List[api.Run], error) { return c.Runs(ctx, q, Page{Cursor: cursor}) })
}

// AllDeliveries is AllSessions of deliveries.
func (c *Client) AllDeliveries(ctx context.Context, q DeliveriesQuery) iter.Seq2[api.Delivery, error] {
	return every(func(cursor string) (*api.List[api.Delivery], error) {
		return c.Deliveries(ctx, q, Page{Cursor: cursor})
	})
}

// AllTargets is AllSessions of targets.
func (c *Client) AllTargets(ctx context.Context, q TargetsQuery) iter.Seq2[api.Target, error] {
	return every(func(cursor string) (*api.List[api.Target], error) { return c.Targets(ctx, q, Page{Cursor: cursor}) })
}

// AllConnectors is AllSessions of connectors.
func (c *Client) AllConnectors(ctx context.Context, q ConnectorsQuery) iter.Seq2[api.Connector, error] {
	return every(func(cursor string) (*api.List[api.Connector], error) {
		return c.Connectors(ctx, q, Page{Cursor: cursor})
	})
}

// AllTokens is AllSessions of tokens.
func (c *Client) AllTokens(ctx context.Context, q TokensQuery) iter.Seq2[api.Token, error] {
	return every(func(cursor string) (*api.List[api.Token], error) { return c.Tokens(ctx, q, Page{Cursor: cursor}) })
}

// AllNodes is AllSessions of nodes.
func (c *Client) AllNodes(ctx context.Context) iter.Seq2[api.Node, error] {
	return every(func(cursor string) (*api.List[api.Node], error) { return c.Nodes(ctx, Page{Cursor: cursor}) })
}

// AllRoutes is AllSessions of routes.
func (c *Client) AllRoutes(ctx context.Context, q RoutesQuery) iter.Seq2[api.Route, error] {
	return every(func(cursor string) (*api.List[api.Route], error) { return c.Routes(ctx, q, Page{Cursor: cursor}) })
}

// AllTools is AllSessions of tools.
func (c *Client) AllTools(ctx context.Context, q ToolsQuery) iter.Seq2[api.Tool, error] {
	return every(func(cursor string) (*api.List[api.Tool], error) { return c.Tools(ctx, q, Page{Cursor: cursor}) })
}

// AllSessionEvents goes over a session's log after a sequence, to its head at
// that time; StreamSession goes on from there.
func (c *Client) AllSessionEvents(ctx context.Context, session string, q EventsQuery, after int64) iter.Seq2[api.Event, error] {
	return every(from(after, func(after int64) (*api.List[api.Event], error) { return c.SessionEvents(ctx, session, q, after, 0) }))
}

// AllRunEvents is AllSessionEvents of one run.
func (c *Client) AllRunEvents(ctx context.Context, run string, q EventsQuery, after int64) iter.Seq2[api.Event, error] {
	return every(from(after, func(after int64) (*api.List[api.Event], error) { return c.RunEvents(ctx, run, q, after, 0) }))
}

// AllAudit is AllSessionEvents of the audit stream.
func (c *Client) AllAudit(ctx context.Context, q EventsQuery, after int64) iter.Seq2[api.Event, error] {
	return every(from(after, func(after int64) (*api.List[api.Event], error) { return c.Audit(ctx, q, after, 0) }))
}

// from reads pages whose cursor is a sequence.
func from(after int64, read func(after int64) (*api.List[api.Event], error)) func(string) (*api.List[api.Event], error) {
	return func(cursor string) (*api.List[api.Event], error) {
		at := after
		if cursor != "" {
			var err error
			if at, err = strconv.ParseInt(cursor, 10, 64); err != nil {
				return nil, err
			}
		}
		return read(at)
	}
}

// AllEvents goes over the feed from a cursor (empty: the beginning) to where it
// has come by then.
func (c *Client) AllEvents(ctx context.Context, q EventsQuery, cursor string) iter.Seq2[api.Event, error] {
	return every(func(next string) (*api.List[api.Event], error) {
		if next == "" {
			next = cursor
		}
		return c.Events(ctx, q, next, 0)
	})
}
