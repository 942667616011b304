package postgres

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// rowset is many rows as one argument of a statement: a JSON array of objects, with
// the columns v0, v1 and so on. An array for each column would be as good, but that the
// server makes a table of each first, which takes longer than all else where there are
// many columns and few rows.
type rowset struct {
	b    []byte
	rows int
	cols int // of the row under way
}

// row begins the next row.
func (r *rowset) row() {
	if r.rows++; r.rows > 1 {
		r.b = append(r.b, "},{"...)
	} else {
		r.b = append(r.b, "[{"...)
	}
	r.cols = 0
}

func (r *rowset) name() {
	if r.cols > 0 {
		r.b = append(r.b, ',')
	}
	r.b = append(r.b, `"v`...)
	r.b = strconv.AppendInt(r.b, int64(r.cols), 10)
	r.b = append(r.b, `":`...)
	r.cols++
}

// text adds a value as text can hold it.
func (r *rowset) text(s string) {
	r.name()
	b, err := jsontext.AppendQuote(r.b, toText(s))
	if err != nil { // toText leaves nothing that is not UTF-8
		panic("postgres: " + err.Error())
	}
	r.b = b
}

func (r *rowset) int(n int64) {
	r.name()
	r.b = strconv.AppendInt(r.b, n, 10)
}

func (r *rowset) bool(v bool) {
	r.name()
	r.b = strconv.AppendBool(r.b, v)
}

// bytes adds a few bytes, in the text that PostgreSQL has for them.
func (r *rowset) bytes(p []byte) {
	r.name()
	r.b = append(r.b, `"\\x`...)
	for _, c := range p {
		r.b = append(r.b, hexDigits[c>>4], hexDigits[c&15])
	}
	r.b = append(r.b, '"')
}

// value adds an int64 or a string.
func (r *rowset) value(v any) {
	switch v := v.(type) {
	case int64:
		r.int(v)
	case string:
		r.text(v)
	default:
		panic("postgres: a derived value is an int64 or a string")
	}
}

// arg is the argument for a statement over recordset.
func (r *rowset) arg() []byte {
	if r.rows == 0 {
		return []byte("[]")
	}
	return append(r.b, "}]"...)
}

// recordset is the table of the rows of argument n, whose columns have names after
// which their types go.
func recordset(n int, names []string, alias string) string {
	types := make([]string, len(names))
	for i, name := range names {
		types[i] = "text"
		if storecore.Integer(name) {
			types[i] = "bigint"
		}
	}
	return recordsetOf(n, types, alias)
}

func recordsetOf(n int, types []string, alias string) string {
	var as strings.Builder
	for i, t := range types {
		if i > 0 {
			as.WriteString(", ")
		}
		as.WriteString("v" + strconv.Itoa(i) + " " + t)
	}
	return "json_to_recordset($" + strconv.Itoa(n) + "::json) AS " + alias + "(" + as.String() + ")"
}
