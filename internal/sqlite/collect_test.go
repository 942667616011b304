package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// One transaction frees a bounded number of bytes, and always something.
func TestCollectAssetsInSteps(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: SyncNormal})
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, size := range []int{collectBytes + 1, collectBytes / 2, collectBytes / 2, 1} {
		data := make([]byte, size)
		copy(data, fmt.Sprint(i))
		ref := event.RefOf(data)
		row := eventlog.AssetRow{
			ID: event.AssetIDFor("ann", ref), UserID: "ann", Ref: ref, MediaType: "text/plain", Bytes: int64(size),
			CreatedAt: event.FormatTime(made.Add(time.Duration(i) * time.Second)),
		}
		if _, _, err := s.PutAsset(t.Context(), row, data, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	for step, want := range []int{1, 2, 1, 0} {
		if n, err := s.CollectAssets(t.Context(), made.Add(time.Hour), 10); err != nil || n != want {
			t.Fatalf("step %d collected %d: %v", step, n, err)
		}
	}
}
