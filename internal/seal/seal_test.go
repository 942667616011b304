package seal

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func key(t interface{ Fatal(...any) }) *Key {
	k, err := NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSealOpens(t *testing.T) {
	old, now, other := key(t), key(t), key(t)
	rapid.Check(t, func(t *rapid.T) {
		p := Place{rapid.String().Draw(t, "owner"), rapid.String().Draw(t, "name"), rapid.Int64Min(1).Draw(t, "version"), rapid.String().Draw(t, "hosts")}
		value := rapid.String().Draw(t, "value")
		id, sealed, err := NewRing(old).Seal(p, value)
		if err != nil || id != old.ID() {
			t.Fatal(id, err)
		}
		if got, err := NewRing(now, old).Open(p, id, sealed); err != nil || got != value {
			t.Fatalf("%q %v", got, err)
		}
		if _, err := NewRing(now, other).Open(p, id, sealed); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		_, again, err := NewRing(old).Seal(p, value)
		if err != nil || bytes.Equal(again, sealed) || len(value) > 7 && bytes.Contains(sealed, []byte(value)) {
			t.Fatal("the sealed form tells something of the value")
		}
		// Every other place, and every changed byte, is refused.
		for _, q := range []Place{{p.Owner + "x", p.Name, p.Version, p.Hosts}, {p.Owner, p.Name + "x", p.Version, p.Hosts}, {p.Owner, p.Name, p.Version + 1, p.Hosts},
			{p.Owner, p.Name, p.Version, p.Hosts + ",evil.test"}, {p.Owner + p.Name, "", p.Version, p.Hosts}, {p.Name, p.Owner, p.Version, p.Hosts + "x"}} {
			if q != p {
				if _, err := NewRing(old).Open(q, id, sealed); !errors.Is(err, ErrOpen) {
					t.Fatalf("%+v opens what is of %+v: %v", q, p, err)
				}
			}
		}
		i := rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")
		sealed[i] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := NewRing(old).Open(p, id, sealed); !errors.Is(err, ErrOpen) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	})
}

func TestKeyForms(t *testing.T) {
	k := key(t)
	for _, text := range []string{k.Text(), " " + k.Text() + "\n", base64.StdEncoding.EncodeToString(k.raw[:]) + "\n", base64.URLEncoding.EncodeToString(k.raw[:])} {
		got, err := ParseKey(text)
		if err != nil || got.raw != k.raw || got.ID() != k.ID() {
			t.Errorf("%v", err)
		}
	}
	for _, bad := range []string{"", KeyPrefix, k.Text()[:40], k.Text() + "AA", "hfmk_" + strings.Repeat("*", 43), strings.Repeat("a", 64), strings.Repeat("-", 42) + "B"} {
		if _, err := ParseKey(bad); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, _, err := NewRing(k).Seal(Place{}, strings.Repeat("x", MaxValue+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	if id, sealed, err := NewRing(k).Seal(Place{}, strings.Repeat("x", MaxValue)); err != nil {
		t.Error(err)
	} else if got, err := NewRing(k).Open(Place{}, id, sealed); err != nil || len(got) != MaxValue {
		t.Errorf("%d %v", len(got), err)
	}
}

// I-33
func TestKeyPrintsItsID(t *testing.T) {
	k := key(t)
	b, err := json.Marshal(map[string]any{"k": k, "r": NewRing(k)})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %+v %#v", k, k, k, k, k, k, k, NewRing(k), NewRing(k).keys, []any{k}) + string(b)
	if strings.Contains(all, k.Text()[len(KeyPrefix):]) || strings.Contains(all, fmt.Sprintf("%x", k.raw)) || strings.Contains(all, fmt.Sprint(k.raw[:])[1:20]) {
		t.Error(all)
	}
}

// FuzzOpen: no bytes make the parser of the sealed form panic, and nothing
// opens but what was sealed.
func FuzzOpen(f *testing.F) {
	k, err := ParseKey(strings.Repeat("A", 43))
	if err != nil {
		f.Fatal(err)
	}
	ring := NewRing(k)
	_, good, err := ring.Seal(Place{Owner: "ann", Name: "hook", Version: 1}, "value")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, "ann")
	f.Add(good[:20], "bob")
	f.Add([]byte{1}, "")
	f.Fuzz(func(t *testing.T, sealed []byte, owner string) {
		p := Place{Owner: owner, Name: "hook", Version: 1}
		if got, err := ring.Open(p, k.ID(), sealed); err == nil && (got != "value" || owner != "ann") {
			t.Errorf("opened %q", got)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("hfmk_" + strings.Repeat("A", 43))
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParseKey(text); err == nil {
			if again, err := ParseKey(k.Text()); err != nil || again.raw != k.raw {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}
