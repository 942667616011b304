package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// problemBase begins the type of every problem; its code follows.
const problemBase = "https://holdfast.dev/problems/"

// statusError is an edge error whose HTTP status is finer than its kind.
type statusError struct {
	status int
	err    *problem.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func withStatus(status int, err *problem.Error) error { return &statusError{status, err} }

// problemOf is the one place where errors become problem details.
func problemOf(err error) api.Problem {
	var full *eventlog.FullError
	switch {
	case errors.As(err, &full):
		err = problem.New(problem.Full, "storage_full", "%s", full.Advice()).Because(err)
	case errors.Is(err, eventlog.ErrDamaged):
		err = problem.New(problem.Unavailable, "store_damaged", "the daemon's database is damaged: nothing more is written, and what can be read is served; the operator has to restore a backup").Because(err)
	case errors.Is(err, eventlog.ErrClosed):
		err = problem.New(problem.Unavailable, "stopping", "the daemon is stopping; try again").Because(err)
	case errors.Is(err, eventlog.ErrAway):
		err = problem.New(problem.Unavailable, "store_unavailable", "the daemon cannot reach its database now; try again").Because(err)
	case errors.Is(err, eventlog.ErrErased):
		err = problem.New(problem.Gone, "session_erased", "the session was erased").Because(err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		err = problem.New(problem.Unavailable, "timeout", "this was given up; its outcome is not known").Because(err)
	}
	p := problem.Of(err)
	status := p.Kind.Status()
	var se *statusError
	if errors.As(err, &se) {
		status = se.status
	}
	out := api.Problem{Type: problemBase + p.Code, Title: http.StatusText(status), Status: status, Code: p.Code, Detail: clean(p.Detail)}
	for _, is := range p.Issues {
		out.Issues = append(out.Issues, api.Issue{Path: clean(is.Path), Text: clean(is.Text)})
	}
	return out
}

// maxDetail bounds a text of a problem, in bytes.
const maxDetail = 2000

// clean keeps what echoes a caller's text valid and short.
func clean(s string) string {
	s, _ = canonjson.ReplaceInvalid(s)
	return canonjson.CutRunes(s, maxDetail)
}

// fail renders an error, and logs what is our own fault. Once the answer has
// begun it can only end it.
func (c *call) fail(err error) {
	gone := c.r.Context().Err() != nil // also when the body broke off; an answer may still be heard
	p := problemOf(err)
	if p.Status >= 500 && !gone {
		c.cfg.Logger.LogAttrs(context.WithoutCancel(c.r.Context()), logLevel(p.Status), "request failed",
			slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path), slog.String("code", p.Code), slog.String("error", err.Error()))
	}
	c.refused(p.Code)
	if c.began {
		return
	}
	c.discard(c.w, c.r.Body)
	h := c.w.Header()
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="holdfast"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(err))
	case http.StatusInsufficientStorage: // somebody has to make room first
		h.Set("Retry-After", "30")
	}
	strict(h)
	h.Del("Content-Disposition")
	body, merr := encode(p)
	if merr != nil {
		c.cfg.Logger.Error("encode problem", "error", merr)
		p.Status = http.StatusInternalServerError
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(p.Status)
	_ = c.write(body) // a reader that went away is nobody's trouble
}

// logLevel is that of a failed request: what will pass by itself is no error.
func logLevel(status int) slog.Level {
	if status == http.StatusServiceUnavailable || status == http.StatusInsufficientStorage {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// encode writes a type of package api: no HTML escapes, raw members as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// json answers with a value.
func (c *call) json(status int, v any) error {
	body, err := encode(v)
	if err != nil {
		return err
	}
	return c.bytes(status, "application/json", body)
}

func (c *call) bytes(status int, media string, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.began = true
	c.w.WriteHeader(status)
	_ = c.write(body) // as in fail
	return nil
}

func (c *call) noContent() error {
	c.began = true
	c.extend(c.w)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func parseQuery(raw string) (url.Values, error) {
	if len(raw) > 16<<10 {
		return nil, errors.New("the query is too long")
	}
	return url.ParseQuery(raw)
}
