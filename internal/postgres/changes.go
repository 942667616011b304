package postgres

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/derived"
)

// changeSet gathers changes of derived rows, so that many rows are one
// statement. Its changes were checked. Within a table order counts only where two
// changes meet one row: then the later one goes into another wave.
type changeSet struct {
	tables map[derived.Table]*tableChanges
}

type tableChanges struct {
	waves []*wave
}

type wave struct {
	groups []*group
	rows   map[string]bool // keys of the rows that it changes
	wide   bool            // it deletes by more than keys, and takes nothing else
}

// group is one statement: rows with one operation and the same columns.
type group struct {
	table derived.Table
	op    derived.Op
	keys  int
	names []string
	rows  rowset // of the values of the names
}

func newChangeSet() *changeSet { return &changeSet{tables: map[derived.Table]*tableChanges{}} }

// keyOf writes a key as one string.
func keyOf(key []derived.Col) string {
	if len(key) == 1 {
		if s, ok := key[0].Value.(string); ok {
			return s
		}
	}
	var b strings.Builder
	for _, c := range key {
		switch v := c.Value.(type) {
		case string:
			b.WriteString(strconv.Itoa(len(v)))
			b.WriteByte(':')
			b.WriteString(v)
		case int64:
			b.WriteString(strconv.FormatInt(v, 10))
			b.WriteByte(';')
		}
	}
	return b.String()
}

// wide says whether a delete names other columns than the key.
func wide(c derived.Change, spec derived.Spec) bool {
	if c.Op != derived.Delete {
		return false
	}
	if len(c.Key) != len(spec.Key) {
		return true
	}
	for i := range c.Key {
		if c.Key[i].Name != spec.Key[i] {
			return true
		}
	}
	return false
}

func (s *changeSet) add(c derived.Change) {
	if (c.Op == derived.Set || c.Op == derived.Add) && len(c.Cols) == 0 {
		return
	}
	t := s.tables[c.Table]
	if t == nil {
		t = &tableChanges{}
		s.tables[c.Table] = t
	}
	isWide := wide(c, derived.SpecOf(c.Table))
	key := keyOf(c.Key)
	var w *wave
	if n := len(t.waves); n > 0 {
		w = t.waves[n-1]
	}
	if w == nil || isWide || w.wide || w.rows[key] {
		w = &wave{rows: map[string]bool{}, wide: isWide}
		t.waves = append(t.waves, w)
	}
	w.rows[key] = true
	w.groupFor(c).add(c)
}

func (w *wave) groupFor(c derived.Change) *group {
	for _, g := range w.groups {
		if g.fits(c) {
			return g
		}
	}
	g := &group{table: c.Table, op: c.Op, keys: len(c.Key)}
	for _, cols := range [][]derived.Col{c.Key, c.Cols} {
		for _, col := range cols {
			g.names = append(g.names, col.Name)
		}
	}
	w.groups = append(w.groups, g)
	return g
}

func (g *group) fits(c derived.Change) bool {
	if g.op != c.Op || g.keys != len(c.Key) || len(g.names) != len(c.Key)+len(c.Cols) {
		return false
	}
	for i := range c.Key {
		if g.names[i] != c.Key[i].Name {
			return false
		}
	}
	for i := range c.Cols {
		if g.names[g.keys+i] != c.Cols[i].Name {
			return false
		}
	}
	return true
}

func (g *group) add(c derived.Change) {
	g.rows.row()
	for _, cols := range [][]derived.Col{c.Key, c.Cols} {
		for i := range cols {
			g.rows.value(cols[i].Value)
		}
	}
}

// text is the group's statement, over tables with a prefix.
func (g *group) text(prefix string) string {
	var b strings.Builder
	name := prefix + string(g.table)
	match := func(first string) {
		for i := range g.keys {
			b.WriteString(first + "t." + g.names[i] + " = u.v" + strconv.Itoa(i))
			first = " AND "
		}
	}
	switch g.op {
	case derived.Insert:
		b.WriteString("INSERT INTO " + name + " (" + strings.Join(g.names, ", ") + ") SELECT * FROM " + recordset(1, g.names, "u"))
	case derived.Set, derived.Add:
		b.WriteString("UPDATE " + name + " t SET ")
		for i := g.keys; i < len(g.names); i++ {
			if i > g.keys {
				b.WriteString(", ")
			}
			b.WriteString(g.names[i] + " = ")
			if g.op == derived.Add {
				b.WriteString("t." + g.names[i] + " + ")
			}
			b.WriteString("u.v" + strconv.Itoa(i))
		}
		b.WriteString(" FROM " + recordset(1, g.names, "u"))
		match(" WHERE ")
	case derived.Delete:
		b.WriteString("DELETE FROM " + name + " t USING " + recordset(1, g.names, "u"))
		match(" WHERE ")
	}
	return b.String()
}

// queue puts the statements into a message.
func (s *changeSet) queue(b *pgx.Batch, sql func(string) string, prefix string) {
	for _, spec := range derived.Specs() {
		t := s.tables[spec.Table]
		if t == nil {
			continue
		}
		for _, w := range t.waves {
			for _, g := range w.groups {
				b.Queue(sql(g.text(prefix)), g.rows.arg())
			}
		}
	}
}
