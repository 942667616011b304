package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// create makes the temporary tables: those for rebuilt rows from their
// description, and the one for references. They go with the transaction.
func (v *verification) create(ctx context.Context) error {
	for _, spec := range derived.Specs() {
		var b strings.Builder
		fmt.Fprintf(&b, "CREATE TEMPORARY TABLE rebuilt_%s (", spec.Table)
		for _, c := range storecore.ColumnsOf(spec) {
			if storecore.Integer(c) {
				fmt.Fprintf(&b, "%s bigint NOT NULL DEFAULT 0, ", c)
			} else {
				fmt.Fprintf(&b, `%s text COLLATE "C" NOT NULL DEFAULT '', `, c)
			}
		}
		fmt.Fprintf(&b, "PRIMARY KEY (%s)) ON COMMIT DROP", strings.Join(spec.Key, ", "))
		if err := v.exec(ctx, b.String()); err != nil {
			return err
		}
	}
	return v.exec(ctx, `CREATE TEMPORARY TABLE found_refs (owner text COLLATE "C" NOT NULL, ref text COLLATE "C" NOT NULL,
		kind text COLLATE "C" NOT NULL, by_row text COLLATE "C" NOT NULL, PRIMARY KEY (owner, ref, kind)) ON COMMIT DROP`)
}

// replace puts the rebuilt rows in the place of the derived ones, and drops all
// snapshots.
func (v *verification) replace(ctx context.Context) error {
	for _, spec := range derived.Specs() {
		columns := strings.Join(storecore.ColumnsOf(spec), ", ")
		if err := v.exec(ctx, fmt.Sprintf("DELETE FROM @.%s", spec.Table)); err != nil {
			return err
		}
		if err := v.exec(ctx, fmt.Sprintf("INSERT INTO @.%s (%s) SELECT %s FROM %s%s",
			spec.Table, columns, columns, rebuiltPrefix, spec.Table)); err != nil {
			return err
		}
	}
	// Snapshots follow from the log as well; whoever loads a session makes a new one.
	return v.exec(ctx, "DELETE FROM @.snapshots")
}

func (v *verification) exec(ctx context.Context, text string) error {
	_, err := v.tx.Exec(ctx, v.s.sql(text))
	return err
}

// compare finds the rows of a derived table that are not as they follow from the log.
func (v *verification) compare(ctx context.Context, spec derived.Spec) error {
	inPlace, rebuilt := "@."+string(spec.Table), rebuiltPrefix+string(spec.Table)
	var keys []string
	for _, k := range spec.Key {
		keys = append(keys, fmt.Sprintf("a.%s = b.%s", k, k))
	}
	same := strings.Join(keys, " AND ")
	for _, missing := range []struct{ here, there, text string }{
		{inPlace, rebuilt, "row does not follow from the log"},
		{rebuilt, inPlace, "row follows from the log and is missing"},
	} {
		query := fmt.Sprintf("SELECT a.%s, '' FROM %s a WHERE NOT EXISTS (SELECT 1 FROM %s b WHERE %s)",
			strings.Join(spec.Key, " || ' ' || a."), missing.here, missing.there, same)
		if err := v.differences(ctx, spec, query, missing.text); err != nil {
			return err
		}
	}
	var differ, names []string
	for _, c := range spec.Columns {
		differ = append(differ, fmt.Sprintf("a.%s IS DISTINCT FROM b.%s", c, c))
		names = append(names, fmt.Sprintf("CASE WHEN a.%s IS DISTINCT FROM b.%s THEN ' %s' ELSE '' END", c, c, c))
	}
	query := fmt.Sprintf("SELECT a.%s, %s FROM %s a JOIN %s b ON %s WHERE %s", strings.Join(spec.Key, " || ' ' || a."),
		strings.Join(names, " || "), inPlace, rebuilt, same, strings.Join(differ, " OR "))
	return v.differences(ctx, spec, query, "row is not as it follows from the log, in:")
}

func (v *verification) differences(ctx context.Context, spec derived.Spec, query, text string) error {
	type difference struct{ key, columns string }
	list, err := manyOf(ctx, v.s, v.tx, query+" ORDER BY 1 LIMIT 1000", nil, func(d *difference) []any { return []any{&d.key, &d.columns} })
	for _, d := range list {
		v.Report.Find(string(spec.Table)+" "+d.key, "%s%s", text, d.columns)
	}
	return err
}
