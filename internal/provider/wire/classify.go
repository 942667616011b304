package wire

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Classify makes the error of an HTTP answer that is no model's answer: any
// status but 200, or a 200 whose body is not what was asked for. body may be
// cut. secrets never show in the message.
func Classify(status int, h http.Header, body []byte, now time.Time, secrets ...string) *llm.Error {
	v, found := ParseVendorError(body)
	e := newError(status, v, secrets)
	media := mediaType(h)
	switch {
	case isHTML(media, body) && status < 400:
		e = llm.Errorf(llm.InvalidRequest, "the vendor answered with an HTML page (%s), not with the API: check base_url", label(media))
	case status >= 300 && status < 400:
		e.Message = "the vendor answered with a redirect, which is not followed: check base_url"
	case !found && status < 300:
		e = llm.Errorf(llm.Server, "the vendor's answer (%s) is not of the API%s", label(media), excerpt(body, secrets))
	case e.Message == "" && isHTML(media, body):
		e.Message = fmt.Sprintf("%s with an HTML page", statusText(status))
	case e.Message == "":
		e.Message = statusText(status) + excerpt(body, secrets)
	}
	e.Message = cut(e.Message, MaxMessage)
	e.Status = status
	if e.Class.Retryable() {
		e.RetryAfter = RetryAfter(h, now)
		if e.RetryAfter == 0 {
			e.RetryAfter = v.RetryDelay
		}
	}
	return e
}

// InStream makes the error that a vendor sent inside a stream whose HTTP
// status was good.
func InStream(v VendorError, secrets ...string) *llm.Error {
	e := newError(0, v, secrets)
	if e.Message == "" {
		e.Message = "the vendor reported an error without a message"
	}
	if e.Class.Retryable() {
		e.RetryAfter = v.RetryDelay
	}
	return e
}

func newError(status int, v VendorError, secrets []string) *llm.Error {
	if status < 300 {
		status = v.status()
	}
	names := []string{strings.ToLower(v.Code), strings.ToLower(v.Type)}
	words := v.Message + "\n" + v.Upstream
	words = strings.ToLower(words[:min(len(words), 8<<10)])
	e := &llm.Error{Class: classOf(status, names, words), Message: Safe(v.Message, secrets...), Status: status}
	e.Code = v.Code
	if e.Code == "" || v.status() != 0 && v.Type != "" {
		e.Code = v.Type
	}
	e.Code = cut(Safe(e.Code, secrets...), 64)
	return e
}

// excerpt shows the beginning of a body that is plain text. Broken JSON is not
// shown: its escapes could hide a credential from the scrubber.
func excerpt(body []byte, secrets []string) string {
	s := strings.TrimSpace(string(body))
	if s == "" {
		return ", and its body is empty"
	}
	if s[0] == '{' || s[0] == '[' || s[0] == '"' {
		return ""
	}
	if s = Safe(s, secrets...); s == "" {
		return ""
	}
	return ": " + s
}

func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s", status, http.StatusText(status)))
}

func mediaType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

func label(media string) string {
	if media == "" {
		return "no content type"
	}
	return cut(Safe(media), 64)
}
