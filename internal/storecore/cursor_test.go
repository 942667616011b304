package storecore

import (
	"slices"
	"testing"
)

// FuzzCursor feeds what a caller gives as a cursor: what is taken is what a
// list of that kind gave.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "x", EncodeCursor("runs", []string{"2026", "run_1"}), EncodeCursor("runs+", []string{"'; --", "\x00"}), EncodeCursor("sessions", nil), "____"} {
		f.Add(s, 2)
	}
	f.Fuzz(func(t *testing.T, cursor string, n int) {
		n = n & 7
		values, err := DecodeCursor("runs", cursor, n)
		if err != nil {
			return
		}
		if len(values) != n || len(cursor) > maxCursor {
			t.Fatalf("%q gives %q", cursor, values)
		}
		again, err := DecodeCursor("runs", EncodeCursor("runs", values), n)
		if err != nil || !slices.Equal(again, values) {
			t.Fatalf("%q gives %q, and that %q (%v)", cursor, values, again, err)
		}
	})
}
