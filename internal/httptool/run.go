package httptool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Run does one call by one HTTP request.
//
//   - 2xx: the body is the result; JSON where the content type says so and all
//     of it is there. What is past MaxResponse is cut off, and marked.
//   - 4xx, 307 and 308: the service refused; a definite failure, with the
//     status and an excerpt of the body.
//   - Anything else, no answer in time, or a connection that broke after it
//     stood: for a call that may be repeated a failure; for any other the
//     outcome is unknown (tool.ErrOutcomeUnknown). Other redirects are among
//     these, since services answer so after they did the work (303).
//   - Failures before a connection stood (refused address, name, TLS) are definite.
func (t *Tool) Run(ctx context.Context, call tool.Call) (tool.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	// Once there is a connection, the client's goroutine may write to it at any
	// instant until Do returns: from here on the request counts as sent.
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	req, secrets, err := t.request(traced, call)
	if err != nil {
		return tool.Result{}, err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return tool.Result{}, t.unanswered(sent.Load(), err)
	}
	defer resp.Body.Close()
	status := resp.StatusCode
	switch {
	case status >= 200 && status < 300:
		return t.result(resp, secrets)
	case status >= 400 && status < 500, status == http.StatusTemporaryRedirect, status == http.StatusPermanentRedirect:
		// An excerpt that does not come changes nothing about the refusal.
		a, _ := read(resp, secrets, maxExcerpt)
		return tool.Result{}, tool.NewError(said(status)+excerpt(a.text), nil)
	default:
		a, _ := read(resp, secrets, maxExcerpt)
		return tool.Result{}, t.doubt(said(status)+excerpt(a.text), nil)
	}
}

// result reads a good answer.
func (t *Tool) result(resp *http.Response, secrets *secret.Scrubber) (tool.Result, error) {
	a, err := read(resp, secrets, t.config.MaxResponse)
	switch {
	case err != nil:
		return tool.Result{}, t.doubt(said(resp.StatusCode)+", but its answer broke off", plain(err))
	case !a.whole:
		return tool.Result{Output: a.text + fmt.Sprintf("\n[cut: the answer is longer than %d bytes]", t.config.MaxResponse)}, nil
	case a.text == "":
		return tool.Result{Output: said(resp.StatusCode) + " and no content"}, nil
	}
	return tool.Result{Output: a.text, JSON: a.json}, nil
}

// unanswered judges a request that got no answer.
func (t *Tool) unanswered(sent bool, err error) error {
	var (
		timeout net.Error
		dns     *net.DNSError
	)
	late := errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case errors.Is(err, netguard.ErrRefused):
		return tool.NewError("the tool was not called: "+netguard.Refusal(err)+"; nothing was sent", plain(err))
	case !sent && errors.As(err, &dns):
		return tool.NewError("the name of the service could not be resolved; nothing was sent", plain(err))
	case !sent && late:
		return tool.NewError("the service could not be reached in time; nothing was sent", plain(err))
	case !sent:
		return tool.NewError("the service could not be reached; nothing was sent", plain(err))
	case errors.Is(err, context.Canceled):
		return t.doubt("the call was stopped before the answer came", plain(err))
	case late:
		return t.doubt("the service did not answer in time", plain(err))
	}
	return t.doubt("the connection broke before the answer came", plain(err))
}

// doubt is a failure after which the effect may have happened.
func (t *Tool) doubt(text string, cause error) error {
	if t.config.SideEffect.Repeatable() {
		return tool.NewError(text, cause)
	}
	unknown := tool.ErrOutcomeUnknown
	if cause != nil {
		unknown = fmt.Errorf("%w: %w", unknown, cause)
	}
	return tool.NewError(text+"; whether the call took effect is not known", unknown)
}

// plain takes the address off an error of net/http: its query may hold
// arguments, and the cause goes to the log.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func said(status int) string {
	return strings.TrimSpace(fmt.Sprintf("the service answered %d %s", status, http.StatusText(status)))
}

func excerpt(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + text
}

// answer is the body of an answer, within bounds and without the secrets.
type answer struct {
	text  string // valid UTF-8 that does not end inside a rune
	whole bool   // nothing was left out
	json  bool   // the service says so, and nothing was torn
}

// read reads at most limit bytes of an answer's body.
func read(resp *http.Response, secrets *secret.Scrubber, limit int64) (answer, error) {
	// A little more is read, so that a secret on the border is seen in full.
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+int64(secrets.Reach())))
	text, _ := canonjson.ReplaceInvalid(string(raw))
	all := int64(len(text))
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	json := kind == "application/json" || strings.HasSuffix(kind, "+json")
	if start := strings.TrimLeft(text, " \t\r\n"); json || start != "" && strings.IndexByte(`{["`, start[0]) >= 0 {
		var torn bool
		text, torn = secrets.HeadJSON(text, int(limit))
		json = json && !torn
	} else {
		text = secrets.Head(text, int(limit))
	}
	whole := int64(len(raw)) <= limit && all <= limit && int64(len(text)) <= limit
	return answer{canonjson.CutRunes(text, int(limit)), whole, json}, err
}
