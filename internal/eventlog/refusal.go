package eventlog

import (
	"errors"
	"fmt"
)

// MalformedError says that an append is not one that the log takes: it has no
// entries, too many events, values that cannot be written, or rows that collide
// or cannot be computed. Reason is fit for a log line; it holds no content.
type MalformedError struct {
	Reason string
	cause  error
}

// Malformed makes a MalformedError; cause, which may be nil, stays private.
func Malformed(cause error, format string, args ...any) error {
	return &MalformedError{Reason: fmt.Sprintf(format, args...), cause: cause}
}

func (e *MalformedError) Error() string {
	if e.cause != nil {
		return e.Reason + ": " + e.cause.Error()
	}
	return e.Reason
}

// Unwrap gives the private cause.
func (e *MalformedError) Unwrap() error { return e.cause }

// Refusal says in fixed words why the same append can never succeed, however
// often it is sent; empty when it may: the store is in trouble, the head moved,
// the appender does not own the stream. Conditions are counted in: what does
// not hold may hold one day, but then it is another decision.
func Refusal(err error) string {
	var condition *ConditionError
	var duplicate *DuplicateError
	var asset *AssetError
	var malformed *MalformedError
	switch {
	case errors.As(err, &condition):
		return "a precondition does not hold"
	case errors.As(err, &duplicate):
		return "it is there already"
	case errors.As(err, &asset):
		return "it refers to a file that is not there"
	case errors.As(err, &malformed):
		return "the log cannot take it"
	}
	return ""
}
