package sqlite

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// pages is the number of pages of a database.
func pages(t *testing.T, s *Store) (n int64) {
	t.Helper()
	if err := s.byWriter(t.Context(), func(w *writer) error {
		return w.st.row(t.Context(), []byte("PRAGMA main.page_count"), nil, &n)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// A full store refuses an append whole, reads on, and takes the same append when
// there is room, without being opened anew. // C61 I-01 I-02 I-03
func TestFull(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	if _, err := s.Append(t.Context(), said("ses_a", "first")); err != nil {
		t.Fatal(err)
	}
	if err := s.Limit(t.Context(), pages(t, s)+2); err != nil {
		t.Fatal(err)
	}
	big := said("ses_a", strings.Repeat("x", 100_000))
	b := event.NewBlob("ses_a", event.BlobContent, []byte("a blob"))
	big.Blobs = []event.Blob{b}
	big.Entries[0].Events[0].Data.(*event.TextEnded).Content.Ref = b.Ref
	_, err := s.Append(t.Context(), big)
	var full *eventlog.FullError
	if !errors.Is(err, eventlog.ErrFull) || !errors.As(err, &full) || full.Kept || full.Database || !strings.Contains(full.Advice(), "data directory is full") {
		t.Fatalf("a full store says %v", err)
	}
	if eventlog.Refusal(err) != "" {
		t.Error("what a full store refuses counts as refused for good")
	}
	if h, err := s.Head(t.Context(), "session:ses_a"); err != nil || h.Seq != 1 {
		t.Errorf("head %+v, %v", h, err)
	}
	if _, _, err := s.Blob(t.Context(), "ses_a", b.Ref); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("a part of the append is stored: %v", err)
	}
	mustVerify(t, s)
	if s.Damaged() != nil {
		t.Error("a full store counts as damaged")
	}
	if err := s.Limit(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if stamps, err := s.Append(t.Context(), big); err != nil || stamps[0].Head != 2 {
		t.Fatalf("with room: %+v, %v", stamps, err)
	}
	mustVerify(t, s)
}

// In a batch only the appends that find no room fail; each of the others is
// there once. // I-02
func TestFullInABatch(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Sync: SyncNormal})
	if _, err := s.Append(t.Context(), said("ses_0", "first")); err != nil {
		t.Fatal(err)
	}
	if err := s.Limit(t.Context(), pages(t, s)+30); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	took, none := map[event.Stream]bool{}, map[event.SessionID]eventlog.Append{}
	for i := range 64 {
		wg.Go(func() {
			id := event.SessionID("ses_" + string(rune('A'+i)))
			a := said(id, strings.Repeat("x", 10_000))
			stamps, err := s.Append(t.Context(), a)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				took[stamps[0].Stream] = true
			case errors.Is(err, eventlog.ErrFull):
				none[id] = a
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(took) == 0 || len(none) == 0 {
		t.Fatalf("%d found room and %d did not", len(took), len(none))
	}
	mustVerify(t, s)
	if err := s.Limit(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for id, a := range none {
		if h, err := s.Head(t.Context(), id.Stream()); err != nil || h.Seq != 0 {
			t.Errorf("%s was refused and stands at %+v, %v", id, h, err)
		}
		if _, err := s.Append(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
	for stream := range took {
		if h, err := s.Head(t.Context(), stream); err != nil || h.Seq != 1 {
			t.Errorf("%s: %+v, %v", stream, h, err)
		}
	}
	mustVerify(t, s)
}
