package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
)

// SetSecret sets a secret slot: of the client's user, or else of the token's, or
// the daemon's own. The value is shown by nothing again; one that the daemon
// drew is in the answer this once.
func (c *Client) SetSecret(ctx context.Context, name string, req *api.PutSecret) (*api.Secret, error) {
	r := to(http.MethodPut, "v1", "secrets", name).with("user_id", c.user)
	r.body = req
	return call[api.Secret](ctx, c, r)
}

// Secret reads what is known of a slot.
func (c *Client) Secret(ctx context.Context, name string) (*api.Secret, error) {
	return call[api.Secret](ctx, c, to(http.MethodGet, "v1", "secrets", name).with("user_id", c.user))
}

// Secrets lists slots, by user and name.
func (c *Client) Secrets(ctx context.Context, p Page) (*api.List[api.Secret], error) {
	return call[api.List[api.Secret]](ctx, c, to(http.MethodGet, "v1", "secrets").with("user_id", c.user).page(p))
}

// AllSecrets goes over the slots, page by page as they are asked for.
func (c *Client) AllSecrets(ctx context.Context) iter.Seq2[api.Secret, error] {
	return every(func(cursor string) (*api.List[api.Secret], error) { return c.Secrets(ctx, Page{Cursor: cursor}) })
}

// DeleteSecret deletes a slot with all versions.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := c.do(ctx, to(http.MethodDelete, "v1", "secrets", name).with("user_id", c.user), nil)
	return err
}

// RekeySecrets does one step of sealing slots anew under the current master
// key. Repeat it until Left is 0.
func (c *Client) RekeySecrets(ctx context.Context) (*api.Rekeyed, error) {
	return call[api.Rekeyed](ctx, c, to(http.MethodPost, "v1", "rekey-secrets"))
}
