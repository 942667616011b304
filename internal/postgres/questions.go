package postgres

import (
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// lookups are questions after rows of one table by the same columns.
type lookups struct {
	questions []question
	names     []string // of the columns that rows are found by
	columns   []string // of which values are asked for
	rows      rowset   // of the number of the question, and the values of the names
}

// question is what a row is asked for by.
type question struct {
	where []derived.Col
	of    []condition // in whose columns a value is wanted
	at    []int       // of each which of the columns it is
	guard string
}

// ask adds a question, unless the last one is about the same row.
func (l *lookups) ask(where []derived.Col) *question {
	if n := len(l.questions); n > 0 && slices.Equal(l.questions[n-1].where, where) {
		return &l.questions[n-1]
	}
	if l.names == nil {
		for _, c := range where {
			l.names = append(l.names, c.Name)
		}
	}
	l.rows.row()
	l.rows.int(int64(len(l.questions)))
	for _, c := range where {
		l.rows.value(c.Value)
	}
	l.questions = append(l.questions, question{where: where})
	return &l.questions[len(l.questions)-1]
}

// column gives the place of a column among those that are asked for.
func (l *lookups) column(name string) int {
	i := slices.Index(l.columns, name)
	if i < 0 {
		i, l.columns = len(l.columns), append(l.columns, name)
	}
	return i
}

// query is the text that finds rows of a table, with the number of the question
// before the columns.
func (l *lookups) query(table derived.Table) (text string, rows []byte) {
	var on strings.Builder
	for i, name := range l.names {
		if i > 0 {
			on.WriteString(" AND ")
		}
		on.WriteString("t." + name + " = u.v" + strconv.Itoa(i+1))
	}
	distinct := " DISTINCT" // of many rows what differs is enough
	if !slices.ContainsFunc(derived.SpecOf(table).Key, func(key string) bool { return !slices.Contains(l.names, key) }) {
		distinct = ""
	}
	text = "SELECT" + distinct + " u.v0, t." + strings.Join(l.columns, ", t.") + " FROM " + recordset(1, append([]string{"n_"}, l.names...), "u") +
		" JOIN @." + string(table) + " t ON " + on.String()
	return text, l.rows.arg()
}

// queueConditions asks for what the conditions are about, those of one table and
// the same columns in one statement. One that does not fit its table is left for the plan to refuse.
func (t *transaction) queueConditions(b *pgx.Batch, batch []*request) {
	type form struct {
		table derived.Table
		names string
	}
	forms := map[form]*lookups{}
	var order []form
	for _, r := range batch {
		for i, c := range r.append.Require {
			column, err := storecore.CheckCondition(i, c)
			if err != nil {
				r.err = err
				break
			}
			f := form{c.Table, ""}
			for _, w := range c.Where {
				f.names += w.Name + " "
			}
			if forms[f] == nil {
				forms[f] = &lookups{}
				order = append(order, f)
			}
			q := forms[f].ask(c.Where)
			q.of, q.at = append(q.of, condition{r, i}), append(q.at, forms[f].column(column))
		}
	}
	for _, f := range order {
		l := forms[f]
		text, asked := l.query(f.table)
		b.Queue(t.s.sql(text), asked).Query(func(rows pgx.Rows) error {
			defer rows.Close()
			for rows.Next() {
				row, err := rows.Values()
				if err != nil {
					return err
				}
				q := &l.questions[row[0].(int64)]
				for i, of := range q.of {
					v := row[1+q.at[i]]
					if s, ok := v.(string); ok {
						v = fromText(s)
					}
					t.found[of] = append(t.found[of], v)
				}
			}
			return rows.Err()
		})
	}
}

// queueGuards asks which guarded rows exist already.
func (t *transaction) queueGuards(b *pgx.Batch, batch []*request) {
	by := map[derived.Table]*lookups{}
	for _, r := range batch {
		for _, g := range r.guards {
			if by[g.table] == nil {
				by[g.table] = &lookups{}
			}
			by[g.table].ask(g.key).guard = g.name
			t.exists[g.name] = false
		}
	}
	for _, spec := range derived.Specs() {
		l := by[spec.Table]
		if l == nil {
			continue
		}
		l.column(spec.Key[0])
		text, asked := l.query(spec.Table)
		b.Queue(t.s.sql(text), asked).Query(func(rows pgx.Rows) error {
			defer rows.Close()
			for rows.Next() {
				var n int64
				if err := rows.Scan(&n, nil); err != nil {
					return err
				}
				t.exists[l.questions[n].guard] = true
			}
			return rows.Err()
		})
	}
}

// lookFor says whether a guarded row exists that was not foreseen.
func (t *transaction) lookFor(g guard) (bool, error) {
	l := &lookups{}
	l.ask(g.key)
	l.column(g.key[0].Name)
	text, asked := l.query(g.table)
	rows, err := t.conn.Query(t.ctx, t.s.sql(text), asked)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	there := rows.Next()
	rows.Close()
	return there, rows.Err()
}
