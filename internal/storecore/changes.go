package storecore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Integer says whether a column holds an integer; see derived.Spec.
func Integer(column string) bool {
	return strings.HasPrefix(column, "n_") || strings.HasSuffix(column, "_seq") || strings.HasSuffix(column, "_version")
}

// ColumnsOf lists all columns of a table, the key first.
func ColumnsOf(s derived.Spec) []string { return slices.Concat(s.Key, s.Columns) }

var specs = func() map[derived.Table]derived.Spec {
	m := make(map[derived.Table]derived.Spec)
	for _, s := range derived.Specs() {
		m[s.Table] = s
	}
	return m
}()

// CheckAppend refuses an append that is none.
func CheckAppend(a eventlog.Append) error {
	if len(a.Entries) == 0 {
		return eventlog.Malformed(nil, "no entries")
	}
	for i, e := range a.Entries {
		if e.Stream == "" || len(e.Events) == 0 || len(e.Events) > eventlog.MaxEvents {
			return eventlog.Malformed(nil, "entry %d: %d events for stream %q", i, len(e.Events), e.Stream)
		}
		if e.Follows {
			if i == 0 || a.Entries[i-1].Stream != e.Stream || e.Expect != eventlog.AnyHead || e.Epoch != 0 || e.Claim || e.Node != "" || e.Rest || len(e.Roots) > 0 {
				return eventlog.Malformed(nil, "entry %d follows no entry for stream %q", i, e.Stream)
			}
			continue
		}
		for _, before := range a.Entries[:i] {
			if before.Stream == e.Stream {
				return eventlog.Malformed(nil, "two entries for stream %q", e.Stream)
			}
		}
	}
	return nil
}

// CheckChange refuses a change that does not fit its table: a programmer's
// mistake. Names of tables and columns are checked here before they become SQL.
func CheckChange(c derived.Change) (derived.Spec, error) {
	spec, ok := specs[c.Table]
	if !ok {
		return spec, fmt.Errorf("no derived table %q", c.Table)
	}
	if len(c.Key) == 0 || c.Op != derived.Delete && len(c.Key) != len(spec.Key) {
		return spec, fmt.Errorf("%s %s: key of %d columns", c.Op, c.Table, len(c.Key))
	}
	for i, col := range c.Key {
		known := c.Op != derived.Delete && col.Name == spec.Key[i] ||
			c.Op == derived.Delete && (slices.Contains(spec.Key, col.Name) || slices.Contains(spec.Columns, col.Name))
		if !known || !Fits(col) {
			return spec, fmt.Errorf("%s %s: key column %s", c.Op, c.Table, col.Name)
		}
	}
	for _, col := range c.Cols {
		if !slices.Contains(spec.Columns, col.Name) || !Fits(col) || c.Op == derived.Add && !Integer(col.Name) {
			return spec, fmt.Errorf("%s %s: column %s with %T", c.Op, c.Table, col.Name, col.Value)
		}
	}
	return spec, nil
}

// Fits says whether the value is of the type of its column.
func Fits(c derived.Col) bool {
	if Integer(c.Name) {
		_, ok := c.Value.(int64)
		return ok
	}
	_, ok := c.Value.(string)
	return ok
}

// CheckCondition refuses a condition, the i-th, that does not fit its table,
// and gives the column to ask for.
func CheckCondition(i int, c eventlog.Condition) (column string, err error) {
	spec, ok := specs[c.Table]
	if !ok || len(c.Where) == 0 {
		return "", eventlog.Malformed(nil, "condition %d: table %q", i, c.Table)
	}
	names := ColumnsOf(spec)
	for _, col := range c.Where {
		if !slices.Contains(names, col.Name) || !Fits(col) {
			return "", eventlog.Malformed(nil, "condition %d: column %s of %s", i, col.Name, c.Table)
		}
	}
	column = c.Column
	if c.Absent && column == "" {
		column = spec.Key[0]
	}
	if !slices.Contains(names, column) {
		return "", eventlog.Malformed(nil, "condition %d: column %q of %s", i, column, c.Table)
	}
	return column, nil
}

// Holds gives a *eventlog.ConditionError unless condition c, the i-th, holds
// where these values were found in its column.
func Holds(i int, c eventlog.Condition, found []any) error {
	var last any
	for _, v := range found {
		if c.Absent {
			return &eventlog.ConditionError{Index: i, Found: v}
		}
		if slices.ContainsFunc(c.In, func(want any) bool { return Same(want, v) }) {
			return nil
		}
		last = v
	}
	if c.Absent {
		return nil
	}
	return &eventlog.ConditionError{Index: i, Found: last}
}

// Same compares a wanted value with one of the database.
func Same(want, found any) bool {
	if n, ok := want.(int); ok {
		want = int64(n)
	}
	return want == found
}

// RowsOf asks for the derived changes of events. A panic, a programmer's
// mistake, must not take other people's appends with it.
func RowsOf(rows func(event.Stream, []event.Event) []derived.Change, stream event.Stream, events []event.Event) (changes []derived.Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = eventlog.Malformed(fmt.Errorf("panic: %v", p), "derived rows of %s", stream)
		}
	}()
	return rows(stream, events), nil
}
