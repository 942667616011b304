package client

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// inSession names an operation on a session, by its ses_… id or its alias.
func (c *Client) inSession(method, session string, path ...string) *request {
	return to(method, append([]string{"v1", "sessions", session}, path...)...).with("user_id", c.user)
}

// CreateSession creates a session; req may be nil.
func (c *Client) CreateSession(ctx context.Context, req *api.CreateSession) (*api.Session, error) {
	var body api.CreateSession
	if req != nil {
		body = *req
	}
	if body.UserID == "" {
		body.UserID = c.user
	}
	r := to(http.MethodPost, "v1", "sessions")
	r.body = body
	return call[api.Session](ctx, c, r)
}

// Session reads a session.
func (c *Client) Session(ctx context.Context, session string) (*api.Session, error) {
	return call[api.Session](ctx, c, c.inSession(http.MethodGet, session))
}

// UpdateSession changes the settings that req has; a pointer to a zero value clears one.
func (c *Client) UpdateSession(ctx context.Context, session string, req *api.UpdateSession) (*api.Session, error) {
	r := c.inSession(http.MethodPatch, session)
	r.body = req
	return call[api.Session](ctx, c, r)
}

// CloseSession ends the session's intake.
func (c *Client) CloseSession(ctx context.Context, session, reason string) (*api.Session, error) {
	r := c.inSession(http.MethodPost, session, "close")
	r.body = api.StopRun{Reason: reason}
	return call[api.Session](ctx, c, r)
}

// EraseSession deletes the session's content.
func (c *Client) EraseSession(ctx context.Context, session string) error {
	_, err := c.do(ctx, c.inSession(http.MethodDelete, session), nil)
	return err
}

// Interrupt stops the session's active run, and says whether there was one.
func (c *Client) Interrupt(ctx context.Context, session, reason string) (bool, error) {
	r := c.inSession(http.MethodPost, session, "interrupt")
	r.body = api.StopRun{Reason: reason}
	out, err := call[api.Interrupt](ctx, c, r)
	return err == nil && out.Requested, err
}

// Compact asks for a summary in the place of the session's older conversation.
// What comes of it is told by the events whose step id is the answer's.
func (c *Client) Compact(ctx context.Context, session string) (*api.Compaction, error) {
	return call[api.Compaction](ctx, c, c.inSession(http.MethodPost, session, "compact"))
}

// Blob reads content that an event refers to by its digest.
func (c *Client) Blob(ctx context.Context, session, ref string) ([]byte, error) {
	res, err := c.send(ctx, c.inSession(http.MethodGet, session, "blobs", ref))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return readAll(ctx, res.Body)
}

func getSetting[T any](ctx context.Context, c *Client, session, name string) (*T, error) {
	return call[T](ctx, c, c.inSession(http.MethodGet, session, name))
}

func putSetting[T any](ctx context.Context, c *Client, session, name string, v *T) (*T, error) {
	r := c.inSession(http.MethodPut, session, name)
	r.body = v
	return call[T](ctx, c, r)
}

func (c *Client) deleteSetting(ctx context.Context, session, name string) error {
	_, err := c.do(ctx, c.inSession(http.MethodDelete, session, name), nil)
	return err
}

// InputContract reads the session's input contract.
func (c *Client) InputContract(ctx context.Context, session string) (*api.InputContract, error) {
	return getSetting[api.InputContract](ctx, c, session, "input-contract")
}

// SetInputContract sets it, and gives it in its closed form.
func (c *Client) SetInputContract(ctx context.Context, session string, v *api.InputContract) (*api.InputContract, error) {
	return putSetting(ctx, c, session, "input-contract", v)
}

// DeleteInputContract takes it away.
func (c *Client) DeleteInputContract(ctx context.Context, session string) error {
	return c.deleteSetting(ctx, session, "input-contract")
}

// OutputContract reads the session's output contract.
func (c *Client) OutputContract(ctx context.Context, session string) (*api.OutputContract, error) {
	return getSetting[api.OutputContract](ctx, c, session, "output-contract")
}

// SetOutputContract sets it, and gives it in its closed form.
func (c *Client) SetOutputContract(ctx context.Context, session string, v *api.OutputContract) (*api.OutputContract, error) {
	return putSetting(ctx, c, session, "output-contract", v)
}

// DeleteOutputContract takes it away.
func (c *Client) DeleteOutputContract(ctx context.Context, session string) error {
	return c.deleteSetting(ctx, session, "output-contract")
}

// RoutePolicy reads the session's choice of route and model.
func (c *Client) RoutePolicy(ctx context.Context, session string) (*api.RoutePolicy, error) {
	return getSetting[api.RoutePolicy](ctx, c, session, "route-policy")
}

// SetRoutePolicy sets it.
func (c *Client) SetRoutePolicy(ctx context.Context, session string, v *api.RoutePolicy) (*api.RoutePolicy, error) {
	return putSetting(ctx, c, session, "route-policy", v)
}

// DeleteRoutePolicy takes it away.
func (c *Client) DeleteRoutePolicy(ctx context.Context, session string) error {
	return c.deleteSetting(ctx, session, "route-policy")
}

// ReplyTargets reads where the session's answers go.
func (c *Client) ReplyTargets(ctx context.Context, session string) (*api.ReplyTargets, error) {
	return getSetting[api.ReplyTargets](ctx, c, session, "reply-targets")
}

// SetReplyTargets sets them.
func (c *Client) SetReplyTargets(ctx context.Context, session string, v *api.ReplyTargets) (*api.ReplyTargets, error) {
	return putSetting(ctx, c, session, "reply-targets", v)
}

// DeleteReplyTargets takes them away.
func (c *Client) DeleteReplyTargets(ctx context.Context, session string) error {
	return c.deleteSetting(ctx, session, "reply-targets")
}

// SubmitOption shapes a submission.
type SubmitOption func(*request)

// IdempotencyKey makes a submission safe to repeat: the same request under the
// same key of a session gives the same run.
func IdempotencyKey(key string) SubmitOption {
	return func(r *request) { r.header.Set("Idempotency-Key", key) }
}

// Submit submits work. created is false when the idempotency key is known with
// the same request; then the run is the one that exists.
func (c *Client) Submit(ctx context.Context, session string, req *api.SubmitRun, opts ...SubmitOption) (run *api.Run, created bool, err error) {
	r := c.inSession(http.MethodPost, session, "runs")
	r.body = req
	for _, o := range opts {
		o(r)
	}
	run = new(api.Run)
	status, err := c.do(ctx, r, run)
	if err != nil {
		return nil, false, err
	}
	return run, status == http.StatusAccepted, nil
}

// Run reads a run.
func (c *Client) Run(ctx context.Context, run string) (*api.Run, error) {
	return call[api.Run](ctx, c, to(http.MethodGet, "v1", "runs", run))
}

// waitFor is how long one request of Wait waits at the daemon.
const waitFor = 30 * time.Second

// Wait waits until a run is at its end or waits for a person. It comes again
// when the connection breaks or the daemon restarts.
func (c *Client) Wait(ctx context.Context, run string) (*api.Run, error) {
	failures := 0
	for {
		r := to(http.MethodGet, "v1", "runs", run).with("wait", waitFor.String())
		r.once = true
		out, err := call[api.Run](ctx, c, r)
		switch {
		case err == nil && (out.Terminal() || out.Status == api.RunNeedsAttention):
			return out, nil
		case err == nil:
			failures = 0
		case !passing(err):
			return nil, err
		default:
			failures++
			if err := c.pause(ctx, failures, err); err != nil {
				return nil, err
			}
		}
	}
}

// Cancel asks for the end of one run, queued or active.
func (c *Client) Cancel(ctx context.Context, run, reason string) (*api.Run, error) {
	r := to(http.MethodPost, "v1", "runs", run, "cancel")
	r.body = api.StopRun{Reason: reason}
	return call[api.Run](ctx, c, r)
}

// ResolveAttention settles a tool call whose effect is in doubt.
func (c *Client) ResolveAttention(ctx context.Context, run string, req *api.ResolveAttention) (*api.Run, error) {
	r := to(http.MethodPost, "v1", "runs", run, "attention")
	r.body = req
	return call[api.Run](ctx, c, r)
}

// Timeline reads where the time and the money of a run went.
func (c *Client) Timeline(ctx context.Context, run string) (*api.Timeline, error) {
	return call[api.Timeline](ctx, c, to(http.MethodGet, "v1", "runs", run, "timeline"))
}

// Delivery reads a delivery.
func (c *Client) Delivery(ctx context.Context, delivery string) (*api.Delivery, error) {
	return call[api.Delivery](ctx, c, to(http.MethodGet, "v1", "deliveries", delivery))
}

// ReplayDelivery sends a dead letter again, or with force, and a reason, one
// that was replayed already, resolved or delivered.
func (c *Client) ReplayDelivery(ctx context.Context, delivery string, req *api.ReplayDelivery) (*api.Delivery, error) {
	r := to(http.MethodPost, "v1", "deliveries", delivery, "replay")
	r.body = req
	return call[api.Delivery](ctx, c, r)
}

// ResolveDelivery says that a pending or dead-lettered delivery is done with:
// it is not sent any more. Said again it changes nothing.
func (c *Client) ResolveDelivery(ctx context.Context, delivery, reason string) (*api.Delivery, error) {
	r := to(http.MethodPost, "v1", "deliveries", delivery, "resolve")
	r.body = api.ResolveDelivery{Reason: reason}
	return call[api.Delivery](ctx, c, r)
}

// TestConnector says what a connector would make of an event. Nothing is made.
func (c *Client) TestConnector(ctx context.Context, name string, req *api.TestConnector) (*api.ConnectorTest, error) {
	r := to(http.MethodPost, "v1", "connectors", name, "test")
	r.body = req
	return call[api.ConnectorTest](ctx, c, r)
}

// Receive hands an event to a connector, as its sender does: the body is sent as
// it is, with the headers that prove the sender. The client's token is left out.
func (c *Client) Receive(ctx context.Context, name string, headers http.Header, body []byte) (*api.Received, error) {
	r := to(http.MethodPost, "v1", "connectors", name)
	r.body, r.anonymous = bytesBody{"application/json", bytes.NewReader(body)}, true
	for name, values := range headers {
		r.header[http.CanonicalHeaderKey(name)] = values
	}
	return call[api.Received](ctx, c, r)
}

// TestTarget sends a test to a reply target and tells what came of it, also when it
// failed.
func (c *Client) TestTarget(ctx context.Context, target *api.ReplyTarget) (*api.TargetTest, error) {
	r := to(http.MethodPost, "v1", "targets", "test").with("user_id", c.user)
	r.body = api.TestTarget{Target: *target}
	return call[api.TargetTest](ctx, c, r)
}

// SigningKey reads the public keys of a secret that signs webhooks with ed25519.
func (c *Client) SigningKey(ctx context.Context, secret string) (*api.SigningKey, error) {
	return call[api.SigningKey](ctx, c, to(http.MethodGet, "v1", "signing-keys", secret))
}

// CreateToken creates a token, whose text is in the answer this once.
func (c *Client) CreateToken(ctx context.Context, req *api.CreateToken) (*api.Token, error) {
	r := to(http.MethodPost, "v1", "tokens")
	r.body = req
	return call[api.Token](ctx, c, r)
}

// RevokeToken revokes a token by its tok_… id.
func (c *Client) RevokeToken(ctx context.Context, token string) error {
	_, err := c.do(ctx, to(http.MethodDelete, "v1", "tokens", token), nil)
	return err
}

// Health says whether the daemon's process answers.
func (c *Client) Health(ctx context.Context) (*api.Health, error) {
	return call[api.Health](ctx, c, now("healthz"))
}

// Ready says whether the daemon takes work.
func (c *Client) Ready(ctx context.Context) (*api.Health, error) {
	return call[api.Health](ctx, c, now("readyz"))
}

// Metrics reads what the daemon counts, in Prometheus' text format. It wants a
// token that is not bound to a user.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	res, err := c.send(ctx, to(http.MethodGet, "metrics"))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return readAll(ctx, res.Body)
}

// OpenAPI reads the daemon's OpenAPI document.
func (c *Client) OpenAPI(ctx context.Context) (api.Raw, error) {
	out, err := call[api.Raw](ctx, c, to(http.MethodGet, "openapi.json"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// DiffQuery says what is compared: all of a session, a run, a step, or what lies
// between two ends, each a step or the tree of a snapshot.
type DiffQuery struct {
	Run, Step, From, To string
	Stat                bool // without the differences of texts
}

// Diff reads what changed in a session's workspace.
func (c *Client) Diff(ctx context.Context, session string, q DiffQuery) (*api.FilesDiff, error) {
	r := c.inSession(http.MethodGet, session, "diff").with("run", q.Run).with("step", q.Step).with("from", q.From).with("to", q.To)
	if q.Stat {
		r = r.with("stat", "true")
	}
	return call[api.FilesDiff](ctx, c, r)
}

// now asks how the daemon is at this moment.
func now(path string) *request {
	r := to(http.MethodGet, path)
	r.once = true
	return r
}
