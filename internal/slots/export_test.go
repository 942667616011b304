package slots

import (
	"bytes"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/seal"
)

func pair(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// What is carried out under age comes back whole under another master key, and
// is readable to nobody else.
func TestExport(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	r := New(Config{Store: s, Ring: seal.NewRing(newKey(t))})
	const binary = "value \x00\xff of bytes"
	set(t, r, Daemon, "key", "value-one", "api.test")
	set(t, r, Daemon, "key", "value-two", "api.test")
	set(t, r, "ann", "key", binary)
	id := pair(t)
	var out bytes.Buffer
	n, err := r.Export(t.Context(), &out, id.Recipient())
	if err != nil || n != 3 {
		t.Fatal(n, err)
	}
	if text := out.String(); strings.Contains(text, "value") || strings.Contains(text, "key") || strings.Contains(text, "api.test") {
		t.Error("an export shows what is in it")
	}
	to := store(t)
	defer closed(t, to)
	back := New(Config{Store: to, Ring: seal.NewRing(newKey(t))})
	set(t, back, "ann", "key", "value-that-stays")
	done, err := back.Import(t.Context(), bytes.NewReader(out.Bytes()), id)
	if err != nil || done.Versions != 2 || len(done.Kept) != 1 || done.Kept[0] != "ann/key" {
		t.Fatalf("%+v %v", done, err)
	}
	gives(t, back, Daemon, "key", "api.test:443", "value-two", "value-one")
	gives(t, back, "ann", "key", "", "value-that-stays")
	if err := back.Delete(t.Context(), "ann", "key", "test"); err != nil {
		t.Fatal(err)
	}
	if done, err := back.Import(t.Context(), bytes.NewReader(out.Bytes()), id); err != nil || done.Versions != 1 || len(done.Kept) != 1 {
		t.Fatalf("%+v %v", done, err)
	}
	gives(t, back, "ann", "key", "", binary)

	empty := store(t)
	defer closed(t, empty)
	none := New(Config{Store: empty, Ring: seal.NewRing(newKey(t))})
	refused := func(what string, data []byte, with age.Identity) {
		t.Helper()
		if done, err := none.Import(t.Context(), bytes.NewReader(data), with); err == nil || done.Versions != 0 {
			t.Errorf("%s: %+v %v", what, done, err)
		}
	}
	refused("other identity", out.Bytes(), pair(t))
	for cut := 0; cut < out.Len(); cut += 37 {
		refused("cut", out.Bytes()[:cut], id)
	}
	changed := bytes.Clone(out.Bytes())
	changed[len(changed)-20] ^= 1
	refused("changed", changed, id)
	if keys, err := empty.SecretKeys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("%+v %v", keys, err)
	}
	if _, err := New(Config{Store: s, Ring: seal.NewRing(newKey(t))}).Export(t.Context(), &out, id.Recipient()); err == nil {
		t.Error("exported what does not open")
	}
}

func TestAgeForms(t *testing.T) {
	id := pair(t)
	if list, err := ParseRecipients(id.Recipient().String() + "," + pair(t).Recipient().String()); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := ParseRecipients(id.String()); err == nil || strings.Contains(err.Error(), id.String()) {
		t.Errorf("%v", err)
	}
	if list, err := ParseIdentities(strings.NewReader("# made by age-keygen\n" + id.String() + "\n")); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := ParseIdentities(strings.NewReader("x" + id.String())); err == nil || strings.Contains(err.Error(), id.String()) {
		t.Errorf("%v", err)
	}
}

// FuzzExportLines: no text within an export breaks the reader, and what it takes
// has the form of slots.
func FuzzExportLines(f *testing.F) {
	f.Add(`{"format":"holdfast secrets 1"}` + "\n" + `{"name":"key","value":"dmFsdWU=","created_at":"2026-11-01T12:00:00.000000Z"}` + "\n" + `{"slots":1}` + "\n")
	f.Add(`{"format":"holdfast secrets 1"}` + "\n" + `{"slots":0}`)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := readLines(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, x := range list {
			if !nameForm.MatchString(x.Name) || !isTime(x.CreatedAt) || len(x.Value) > seal.MaxValue {
				t.Errorf("%+v", x)
			}
		}
	})
}
