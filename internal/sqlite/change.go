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
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// tables executes changes of derived rows, and asks about them, in whatever
// transaction its connection is in.
type tables struct {
	st     *statements
	prefix string // before each name of a table
	text   []byte // of the statement in the making
	args   []any
}

func newTables(st *statements, prefix string) *tables {
	return &tables{st: st, prefix: prefix}
}

// apply executes one change. A set or add of a row that is not there changes nothing.
func (t *tables) apply(ctx context.Context, c derived.Change) error {
	spec, err := storecore.CheckChange(c)
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
	column, err := storecore.CheckCondition(i, c)
	if err != nil {
		return err
	}
	t.text, t.args = t.text[:0], t.args[:0]
	t.add("SELECT DISTINCT ", column, " FROM ", t.prefix, string(c.Table))
	t.where(c.Where)
	rows, err := t.st.query(ctx, t.text, t.args...)
	if err != nil {
		return err
	}
	found, err := collect(rows, func(rows *sql.Rows) (v any, err error) { return v, rows.Scan(&v) })
	if err != nil {
		return err
	}
	return storecore.Holds(i, c, found)
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
