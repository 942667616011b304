package httptool

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// request makes the HTTP request of a call, and gives what takes
// the secrets in it out of texts. A
// *tool.Error is a failure before anything was sent.
//
// About repetitions by net/http: it repeats a request by itself only on a
// connection that was used before, which a server may close just as the
// request goes out. That is harmless when nothing was written, or for a call
// that may be repeated. For any other call it would be a second effect (with a
// header Idempotency-Key, or a GET), or an outcome in doubt for nothing. So a
// call of level write or above has a connection of its own, and no copy of its
// body is given out.
func (t *Tool) request(ctx context.Context, call tool.Call) (*http.Request, *secret.Scrubber, error) {
	u, body := *t.url, []byte(nil)
	if t.config.Method == http.MethodGet {
		query, err := t.query(call.Input)
		if err != nil {
			return nil, nil, err
		}
		u.RawQuery = query
	} else if body = call.Input; len(body) == 0 {
		body = []byte("{}")
	}
	req, err := http.NewRequestWithContext(ctx, t.config.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, tool.NewError("the request could not be made", nil) // its text holds the address
	}
	if !t.config.SideEffect.Repeatable() {
		req.Close = true
		req.GetBody = nil
	}
	req.Header.Set("User-Agent", "holdfast")
	req.Header.Set("Accept", "application/json, */*;q=0.5")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	secrets, err := t.setHeaders(req)
	if err != nil {
		return nil, nil, err
	}
	if name := t.config.IdempotencyHeader; name != "" {
		if call.CallID == "" || !netguard.ValidHeaderValue(call.CallID) {
			return nil, nil, tool.NewError("the call has no id that could be its idempotency key", nil)
		}
		req.Header.Set(name, call.CallID)
	}
	return req, secrets, nil
}

func (t *Tool) setHeaders(req *http.Request) (*secret.Scrubber, error) {
	secrets := new(secret.Scrubber)
	for name, value := range t.config.Headers {
		v, err := value()
		if err != nil {
			if problem.Is(err, "secret_not_for_host") {
				return nil, tool.NewError("a credential of the tool is not bound to the tool's host (secret_not_for_host); nothing was sent", fmt.Errorf("header %s: %w", name, err))
			}
			return nil, tool.NewError("a credential of the tool is not available", fmt.Errorf("header %s: %w", name, err))
		}
		if len(v) > maxHeaderValue || !netguard.ValidHeaderValue(v) {
			if problem.Is(err, "secret_not_for_host") {
				return nil, tool.NewError("a credential of the tool is not bound to the tool's host (secret_not_for_host); nothing was sent", fmt.Errorf("header %s: %w", name, err))
			}
			return nil, tool.NewError("a credential of the tool cannot be sent in a header", fmt.Errorf("header %s: value not usable", name))
		}
		req.Header.Set(name, v)
		secrets.Add(v)
	}
	return secrets, nil
}

// query makes the query of a GET: each member of the arguments is a parameter,
// a string as it is, null left out, anything else as JSON. A parameter that
// the declared address fixes is not the model's to add to.
func (t *Tool) query(input canonjson.Value) (string, error) {
	if input.IsZero() {
		return t.url.RawQuery, nil
	}
	args, err := input.Node()
	if err != nil || args.Kind() != canonjson.Object {
		return "", tool.NewError("the arguments are not a JSON object", err)
	}
	fixed, values := t.url.Query(), url.Values{}
	for i := range args.Len() {
		arg := args.At(i)
		if fixed.Has(arg.Name()) {
			return "", tool.NewError("the argument "+canonjson.QuoteName(arg.Name())+" is fixed by the tool's address", nil)
		}
		switch arg.Kind() {
		case canonjson.Null:
		case canonjson.String:
			values.Set(arg.Name(), arg.Text())
		default:
			values.Set(arg.Name(), string(arg.Append(nil)))
		}
	}
	query := values.Encode()
	if len(query) > maxQuery {
		return "", tool.NewError(fmt.Sprintf("the arguments are too long for a query: %d bytes, at most %d", len(query), maxQuery), nil)
	}
	if t.url.RawQuery != "" && query != "" {
		return t.url.RawQuery + "&" + query, nil
	}
	return t.url.RawQuery + query, nil
}
