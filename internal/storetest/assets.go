package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

var assetTime = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// asset makes a file of a user, handed in so many hours after assetTime.
func asset(user, text string, hour int) (eventlog.AssetRow, []byte) {
	ref := event.RefOf([]byte(text))
	return eventlog.AssetRow{
		ID: event.AssetIDFor(user, ref), UserID: user, Ref: ref, MediaType: "text/plain", Name: "a.txt", Bytes: int64(len(text)),
		CreatedAt: event.FormatTime(assetTime.Add(time.Duration(hour) * time.Hour)),
	}, []byte(text)
}

const plenty = 1 << 20

func (s *suite) put(user, text string, hour int) eventlog.AssetRow {
	s.t.Helper()
	row, data := asset(user, text, hour)
	got, created, err := s.PutAsset(s.t.Context(), row, data, plenty)
	if err != nil || !created || got != row {
		s.t.Fatalf("put %s of %s: %+v %v %v", text, user, got, created, err)
	}
	return row
}

// uses has a new run of a session use assets.
func (s *suite) uses(user string, id event.SessionID, rows ...eventlog.AssetRow) error {
	s.t.Helper()
	created := runCreated("look")
	a := command(id.Stream(), draft(user, id, newID(s.t, event.NewRunID), created))
	for _, r := range rows {
		ref := &event.AssetRef{Bytes: r.Bytes, Digest: r.Ref, ID: r.ID, MediaType: r.MediaType}
		created.Input = append(created.Input, event.InputItem{Type: event.InputAsset, Asset: ref}, event.InputItem{Type: event.InputAsset, Asset: ref})
		a.Uses = append(a.Uses, r.ID)
	}
	_, err := s.Append(s.t.Context(), a)
	return err
}

func (s *suite) assetGone(id event.AssetID) {
	s.t.Helper()
	_, err := s.Asset(s.t.Context(), id)
	refused(s.t, err, eventlog.ErrNotFound)
	_, err = s.AssetBytes(s.t.Context(), id)
	refused(s.t, err, eventlog.ErrNotFound)
}

func testAssets(t *testing.T, s *suite) {
	a := s.put("ann", "one", 0)
	b := s.put("bob", "one", 1)
	c := s.put("ann", "two", 2)
	if a.ID == b.ID {
		t.Fatal("two users share an asset") // I-34
	}
	again, data := asset("ann", "one", 5)
	again.Name = "other.txt"
	got, created, err := s.PutAsset(t.Context(), again, data, plenty)
	if err != nil || created || got.Name != "a.txt" || got.CreatedAt != a.CreatedAt {
		t.Errorf("put again: %+v %v %v", got, created, err)
	}
	big, data := asset("ann", "seven b", 6)
	if _, _, err := s.PutAsset(t.Context(), big, data, 12); !errors.Is(err, eventlog.ErrQuota) {
		t.Errorf("past the quota: %v", err)
	}
	if _, created, err := s.PutAsset(t.Context(), big, data, 13); err != nil || !created {
		t.Errorf("up to the quota: %v %v", created, err)
	}
	s.stop()
	s.start()
	if bytes, err := s.AssetBytes(t.Context(), c.ID); err != nil || string(bytes) != "two" {
		t.Errorf("bytes %q %v", bytes, err)
	}
	names := func(user string, p eventlog.Page) ([]event.AssetID, string) {
		rows, next, err := s.ListAssets(t.Context(), user, p)
		if err != nil {
			t.Fatal(err)
		}
		var ids []event.AssetID
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		return ids, next
	}
	first, next := names("ann", eventlog.Page{Limit: 2})
	rest, end := names("ann", eventlog.Page{Limit: 2, Cursor: next})
	if !slices.Equal(append(first, rest...), []event.AssetID{big.ID, c.ID, a.ID}) || end != "" {
		t.Errorf("pages %v %v %q", first, rest, end)
	}
	if all, _ := names("", eventlog.Page{}); len(all) != 4 {
		t.Errorf("of all users: %v", all)
	}
	s.sound()
}

// An append that uses an asset finds it in its own transaction, and what is
// used is not collected.
func testAssetUses(t *testing.T, s *suite) {
	anew := s.put("ann", "handed in anew", 0)
	again, data := asset("ann", "handed in anew", 30)
	if _, created, err := s.PutAsset(t.Context(), again, data, plenty); err != nil || created {
		t.Fatalf("%v %v", created, err)
	}
	id, other := s.session("ann"), s.session("ann")
	used, shared, idle, late := s.put("ann", "used", 0), s.put("ann", "shared", 0), s.put("ann", "idle", 1), s.put("ann", "late", 30)
	head := s.head(id.Stream())
	missing, _ := asset("ann", "never", 0)
	var gone *eventlog.AssetError
	if err := s.uses("ann", id, used, missing); !errors.As(err, &gone) || gone.ID != missing.ID || s.head(id.Stream()) != head {
		t.Fatalf("use of what is not there: %v", err)
	}
	for _, use := range []func() error{
		func() error { return s.uses("ann", id, used, shared) }, func() error { return s.uses("ann", other, shared) }, func() error { return s.uses("ann", id, used) },
	} {
		if err := use(); err != nil {
			t.Fatal(err)
		}
	}
	for step, want := range []int{1, 0} {
		if n, err := s.CollectAssets(t.Context(), assetTime.Add(24*time.Hour), 10); err != nil || n != want {
			t.Fatalf("step %d collected %d: %v", step, n, err)
		}
	}
	s.assetGone(idle.ID)
	for _, fresh := range []event.AssetID{late.ID, anew.ID} {
		if _, err := s.Asset(t.Context(), fresh); err != nil {
			t.Errorf("a fresh one: %v", err)
		}
	}
	s.sound()
	// Erasing takes what only this session used.
	s.must(erasing("ann", id))
	s.assetGone(used.ID)
	if data, err := s.AssetBytes(t.Context(), shared.ID); err != nil || string(data) != "shared" {
		t.Errorf("what another session uses: %q %v", data, err)
	}
	s.sound()
	if _, err := s.Findings(t.Context(), true); err != nil { // rebuilt rows of use are the same (I-03)
		t.Fatal(err)
	}
	if n, err := s.CollectAssets(t.Context(), assetTime.Add(48*time.Hour), 10); err != nil || n != 2 {
		t.Errorf("after the rebuild %d are collected: %v", n, err)
	}
	s.must(erasing("ann", other))
	s.assetGone(shared.ID)
	s.sound()
}

// However collecting and using fall together, what a run uses is there.
func testAssetRace(t *testing.T, s *suite) {
	id := s.session("ann")
	ctx := within(t)
	err := inParallel(8, func(i int) error {
		for n := range 20 {
			row, data := asset("ann", fmt.Sprint("file ", i, " ", n), 0)
			if _, _, err := s.PutAsset(ctx, row, data, plenty); err != nil {
				return err
			}
			if i%2 == 0 {
				if _, err := s.CollectAssets(ctx, assetTime.Add(time.Hour), 3); err != nil {
					return err
				}
			}
			err := s.uses("ann", id, row)
			var gone *eventlog.AssetError
			if err == nil {
				_, err = s.AssetBytes(ctx, row.ID)
			} else if errors.As(err, &gone) {
				err = nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.sound()
}
