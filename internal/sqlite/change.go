package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// tables executes changes of derived rows, and asks about them, in whatever
// transaction its connection is in. Names of tables and columns are checked
// against their description before they become SQL.
type tables struct {
	st     *statements
	prefix string // before each name of a table
	specs  map[derived.Table]derived.Spec
	text   []byte // of the statement in the making
	args   []any
}

func newTables(st *statements, prefix string) *tables {
	t := &tables{st: st, prefix: prefix, specs: make(map[derived.Table]derived.Spec)}
	for _, s := range derived.Specs() {
		t.specs[s.Table] = s
	}
	return t
}

// integer says whether a column holds an integer; see derived.Spec.
func integer(column string) bool {
	return strings.HasPrefix(column, "n_") || strings.HasSuffix(column, "_seq") || strings.HasSuffix(column, "_version")
}

// columnsOf lists all columns of a table, the key first.
func columnsOf(s derived.Spec) []string { return slices.Concat(s.Key, s.Columns) }

// apply executes one change. A set or add of a row that is not there changes nothing.
func (t *tables) apply(ctx context.Context, c derived.Change) error {
	spec, err := t.check(c)
	if err != nil {
		return err
	}
	if c.Op != derived.Insert && c.Op != derived.Delete && len(c.Cols) == 0 {
		return nil
	}
	t.text, t.args = t.text[:0], t.args[:0]
	switch c.Op {
	case derived.Insert:
		t.insert(spec.Table, c)
	case derived.Set, derived.Add:
		t.update(spec.Table, c)
	case derived.Delete:
		t.add("DELETE FROM ", t.prefix, string(spec.Table))
		t.where(c.Key)
	}
	if _, err := t.st.exec(ctx, t.text, t.args...); err != nil {
		return fmt.Errorf("%s %s: %w", c.Op, c.Table, err)
	}
	return nil
}

func (t *tables) insert(table derived.Table, c derived.Change) {
	t.add("INSERT INTO ", t.prefix, string(table), " (")
	for i, col := range slices.Concat(c.Key, c.Cols) {
		if i > 0 {
			t.add(", ")
		}
		t.add(col.Name)
		t.args = append(t.args, col.Value)
	}
	t.add(") VALUES (?", strings.Repeat(", ?", len(t.args)-1), ")")
}

func (t *tables) update(table derived.Table, c derived.Change) {
	t.add("UPDATE ", t.prefix, string(table), " SET ")
	for i, col := range c.Cols {
		if i > 0 {
			t.add(", ")
		}
		t.add(col.Name, " = ")
		if c.Op == derived.Add {
			t.add(col.Name, " + ")
		}
		t.add("?")
		t.args = append(t.args, col.Value)
	}
	t.where(c.Key)
}

// check refuses a change that does not fit its table: a programmer's mistake.
func (t *tables) check(c derived.Change) (derived.Spec, error) {
	spec, ok := t.specs[c.Table]
	if !ok {
		return spec, fmt.Errorf("no derived table %q", c.Table)
	}
	if len(c.Key) == 0 || c.Op != derived.Delete && len(c.Key) != len(spec.Key) {
		return spec, fmt.Errorf("%s %s: key of %d columns", c.Op, c.Table, len(c.Key))
	}
	for i, col := range c.Key {
		known := c.Op != derived.Delete && col.Name == spec.Key[i] ||
			c.Op == derived.Delete && (slices.Contains(spec.Key, col.Name) || slices.Contains(spec.Columns, col.Name))
		if !known || !fits(col) {
			return spec, fmt.Errorf("%s %s: key column %s", c.Op, c.Table, col.Name)
		}
	}
	for _, col := range c.Cols {
		if !slices.Contains(spec.Columns, col.Name) || !fits(col) || c.Op == derived.Add && !integer(col.Name) {
			return spec, fmt.Errorf("%s %s: column %s with %T", c.Op, c.Table, col.Name, col.Value)
		}
	}
	return spec, nil
}

func fits(c derived.Col) bool {
	if integer(c.Name) {
		_, ok := c.Value.(int64)
		return ok
	}
	_, ok := c.Value.(string)
	return ok
}

// has says whether a table has a row with this key.
func (t *tables) has(ctx context.Context, table derived.Table, key []derived.Col) (bool, error) {
	t.text, t.args = t.text[:0], t.args[:0]
	t.add("SELECT 1 FROM ", t.prefix, string(table))
	t.where(key)
	t.add(" LIMIT 1")
	var one int
	err := t.st.row(ctx, t.text, t.args, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// holds gives a *eventlog.ConditionError when condition c, the i-th, does not hold.
func (t *tables) holds(ctx context.Context, i int, c eventlog.Condition) error {
	spec, ok := t.specs[c.Table]
	if !ok || len(c.Where) == 0 {
		return eventlog.Malformed(nil, "condition %d: table %q", i, c.Table)
	}
	names := columnsOf(spec)
	for _, col := range c.Where {
		if !slices.Contains(names, col.Name) || !fits(col) {
			return eventlog.Malformed(nil, "condition %d: column %s of %s", i, col.Name, c.Table)
		}
	}
	column := c.Column
	if c.Absent && column == "" {
		column = spec.Key[0]
	}
	if !slices.Contains(names, column) {
		return eventlog.Malformed(nil, "condition %d: column %q of %s", i, column, c.Table)
	}
	t.text, t.args = t.text[:0], t.args[:0]
	t.add("SELECT DISTINCT ", column, " FROM ", t.prefix, string(c.Table))
	t.where(c.Where)
	rows, err := t.st.query(ctx, t.text, t.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var found any
	for rows.Next() {
		if err := rows.Scan(&found); err != nil {
			return err
		}
		if c.Absent {
			return &eventlog.ConditionError{Index: i, Found: found}
		}
		if slices.ContainsFunc(c.In, func(want any) bool { return same(want, found) }) {
			return nil
		}
	}
	if err := rows.Err(); err != nil || c.Absent {
		return err
	}
	return &eventlog.ConditionError{Index: i, Found: found}
}

// same compares a wanted value with one of the database.
func same(want, found any) bool {
	if n, ok := want.(int); ok {
		want = int64(n)
	}
	return want == found
}

func (t *tables) where(cols []derived.Col) {
	for i, c := range cols {
		if i == 0 {
			t.add(" WHERE ", c.Name, " = ?")
		} else {
			t.add(" AND ", c.Name, " = ?")
		}
		t.args = append(t.args, c.Value)
	}
}

func (t *tables) add(parts ...string) {
	for _, p := range parts {
		t.text = append(t.text, p...)
	}
}
