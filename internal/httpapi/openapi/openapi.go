// Package openapi describes the operations of the HTTP interface: what they are
// asked, what they answer, and by which codes they refuse. The door makes its mux
// of the same descriptions that the OpenAPI document and the reference page are
// made of, so that none of them can say what the others do not.
//
// What the types of package api mean stands in their comments, and the examples
// are what the door took and gave in a story that a test tells.
package openapi

import (
	"reflect"

	"github.com/holdfast-dev/holdfast/internal/gate"
)

// Operation is a method of a path.
type Operation struct {
	Method, Path string
	ID           string // operationId
	Summary      string
	Notes        string // what a caller must know beyond the summary
	Role         gate.Role
	Params       []Param      // of query and header; those of the path follow from Path
	Body         reflect.Type // of the request, as strict JSON; nil: it has none
	Raw          bool         // the body is bytes of any kind
	Answers      []Answer     // successes
	Fails        []int        // statuses of problems, beyond those that follow from the shape
	Stream       bool         // it goes on: it counts among the streams, not the requests
}

// Param is a parameter of the query or a header. Query and Header make one.
type Param struct{ Name, In, Format, Text string }

// Query is a parameter of the query, of a JSON type.
func Query(name, format, text string) Param { return Param{name, "query", format, text} }

// Header is a header that an operation looks at.
func Header(name, format, text string) Param { return Param{name, "header", format, text} }

// Answer is a success. Gives makes one with a body that is JSON.
type Answer struct {
	Status int
	Body   reflect.Type // nil: no content
	Media  string       // default application/json; several are separated by ", "
	Text   string
}

// Gives is an answer with a body of type T.
func Gives[T any](status int, text string) Answer {
	return Answer{Status: status, Body: reflect.TypeFor[T](), Text: text}
}
