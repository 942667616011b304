package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T, dir string, rules storetest.Rules) storetest.Store {
		t.Helper()
		return conforming{open(t, Config{Dir: dir, Rows: rules.Rows, CheckSnapshot: rules.CheckSnapshot, Sync: SyncNormal}), dir}
	})
}

// open opens a store and closes it at the end of the test.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Rows == nil {
		cfg.Rows = storetest.Rows
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// conforming is a store as the conformance suite wants it.
type conforming struct {
	*Store
	dir string
}

func (c conforming) Findings(ctx context.Context, rebuild bool) ([]string, error) {
	report, err := c.Verify(ctx, VerifyOptions{Rebuild: rebuild})
	var found []string
	for _, f := range report.Findings {
		found = append(found, f.Where+": "+f.Text)
	}
	return found, err
}

func (c conforming) Damage(t *testing.T, d storetest.Damage) {
	t.Helper()
	db, err := sql.Open("sqlite", source(filepath.Join(c.dir, DatabaseFile), "rw"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(text string, args ...any) {
		t.Helper()
		res, err := db.Exec(text, args...)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := res.RowsAffected(); n == 0 {
			t.Fatalf("nothing to damage: %s", text)
		}
	}
	at := []any{string(d.Stream), d.Seq}
	switch d.Kind {
	case storetest.DamageData:
		// The first letter of the first value.
		exec(`UPDATE log SET data = CAST(substr(data, 1, instr(data, CAST(':"' AS BLOB)) + 1) AS TEXT) || 'X' ||
			CAST(substr(data, instr(data, CAST(':"' AS BLOB)) + 3) AS TEXT) WHERE stream = ? AND first_seq = ?`, at...)
	case storetest.DamageMeta:
		exec(`UPDATE log SET meta = CAST(replace(CAST(meta AS TEXT), 'run_', 'rum_') AS BLOB) WHERE stream = ? AND first_seq = ?`, at...)
	case storetest.DamageRemove:
		exec(`DELETE FROM log WHERE stream = ? AND first_seq = ?`, at...)
	case storetest.DamageSnapshot:
		exec("UPDATE snapshots SET head = ?, epoch = ?, hash = ?, state = ? WHERE session_id = ?",
			d.Snapshot.Head, d.Snapshot.Epoch, d.Snapshot.Hash[:], d.Snapshot.State, string(d.Snapshot.SessionID))
	case storetest.DamageSwap:
		exec(`UPDATE log SET first_seq = -1 WHERE stream = ? AND first_seq = ?`, at...)
		exec(`UPDATE log SET first_seq = ? WHERE stream = ? AND first_seq = ?`, d.Seq, string(d.Stream), d.Other)
		exec(`UPDATE log SET first_seq = ? WHERE stream = ? AND first_seq = -1`, d.Other, string(d.Stream))
	case storetest.DamageErase:
		events, err := c.Read(t.Context(), d.Stream, d.Seq-1, 1)
		if err != nil {
			t.Fatal(err)
		}
		exec(`UPDATE log SET data = NULL, salt = NULL, digests = ? WHERE stream = ? AND first_seq = ?`,
			append([]any{events[0].DataDigest[:]}, at...)...)
	case storetest.DamageDerived:
		var where []string
		args := []any{d.Set.Value}
		for _, k := range d.Key {
			where = append(where, k.Name+" = ?")
			args = append(args, k.Value)
		}
		exec(fmt.Sprintf("UPDATE %s SET %s = ? WHERE %s", d.Table, d.Set.Name, strings.Join(where, " AND ")), args...)
	case storetest.DamageBlob:
		if _, err := db.Exec("DELETE FROM blobs WHERE owner = ? AND ref = ?", d.Blob.Owner, d.Blob.Ref); err != nil {
			t.Fatal(err)
		}
		if d.Blob.Kind != "" {
			exec("INSERT INTO blobs (owner, ref, kind, bytes) VALUES (?, ?, ?, ?)", d.Blob.Owner, d.Blob.Ref, string(d.Blob.Kind), d.Blob.Bytes)
		}
	default:
		t.Fatalf("damage %q", d.Kind)
	}
}
