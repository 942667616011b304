package backup

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
)

// Slots are carried with the key that opens them, or not at all: what is restored
// is a directory over which a daemon starts.
func TestSlotsAndTheirKey(t *testing.T) {
	dir := source(t, 20)
	var keys []*seal.Key
	for range 2 {
		k, err := seal.NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	write := func(k *seal.Key) {
		t.Helper()
		if err := os.WriteFile(dir+".key", []byte(k.Text()+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put := func(version int64, ring *seal.Ring) {
		t.Helper()
		s := open(t, dir)
		defer s.Close(t.Context())
		row := eventlog.SecretRow{Name: "hook", Version: version, CreatedAt: "2026-01-01T00:00:00.000000Z"}
		var err error
		if row.KeyID, row.Sealed, err = ring.Seal(seal.Place{Name: row.Name, Version: version}, "a value of the slot"); err != nil {
			t.Fatal(err)
		}
		if err := s.PutSecret(t.Context(), row, "2027-01-01T00:00:00.000000Z", 10); err != nil {
			t.Fatal(err)
		}
	}
	sealedIn := func(dir string) (ids []string) {
		t.Helper()
		s := whole(t, dir)
		defer s.Close(t.Context())
		list, err := s.SecretKeys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			ids = append(ids, k.ID)
		}
		return ids
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "b")
	carry := Options{DataDir: dir, KeyFile: dir + ".key", To: to, Recipients: []age.Recipient{id.Recipient()}}
	write(keys[0])
	put(1, seal.NewRing(keys[0]))
	if m, err := Make(t.Context(), carry); err != nil || len(m.LeftOut) != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: again, KeyFile: again + ".key", Identities: []age.Identity{id}}); err != nil {
		t.Fatal(err)
	}
	if got := sealedIn(again); !slices.Equal(got, []string{keys[0].ID()}) {
		t.Errorf("restored with slots under %q", got)
	}
	// Without the secrets there is no key, so that no slot may be there either.
	without := filepath.Join(t.TempDir(), "without")
	if _, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: without, WithoutSecrets: true}); err != nil {
		t.Fatal(err)
	}
	if got := sealedIn(without); got != nil {
		t.Errorf("slots under %q are restored, and no key that opens them", got)
	}
	// After a rotation of the key what the former one sealed is not carried without it.
	write(keys[1])
	put(2, seal.NewRing(keys[1], keys[0]))
	carry.To = filepath.Join(t.TempDir(), "b")
	if _, err := Make(t.Context(), carry); !isRefused(err, "holdfast secrets rekey") {
		t.Errorf("a backup whose slots its key does not open: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(carry.To)); err != nil || len(entries) != 0 {
		t.Errorf("it leaves %v, %v", entries, err)
	}
	// A key that stands in no file is not in the backup, which says so.
	carry.KeyFile = ""
	if m, err := Make(t.Context(), carry); err != nil || !slices.Equal(m.LeftOut, []string{KeyName}) {
		t.Errorf("%+v, %v", m, err)
	}
}
