package client

import (
	"context"
	"io"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
)

// bytesBody is a request body that is no JSON.
type bytesBody struct {
	media string
	from  io.Reader
}

// CreateAsset hands in a file. name and mediaType may be empty: the daemon finds
// in the bytes what the file is. Equal bytes of one user are one asset.
func (c *Client) CreateAsset(ctx context.Context, name, mediaType string, file io.Reader) (*api.Asset, error) {
	r := to(http.MethodPost, "v1", "assets").with("user_id", c.user).with("name", name)
	if mediaType == "" {
		mediaType = "application/octet-stream"
	}
	r.body = bytesBody{mediaType, file}
	return call[api.Asset](ctx, c, r)
}

// Assets lists assets, newest first.
func (c *Client) Assets(ctx context.Context, p Page) (*api.List[api.Asset], error) {
	return call[api.List[api.Asset]](ctx, c, to(http.MethodGet, "v1", "assets").with("user_id", c.user).page(p))
}

// Asset reads what is known of an asset.
func (c *Client) Asset(ctx context.Context, id string) (*api.Asset, error) {
	return call[api.Asset](ctx, c, to(http.MethodGet, "v1", "assets", id))
}

// AssetBytes opens the bytes of an asset; the caller closes them.
func (c *Client) AssetBytes(ctx context.Context, id string) (io.ReadCloser, error) {
	res, err := c.send(ctx, to(http.MethodGet, "v1", "assets", id, "raw"))
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
