// Package problem is the house's one edge error: what kind of trouble it is,
// a text that is safe to show, and a private cause that is only logged.
//
// Rooms return it, one function of each door renders it: HTTP as RFC 9457
// problem details, the command line as a message and an exit code. Code is
// stable and snake_case; clients decide by it and never by the text.
package problem

import (
	"errors"
	"fmt"
)

// Kind says what sort of trouble an error is. It decides the HTTP status and
// the exit code of the command line.
type Kind string

// The kinds of trouble.
const (
	Invalid         Kind = "invalid"         // the caller's request is wrong
	Unauthenticated Kind = "unauthenticated" // no token, or not a known one
	Forbidden       Kind = "forbidden"       // known, but not allowed
	NotFound        Kind = "not_found"       // nothing of that name the caller may see
	Conflict        Kind = "conflict"        // the state of things forbids it now
	Gone            Kind = "gone"            // it was erased
	TooLarge        Kind = "too_large"       // past a documented bound
	Limited         Kind = "limited"         // too much at once; later is fine
	Unavailable     Kind = "unavailable"     // the daemon cannot do it now
	Full            Kind = "full"            // there is no room to store it; nothing of it was
	Internal        Kind = "internal"        // our own fault; the cause is logged, never shown
)

// status and exit are the one table from kind to the codes of the doors.
var table = map[Kind]struct{ status, exit int }{
	Invalid:         {400, 4},
	Unauthenticated: {401, 4},
	Forbidden:       {403, 4},
	NotFound:        {404, 4},
	Conflict:        {409, 4},
	Gone:            {410, 4},
	TooLarge:        {413, 4},
	Limited:         {429, 4},
	Unavailable:     {503, 3},
	Full:            {507, 4},
	Internal:        {500, 1},
}

// Status is the HTTP status of the kind (RFC 9110).
func (k Kind) Status() int {
	if row, ok := table[k]; ok {
		return row.status
	}
	return 500
}

// ExitCode is the exit code of the command line for the kind.
func (k Kind) ExitCode() int {
	if row, ok := table[k]; ok {
		return row.exit
	}
	return 1
}

// KindOfStatus is the kind that a client gives an HTTP status it was answered.
func KindOfStatus(status int) Kind {
	for k, row := range table {
		if row.status == status {
			return k
		}
	}
	if status >= 400 && status < 500 {
		return Invalid
	}
	return Internal
}

// Issue is one of several findings about one request.
type Issue struct {
	Path string `json:"path,omitempty"` // JSON path, or file:line:column
	Text string `json:"text"`
}

// Error is trouble at the edge. Detail and Issues are safe to show to the
// caller; the cause is not.
type Error struct {
	Kind   Kind
	Code   string // stable, snake_case
	Detail string
	Issues []Issue
	cause  error
}

// New returns an error of a kind with a stable code and a text that is safe to show.
func New(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Because returns a copy that carries a private cause, for the log and for errors.Is.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// With returns a copy that carries issues.
func (e *Error) With(issues ...Issue) *Error {
	c := *e
	c.Issues = append(append([]Issue(nil), e.Issues...), issues...)
	return &c
}

// Error is for the log: it includes the cause.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Code + ": " + e.Detail + ": " + e.cause.Error()
	}
	return e.Code + ": " + e.Detail
}

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Of gives the edge error in err's chain. Any other error is Internal, with a
// fixed text: what is not meant for the caller is not shown.
func Of(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return (&Error{Kind: Internal, Code: "internal", Detail: "something went wrong on our side; the daemon's log has the cause"}).Because(err)
}

// Is says whether err's chain holds an edge error with this code.
func Is(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
