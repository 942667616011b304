package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
)

// Attempts lists the attempts of a delivery, in their order.
func (c *Client) Attempts(ctx context.Context, delivery string, p Page) (*api.List[api.Attempt], error) {
	return call[api.List[api.Attempt]](ctx, c, to(http.MethodGet, "v1", "deliveries", delivery, "attempts").page(p))
}

// AllAttempts is AllSessions of the attempts of a delivery.
func (c *Client) AllAttempts(ctx context.Context, delivery string) iter.Seq2[api.Attempt, error] {
	return every(func(cursor string) (*api.List[api.Attempt], error) {
		return c.Attempts(ctx, delivery, Page{Cursor: cursor})
	})
}

// PauseTarget has nothing more sent to a target until it is resumed.
func (c *Client) PauseTarget(ctx context.Context, target, reason string) (*api.Target, error) {
	return c.changeTarget(ctx, target, "pause", reason)
}

// ResumeTarget ends a pause.
func (c *Client) ResumeTarget(ctx context.Context, target, reason string) (*api.Target, error) {
	return c.changeTarget(ctx, target, "resume", reason)
}

// ResetTarget closes the circuit of a target; what waits is due at once.
func (c *Client) ResetTarget(ctx context.Context, target, reason string) (*api.Target, error) {
	return c.changeTarget(ctx, target, "reset", reason)
}

func (c *Client) changeTarget(ctx context.Context, target, what, reason string) (*api.Target, error) {
	r := to(http.MethodPost, "v1", "targets", target, what)
	r.body = &api.ChangeTarget{Reason: reason}
	return call[api.Target](ctx, c, r)
}
