package exchange

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

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

// WithStatus gives an error an HTTP status that is finer than its kind's.
func WithStatus(status int, err *problem.Error) error { return &statusError{status, err} }

// HasStatus says whether an error was given one.
func HasStatus(err error) bool {
	var se *statusError
	return errors.As(err, &se)
}

// laterError is a refusal that says when to come again.
type laterError struct {
	after time.Duration
	err   *problem.Error
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// Later gives a refusal the time after which to come again.
func Later(after time.Duration, err *problem.Error) error { return &laterError{after, err} }

// retryAfter is what stands in Retry-After: whole seconds, at least one.
func retryAfter(err error) string {
	var le *laterError
	if !errors.As(err, &le) {
		return "1"
	}
	return strconv.Itoa(max(1, int(math.Ceil(le.after.Seconds()))))
}

// ProblemOf is the one place where errors become problem details.
func ProblemOf(err error) api.Problem {
	var full *eventlog.FullError
	switch {
	case errors.As(err, &full):
		err = problem.New(problem.Full, "storage_full", "%s", full.Advice()).Because(err)
	case errors.Is(err, eventlog.ErrDamaged):
		err = problem.New(problem.Unavailable, "store_damaged", "the daemon's database is damaged: nothing more is written, and what can be read is served; the operator has to restore a backup").Because(err)
	case errors.Is(err, eventlog.ErrClosed):
		err = problem.New(problem.Unavailable, "stopping", "the daemon is stopping; try again").Because(err)
	case errors.Is(err, eventlog.ErrAway):
		err = problem.New(problem.Unavailable, "store_unavailable", "the daemon cannot reach its database now, and what it was about to write may have been written: try again, under an Idempotency-Key").Because(err)
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

// Fail renders an error, and logs what is our own fault. Once the answer has
// begun it can only end it. note is told the code before anything is written.
func (x *Exchange) Fail(err error, note func(code string)) {
	gone := x.R.Context().Err() != nil // also when the body broke off; an answer may still be heard
	p := ProblemOf(err)
	if p.Status >= 500 && !gone {
		x.Logger.LogAttrs(context.WithoutCancel(x.R.Context()), logLevel(p.Status), "request failed",
			slog.String("method", x.R.Method), slog.String("path", x.R.URL.Path), slog.String("code", p.Code), slog.String("error", err.Error()))
	}
	note(p.Code)
	if x.began {
		return
	}
	x.Discard(x.W, x.R.Body)
	h := x.W.Header()
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="holdfast"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(err))
	case http.StatusInsufficientStorage: // somebody has to make room first
		h.Set("Retry-After", "30")
	}
	Strict(h)
	h.Del("Content-Disposition")
	body, merr := Encode(p)
	if merr != nil {
		x.Logger.Error("encode problem", "error", merr)
		p.Status = http.StatusInternalServerError
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.W.WriteHeader(p.Status)
	_ = x.Write(body) // a reader that went away is nobody's trouble
}

// logLevel is that of a failed request: what will pass by itself is no error.
func logLevel(status int) slog.Level {
	if status == http.StatusServiceUnavailable || status == http.StatusInsufficientStorage {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Encode writes a type of package api: no HTML escapes, raw members as they are.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// JSON answers with a value.
func (x *Exchange) JSON(status int, v any) error {
	body, err := Encode(v)
	if err != nil {
		return err
	}
	return x.Bytes(status, "application/json", body)
}

// Bytes answers with bytes of a media type.
func (x *Exchange) Bytes(status int, media string, body []byte) error {
	h := x.W.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.Begin(status)
	_ = x.Write(body) // as in Fail
	return nil
}

// NoContent answers that there is nothing to say.
func (x *Exchange) NoContent() error {
	x.Extend(x.W)
	x.Begin(http.StatusNoContent)
	return nil
}

// Begin sends the status and the headers: from here on there is no problem to
// render.
func (x *Exchange) Begin(status int) {
	x.began = true
	x.W.WriteHeader(status)
}

// Values of headers that every answer has: it is for who asked, and no browser
// makes a page, a frame or a script of it.
var (
	noStore    = []string{"no-store"}
	noSniff    = []string{"nosniff"}
	noReferrer = []string{"no-referrer"}
	noContent  = []string{"default-src 'none'; frame-ancestors 'none'"}
)

// Strict sets the headers that every answer has.
func Strict(h http.Header) {
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["Referrer-Policy"] = noReferrer
	h["Content-Security-Policy"] = noContent
}
