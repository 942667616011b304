package session_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/derived"
)

// tables executes changes as a store would, and refuses what a store could not.
type tables map[derived.Table]map[string]row

type row map[string]any

func zero(column string) any {
	if strings.HasPrefix(column, "n_") || strings.HasSuffix(column, "_seq") || strings.HasSuffix(column, "_version") {
		return int64(0)
	}
	return ""
}

func keyText(spec derived.Spec, r row) string {
	var b strings.Builder
	for _, k := range spec.Key {
		fmt.Fprintf(&b, "%q ", r[k])
	}
	return b.String()
}

func (ts tables) exec(changes []derived.Change) error {
	for _, c := range changes {
		if err := ts.one(c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func (ts tables) one(c derived.Change) error {
	spec := derived.SpecOf(c.Table)
	if ts[c.Table] == nil {
		ts[c.Table] = map[string]row{}
	}
	table := ts[c.Table]
	known := append(slices.Clone(spec.Key), spec.Columns...)
	key := row{}
	for i, col := range slices.Concat(c.Key, c.Cols) {
		if !slices.Contains(known, col.Name) {
			return fmt.Errorf("no column %s", col.Name)
		}
		if fmt.Sprintf("%T", zero(col.Name)) != fmt.Sprintf("%T", col.Value) {
			return fmt.Errorf("column %s cannot hold a %T", col.Name, col.Value)
		}
		if i < len(c.Key) {
			key[col.Name] = col.Value
		}
	}
	if c.Op == derived.Delete {
		maps.DeleteFunc(table, func(_ string, r row) bool {
			for name, value := range key {
				if r[name] != value {
					return false
				}
			}
			return true
		})
		return nil
	}
	id := keyText(spec, key)
	if len(key) != len(spec.Key) {
		return fmt.Errorf("not the key")
	}
	r, exists := table[id]
	if exists == (c.Op == derived.Insert) {
		return fmt.Errorf("row exists: %v", exists)
	}
	if c.Op == derived.Insert {
		r = row{}
		for _, name := range known {
			r[name] = zero(name)
		}
		maps.Copy(r, key)
		table[id] = r
	}
	for _, col := range c.Cols {
		if c.Op == derived.Add {
			r[col.Name] = r[col.Name].(int64) + col.Value.(int64)
		} else {
			r[col.Name] = col.Value
		}
	}
	return nil
}

// String lists the rows with the columns that hold something.
func (ts tables) String() string {
	var b strings.Builder
	for _, spec := range derived.Specs() {
		for _, id := range slices.Sorted(maps.Keys(ts[spec.Table])) {
			b.WriteString(string(spec.Table))
			for _, name := range append(slices.Clone(spec.Key), spec.Columns...) {
				if v := ts[spec.Table][id][name]; v != zero(name) {
					fmt.Fprintf(&b, " %s=%v", name, v)
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
