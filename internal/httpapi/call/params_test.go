package call

import (
	"strconv"
	"strings"
	"testing"
)

// FuzzLastEventID feeds the number with which a reader of a stream goes on.
func FuzzLastEventID(f *testing.F) {
	for _, s := range []string{"", "0", "1", "-1", "+5", "9223372036854775807", "9223372036854775808", "1e3", "٣", " 7", "0x10"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSeq(text)
		if err == nil && (n < 0 || strings.TrimLeft(text, "0") != strings.TrimLeft(strconv.FormatInt(n, 10), "0")) {
			t.Fatalf("%q is read as %d", text, n)
		}
	})
}
