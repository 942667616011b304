package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// slot is a version of a secret, written so many hours after assetTime.
func slot(owner, name string, version int64, hour int) eventlog.SecretRow {
	return eventlog.SecretRow{
		Owner: owner, Name: name, Version: version, KeyID: "k1", Sealed: []byte(fmt.Sprintf("\x00sealed %s/%s/%d", owner, name, version)), Hosts: "a.test,b.test:443",
		CreatedAt: hours(hour), CreatedBy: "tok_1",
	}
}

func hours(n int) string { return event.FormatTime(assetTime.Add(time.Duration(n) * time.Hour)) }

func (s *suite) seal(row eventlog.SecretRow, formerUntil string) {
	s.t.Helper()
	if err := s.PutSecret(s.t.Context(), row, formerUntil, 9); err != nil {
		s.t.Fatalf("put %s/%s/%d: %v", row.Owner, row.Name, row.Version, err)
	}
}

func (s *suite) slotIs(owner, name string, want ...eventlog.SecretRow) {
	s.t.Helper()
	got, err := s.Secret(s.t.Context(), owner, name)
	if len(want) == 0 {
		refused(s.t, err, eventlog.ErrNotFound)
		return
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		s.t.Errorf("%s/%s: %+v %v, want %+v", owner, name, got, err, want)
	}
}

func until(r eventlog.SecretRow, at string) eventlog.SecretRow {
	r.Until = at
	return r
}

func testSecrets(t *testing.T, s *suite) {
	ctx := t.Context()
	one, two, three := slot("ann", "hook", 1, 0), slot("ann", "hook", 2, 1), slot("ann", "hook", 3, 2)
	s.slotIs("ann", "hook")
	refused(t, s.PutSecret(ctx, two, "", 9), eventlog.ErrSecretMoved)
	s.seal(one, hours(24))
	refused(t, s.PutSecret(ctx, one, "", 9), eventlog.ErrSecretMoved)
	s.seal(two, hours(25))
	s.seal(three, hours(9)) // the one before keeps no longer than it is told, nor longer than it was
	s.seal(slot("bob", "hook", 1, 0), "")
	s.seal(slot("", "hook", 1, 0), "")
	s.stop()
	s.start()
	s.slotIs("ann", "hook", three, until(two, hours(9)), until(one, hours(9)))
	s.slotIs("bob", "hook", slot("bob", "hook", 1, 0)) // I-34
	s.slotIs("", "hook", slot("", "hook", 1, 0))
	s.seal(slot("ann", "hook", 4, 3), hours(40))
	s.slotIs("ann", "hook", slot("ann", "hook", 4, 3), until(three, hours(40)), until(two, hours(9)), until(one, hours(9)))

	for _, step := range []struct {
		now         string
		limit, want int
	}{{hours(8), 9, 0}, {hours(9), 1, 1}, {hours(9), 9, 1}, {hours(9), 9, 0}} {
		if n, err := s.DropSecrets(ctx, step.now, step.limit); err != nil || n != step.want {
			t.Errorf("dropped %d at %s, %v; want %d", n, step.now, err, step.want)
		}
	}
	s.slotIs("ann", "hook", slot("ann", "hook", 4, 3), until(three, hours(40)))
	s.seal(slot("ann", "hook", 5, 4), "") // a leak: none before it counts
	s.slotIs("ann", "hook", slot("ann", "hook", 5, 4))

	if err := s.DeleteSecret(ctx, "ann", "hook"); err != nil {
		t.Error(err)
	}
	refused(t, s.DeleteSecret(ctx, "ann", "hook"), eventlog.ErrNotFound)
	s.slotIs("ann", "hook")
	s.slotIs("bob", "hook", slot("bob", "hook", 1, 0))
	refused(t, s.PutSecret(ctx, slot("bob", "other", 1, 0), "", 1), eventlog.ErrQuota)
	if err := s.PutSecret(ctx, slot("bob", "hook", 2, 0), "", 1); err != nil {
		t.Errorf("another version of a full owner's secret: %v", err)
	}
}

func testSecretList(t *testing.T, s *suite) {
	ctx := t.Context()
	var want []eventlog.SecretRow
	for _, owner := range []string{"", "ann", "bob"} {
		for _, name := range []string{"B", "a", "z"} {
			s.seal(slot(owner, name, 1, 0), "")
			row := slot(owner, name, 1, 0)
			if name == "a" {
				s.seal(slot(owner, name, 2, 1), hours(20))
				row = until(slot(owner, name, 2, 1), hours(20))
			}
			row.Sealed = nil
			want = append(want, row)
		}
	}
	var got []eventlog.SecretRow
	p := eventlog.Page{Limit: 2}
	for {
		list, next, err := s.ListSecrets(ctx, "", p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, list...)
		if p.Cursor = next; next == "" {
			break
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if list, _, err := s.ListSecrets(ctx, "ann", eventlog.Page{}); err != nil || len(list) != 3 || list[0].Owner != "ann" {
		t.Errorf("%+v %v", list, err)
	}
}

func testSecretKeys(t *testing.T, s *suite) {
	ctx := t.Context()
	for n := range 5 {
		s.seal(slot("ann", fmt.Sprint("s", n), 1, 0), "")
	}
	s.seal(slot("ann", "s0", 2, 0), hours(24))
	isUnder := func(want ...eventlog.SecretKey) {
		t.Helper()
		if got, err := s.SecretKeys(ctx); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v %v, want %+v", got, err, want)
		}
	}
	isUnder(eventlog.SecretKey{ID: "k1", Versions: 6})
	list, err := s.SecretsUnder(ctx, "k2", 4)
	if err != nil || len(list) != 4 || list[0].Name != "s0" || list[0].Version != 1 || list[1].Version != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	for i, row := range list {
		was := row.Sealed
		row.KeyID, row.Sealed = "k2", []byte("new")
		if i == 0 {
			if done, err := s.ResealSecret(ctx, row, []byte("other")); err != nil || done {
				t.Errorf("what is sealed otherwise was replaced: %v", err)
			}
		}
		if done, err := s.ResealSecret(ctx, row, was); err != nil || !done {
			t.Errorf("%v %v", done, err)
		}
	}
	isUnder(eventlog.SecretKey{ID: "k1", Versions: 2}, eventlog.SecretKey{ID: "k2", Versions: 4})
	got, err := s.Secret(ctx, "ann", "s0")
	if err != nil || got[0].KeyID != "k2" || !bytes.Equal(got[0].Sealed, []byte("new")) || got[1].Until != hours(24) {
		t.Errorf("%+v %v", got, err)
	}
	gone := slot("ann", "gone", 1, 0)
	if done, err := s.ResealSecret(ctx, gone, gone.Sealed); err != nil || done {
		t.Errorf("a secret that is not there: %v %v", done, err)
	}
}

// Of writers that set the same version one comes through.
func testSecretRace(t *testing.T, s *suite) {
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := s.PutSecret(t.Context(), slot("ann", "hook", 1, 0), hours(24), 9); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, eventlog.ErrSecretMoved):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 7 {
		t.Errorf("%d came through, %d were told", won.Load(), lost.Load())
	}
}
