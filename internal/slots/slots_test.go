package slots

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

func store(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closed(t *testing.T, s *sqlite.Store) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func newKey(t *testing.T) *seal.Key {
	t.Helper()
	k, err := seal.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// set sets a slot to a value.
func set(t *testing.T, r *Room, owner, name, value string, hosts ...string) {
	t.Helper()
	if _, err := r.Set(t.Context(), Setting{Owner: owner, Name: name, Value: secret.New(value), Hosts: hosts, Actor: "test"}); err != nil {
		t.Fatalf("set %s/%s: %v", owner, name, err)
	}
}

// gives holds what a use gives against values, or against the code of a refusal.
func gives(t *testing.T, r *Room, owner, name, host string, want ...string) {
	t.Helper()
	got, err := r.Use(t.Context(), owner, name, host)
	if len(want) == 1 && err != nil && problem.Is(err, want[0]) && got == nil {
		return
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s/%s for %q gives %q, %v; want %q", owner, name, host, got, err, want)
	}
}

// After a rotation both count for a day, the current one first; after a leak one.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store(t)
		defer closed(t, s)
		r := New(Config{Store: s, Ring: seal.NewRing(newKey(t))})
		other := New(Config{Store: s, Ring: r.cfg.Ring}) // another node
		set(t, r, "ann", "hook", "value-one")
		gives(t, other, "ann", "hook", "", "value-one")
		set(t, r, "ann", "hook", "value-two")
		gives(t, r, "ann", "hook", "", "value-two", "value-one")
		time.Sleep(cacheFor)
		gives(t, other, "ann", "hook", "", "value-two", "value-one")
		set(t, r, "ann", "hook", "value-two") // a repeated request
		gives(t, r, "ann", "hook", "", "value-two", "value-one")
		time.Sleep(DefaultFormerFor - cacheFor)
		gives(t, r, "ann", "hook", "", "value-two")
		if rows, err := r.Get(t.Context(), "ann", "hook"); err != nil || len(rows) != 1 || rows[0].Version != 2 {
			t.Errorf("%+v %v", rows, err)
		}
		if err := r.Drop(t.Context()); err != nil {
			t.Error(err)
		}
		if rows, err := s.Secret(t.Context(), "ann", "hook"); err != nil || len(rows) != 1 {
			t.Errorf("%d versions are stored, %v", len(rows), err)
		}
		set(t, r, "ann", "hook", "value-three")
		none := time.Duration(0)
		if _, err := r.Set(t.Context(), Setting{Owner: "ann", Name: "hook", Value: secret.New("value-four"), FormerFor: &none}); err != nil {
			t.Error(err)
		}
		gives(t, r, "ann", "hook", "", "value-four")

		for n := range MaxVersions - 1 {
			set(t, r, "ann", "hook", fmt.Sprint("value-more-", n))
		}
		if _, err := r.Set(t.Context(), Setting{Owner: "ann", Name: "hook", Value: secret.New("value-too-many")}); !problem.Is(err, "too_many_versions") {
			t.Errorf("%v", err)
		}
		if _, err := r.Set(t.Context(), Setting{Owner: "ann", Name: "hook", Value: secret.New("value-last"), FormerFor: &none}); err != nil {
			t.Error(err)
		}
		gives(t, r, "ann", "hook", "", "value-last")
		if err := r.Delete(t.Context(), "ann", "hook", "test"); err != nil {
			t.Error(err)
		}
		gives(t, r, "ann", "hook", "", "unknown_secret")
		gives(t, other, "ann", "hook", "", "unknown_secret")
	})
}

// A secret goes to its hosts and to no other; one without hosts goes nowhere.
func TestHostBinding(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	r := New(Config{Store: s, Ring: seal.NewRing(newKey(t)), Named: map[string]Named{
		"free":  {Read: func() (string, error) { return "value-free", nil }},
		"bound": {Read: func() (string, error) { return "value-bound", nil }, Bound: true, Hosts: secret.Hosts{"api.test"}},
		"stuck": {Read: func() (string, error) { return "", errors.New("no file") }},
	}})
	set(t, r, Daemon, "key", "value-one", "api.test")
	gives(t, r, Daemon, "key", "api.test:443", "value-one")
	gives(t, r, Daemon, "key", "evil.test:443", "secret_not_for_host")
	gives(t, r, Daemon, "key", "", "value-one")
	set(t, r, Daemon, "key", "value-two", "api.test", "new.test")
	gives(t, r, Daemon, "key", "api.test:443", "value-two", "value-one")
	gives(t, r, Daemon, "key", "new.test:443", "value-two") // the one before was not for it
	none := time.Duration(0)
	for i, v := range []struct {
		hosts  []string
		api, x string
	}{{nil, "value-next-0", "secret_not_for_host"}, {[]string{}, "secret_not_for_host", "secret_not_for_host"}, {nil, "secret_not_for_host", "secret_not_for_host"}, {[]string{"x.test"}, "secret_not_for_host", "value-next-3"}} {
		// a rotation that names no hosts is for those of the version before; an empty list is for none
		if _, err := r.Set(t.Context(), Setting{Owner: Daemon, Name: "key", Value: secret.New(fmt.Sprint("value-next-", i)), Hosts: v.hosts, FormerFor: &none}); err != nil {
			t.Fatal(err)
		}
		gives(t, r, Daemon, "key", "api.test:443", v.api)
		gives(t, r, Daemon, "key", "x.test:443", v.x)
	}
	set(t, r, Daemon, "signs", "value-signs")
	gives(t, r, Daemon, "signs", "api.test:443", "secret_not_for_host")
	gives(t, r, Daemon, "signs", "", "value-signs")

	gives(t, r, Daemon, "free", "anywhere.test:443", "value-free")
	gives(t, r, Daemon, "bound", "api.test:443", "value-bound")
	gives(t, r, Daemon, "bound", "evil.test:443", "secret_not_for_host")
	gives(t, r, Daemon, "stuck", "", "secret_unavailable")
	gives(t, r, Daemon, "../key", "", "unknown_secret")
}

// I-34: who may name what.
func TestOwners(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	read := func(v string) func() (string, error) { return func() (string, error) { return v, nil } }
	r := New(Config{Store: s, Ring: seal.NewRing(newKey(t)), DefaultUser: "default", Named: map[string]Named{
		"file": {Read: read("value-of-file")}, "all": {Read: read("value-for-all"), Shared: true}, "both": {Read: read("value-of-both")},
	}})
	set(t, r, Daemon, "slot", "value-of-daemon")
	set(t, r, "ann", "own", "value-of-ann")
	set(t, r, "ann", "both", "value-of-anns-both")
	set(t, r, "ann", "all", "value-of-anns-all")
	for _, test := range []struct{ owner, name, want string }{
		{Daemon, "slot", "value-of-daemon"}, {Daemon, "file", "value-of-file"}, {Daemon, "own", "unknown_secret"}, {Daemon, "both", "value-of-both"},
		{"default", "slot", "value-of-daemon"}, {"default", "file", "value-of-file"}, {"default", "own", "unknown_secret"},
		{"ann", "own", "value-of-ann"}, {"ann", "slot", "unknown_secret"}, {"ann", "file", "unknown_secret"}, {"ann", "both", "value-of-anns-both"}, {"ann", "all", "value-of-anns-all"},
		{"bob", "own", "unknown_secret"}, {"bob", "all", "value-for-all"}, {"bob", "both", "unknown_secret"}, {"bob", "slot", "unknown_secret"},
	} {
		gives(t, r, test.owner, test.name, "", test.want)
		if err := r.Has(t.Context(), test.owner, test.name); (err == nil) != (test.want != "unknown_secret") {
			t.Errorf("%s has %s: %v", test.owner, test.name, err)
		}
	}
	if _, err := r.For("bob")(t.Context(), "own", ""); !problem.Is(err, "unknown_secret") {
		t.Errorf("%v", err)
	}
	if _, err := r.Set(t.Context(), Setting{Owner: Daemon, Name: "file", Value: secret.New("value-more")}); !problem.Is(err, "secret_in_configuration") {
		t.Errorf("%v", err)
	}
}

// A row that was changed in the database opens for nothing.
func TestChangedRows(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	r := New(Config{Store: s, Ring: seal.NewRing(newKey(t))})
	set(t, r, "ann", "key", "value-of-ann", "api.test")
	rows, err := s.Secret(t.Context(), "ann", "key")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*eventlog.SecretRow){
		"other owner": func(x *eventlog.SecretRow) { x.Owner = "bob" },
		"other name":  func(x *eventlog.SecretRow) { x.Name = "other" },
		"other hosts": func(x *eventlog.SecretRow) { x.Owner, x.Name, x.Hosts = "ann", "third", "evil.test" },
	} {
		row := rows[0]
		change(&row)
		if err := s.PutSecret(t.Context(), row, "", 9); err != nil {
			t.Fatal(err)
		}
		r.forget()
		if _, err := r.Use(t.Context(), row.Owner, row.Name, "evil.test:443"); !problem.Is(err, "secret_unreadable") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// breaks fails after some writes.
type breaks struct {
	eventlog.Secrets
	left int
}

func (b *breaks) ResealSecret(ctx context.Context, r eventlog.SecretRow, was []byte) (bool, error) {
	if b.left--; b.left < 0 {
		return false, errors.New("the power is gone")
	}
	return b.Secrets.ResealSecret(ctx, r, was)
}

// Rekeying goes on where it stopped, two at once do no harm, and no version is lost.
func TestRekey(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	old, now := newKey(t), newKey(t)
	before := New(Config{Store: s, Ring: seal.NewRing(old)})
	for n := range 7 {
		set(t, before, "ann", fmt.Sprint("s", n), fmt.Sprint("value-one-", n), "api.test")
		set(t, before, "ann", fmt.Sprint("s", n), fmt.Sprint("value-two-", n), "api.test")
	}
	all := func(r *Room) {
		t.Helper()
		for n := range 7 {
			gives(t, r, "ann", fmt.Sprint("s", n), "api.test:443", fmt.Sprint("value-two-", n), fmt.Sprint("value-one-", n))
		}
	}
	ring := seal.NewRing(now, old)
	broken := New(Config{Store: &breaks{s, 3}, Ring: ring})
	all(broken)
	if _, err := broken.Rekey(t.Context(), 100); err == nil {
		t.Error("it did not break")
	}
	r := New(Config{Store: s, Ring: ring})
	all(r)
	if step, err := r.Rekey(t.Context(), 5); err != nil || step.Resealed != 5 || step.Left != 6 || step.Key != now.ID() {
		t.Errorf("%+v %v", step, err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := r.Rekey(t.Context(), 100); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if step, err := r.Rekey(t.Context(), 100); err != nil || step.Resealed != 0 || step.Left != 0 {
		t.Errorf("%+v %v", step, err)
	}
	all(New(Config{Store: s, Ring: seal.NewRing(now)})) // the old key is not needed any more
	gone := New(Config{Store: s, Ring: seal.NewRing(old)})
	gives(t, gone, "ann", "s0", "", "secret_unreadable")
	var unknown *UnknownKeyError
	if err := gone.Check(t.Context()); !errors.As(err, &unknown) || unknown.Versions != 14 || !strings.Contains(err.Error(), now.ID()) || !strings.Contains(err.Error(), "master_key.former") {
		t.Errorf("%v", err)
	}
	if _, err := gone.Rekey(t.Context(), 1); !problem.Is(err, "secret_unreadable") {
		t.Errorf("%v", err)
	}
	none := New(Config{Store: s, Why: "set master_key"})
	if err := none.Check(t.Context()); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "set master_key") {
		t.Errorf("%v", err)
	}
	gives(t, none, "ann", "s0", "", "no_master_key")
	if err := r.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// I-33: a value that was given out is known to who keeps texts clean.
func TestGivenValuesAreKnown(t *testing.T) {
	s := store(t)
	defer closed(t, s)
	var known secret.Known
	r := New(Config{Store: s, Ring: seal.NewRing(newKey(t)), Known: &known, Named: map[string]Named{"f": {Read: func() (string, error) { return "value-of-file", nil }}}})
	set(t, r, Daemon, "s", "value-of-slot")
	gives(t, r, Daemon, "f", "", "value-of-file")
	if got := known.Scrub("a value-of-slot b value-of-file"); got != "a [redacted] b [redacted]" {
		t.Error(got)
	}
}
