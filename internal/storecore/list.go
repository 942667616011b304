package storecore

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// List is a query of one page: newest first, or with Asc oldest first, by
// columns that sort so and that no update changes. So a cursor, the values of
// the last row, stays good whatever is inserted. Places of arguments are
// written as question marks.
type List struct {
	Kind  string // first part of the cursor: one list's cursor is no other's
	From  string // the query up to its conditions
	Order []string
	Asc   bool
	Rare  bool // asked in so many forms that its statement is not kept
	Where []string
	Args  []any
	// Hide writes a column so that no index of it is used.
	Hide func(column string) string
}

// Match narrows the list, unless the value is empty.
func (l *List) Match(column, value string) {
	if value != "" {
		l.Where = append(l.Where, column+" = ?")
		l.Args = append(l.Args, value)
	}
}

// Beside narrows the list by a column whose index is kept out of it: something
// else has narrowed it further already.
func (l *List) Beside(column, value string, narrowed bool) {
	if narrowed {
		column = l.Hide(column)
	}
	l.Match(column, value)
}

// Status narrows the list to a status. The index of a status is one of the rows
// whose status is not the usual one, and few; its condition must stand in the
// query as it stands in the index.
func (l *List) Status(value, usual string, narrowed bool) (few bool) {
	if value == "" || value == usual || narrowed {
		l.Beside("status", value, narrowed)
		return false
	}
	l.Match("status", value)
	l.Where = append(l.Where, "status <> '"+usual+"'")
	return true
}

// MadeAt narrows the list to a range of times in a column that the order begins with.
func (l *List) MadeAt(column string, r eventlog.Range) {
	l.Asc = r.Asc
	if !r.Since.IsZero() {
		l.Where = append(l.Where, column+" >= ?")
		l.Args = append(l.Args, StoredFrom(r.Since))
	}
	if !r.Until.IsZero() {
		l.Where = append(l.Where, column+" < ?")
		l.Args = append(l.Args, StoredFrom(r.Until))
	}
	l.Rare = l.Rare || r != (eventlog.Range{})
}

// StoredFrom is the first stored time that is not before t: stored times are
// cut to microseconds.
func StoredFrom(t time.Time) string {
	if cut := t.Truncate(time.Microsecond); cut.Before(t) {
		t = cut.Add(time.Microsecond)
	}
	return event.FormatTime(t)
}

// The bounds of a page.
const (
	defaultLimit = 50
	maxLimit     = 200
	maxCursor    = 1024
)

// LimitOf is the number of rows of a page.
func LimitOf(p eventlog.Page) int {
	if limit := min(p.Limit, maxLimit); limit >= 1 {
		return limit
	}
	return defaultLimit
}

// Query makes the text. It asks for one row more than the page holds, which
// tells whether another page follows.
func (l *List) Query(p eventlog.Page) (text string, limit int, err error) {
	limit = LimitOf(p)
	sign, way := "<", " DESC"
	if l.Asc {
		sign, way = ">", ""
	}
	if p.Cursor != "" {
		after, err := DecodeCursor(l.CursorKind(), p.Cursor, len(l.Order))
		if err != nil {
			return "", 0, err
		}
		l.Where = append(l.Where, "("+strings.Join(l.Order, ", ")+") "+sign+" (?"+strings.Repeat(", ?", len(after)-1)+")")
		for _, v := range after {
			l.Args = append(l.Args, v)
		}
	}
	text = l.From
	if len(l.Where) > 0 {
		text += " WHERE " + strings.Join(l.Where, " AND ")
	}
	text += " ORDER BY " + strings.Join(l.Order, way+", ") + way + " LIMIT ?"
	l.Args = append(l.Args, limit+1)
	return text, limit, nil
}

// CursorKind is the kind that cursors of the list carry: those of the other
// direction are another list's.
func (l *List) CursorKind() string {
	if l.Asc {
		return l.Kind + "+"
	}
	return l.Kind
}

// EncodeCursor makes the cursor of a list behind a row with these values.
func EncodeCursor(kind string, values []string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "\n" + strings.Join(values, "\n")))
}

// DecodeCursor gives the n values of a cursor of a list.
func DecodeCursor(kind, cursor string, n int) ([]string, error) {
	bad := problem.New(problem.Invalid, "invalid_cursor", "the cursor is not one that this list gave")
	if len(cursor) > maxCursor {
		return nil, bad
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return nil, bad.Because(err)
	}
	parts := strings.Split(string(text), "\n")
	if len(parts) != n+1 || parts[0] != kind {
		return nil, bad
	}
	return parts[1:], nil
}

// AttemptsKind is the first part of a cursor of attempts.
const AttemptsKind = "attempts"

// AttemptsAfter is the page of a list of attempts: its size, and the number
// behind which it begins.
func AttemptsAfter(p eventlog.Page) (limit int, after int64, err error) {
	limit = LimitOf(p)
	if p.Cursor == "" {
		return limit, 0, nil
	}
	parts, err := DecodeCursor(AttemptsKind, p.Cursor, 1)
	if err != nil {
		return limit, 0, err
	}
	if after, err = strconv.ParseInt(parts[0], 10, 64); err != nil {
		return limit, 0, problem.New(problem.Invalid, "invalid_cursor", "the cursor is not one that this list gave").Because(err)
	}
	return limit, after, nil
}
