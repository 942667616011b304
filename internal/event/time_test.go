package event_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// FuzzParseTime feeds times of cursors, filters and rows: what is read is written
// as it was.
func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"", "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00Z", "2026-13-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00.000000+00:00", "0000-01-01T0:00:00,000000Z", "2026-01-01T00:00:00,000000Z", "2026-01-01T0:00:00.0000000Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, err := event.ParseTime(text)
		if err == nil && event.FormatTime(at) != text {
			t.Fatalf("%q is read as %s", text, event.FormatTime(at))
		}
	})
}
