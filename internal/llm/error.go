package llm

import (
	"errors"
	"fmt"
	"time"
)

// Class is what the rules know of a failed attempt.
type Class string

// The classes of failed attempts.
const (
	Auth            Class = "auth"
	Billing         Class = "billing"
	RateLimit       Class = "rate_limit"
	Overloaded      Class = "overloaded"
	ContextOverflow Class = "context_overflow"
	ContentFilter   Class = "content_filter"
	InvalidRequest  Class = "invalid_request"
	Transport       Class = "transport" // nothing, or not all, came over the wire
	Truncated       Class = "truncated" // the stream ended without an end
	Server          Class = "server"
	Protocol        Class = "protocol" // the stream broke the order of its parts
	UnknownClass    Class = "unknown"
	Aborted         Class = "aborted"   // we stopped it: cancel or interrupt
	Abandoned       Class = "abandoned" // begun by a former owner, its outcome is not known
)

// Retryable says whether another attempt of the same request may help.
func (c Class) Retryable() bool {
	switch c {
	case RateLimit, Overloaded, Transport, Truncated, Server, UnknownClass, Abandoned:
		return true
	}
	return false
}

// Error is the failure of one attempt. Message is safe to show and bounded:
// it holds the vendor's words, never a header, a body or a credential.
type Error struct {
	Class      Class
	Message    string
	Status     int           // HTTP status, 0 when none was seen
	Code       string        // the vendor's own code or type
	RetryAfter time.Duration // how long the vendor asked to wait; 0 when it did not
	cause      error
}

// Errorf makes an error of a class.
func Errorf(class Class, format string, args ...any) *Error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...)}
}

// Because returns a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Error gives class and message.
func (e *Error) Error() string { return string(e.Class) + ": " + e.Message }

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// AsError gives the *Error in err's chain; any other error is of class unknown,
// with a fixed message, since its text may hold anything.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(UnknownClass, "the model adapter failed").Because(err)
}
