package pieces

import (
	"bytes"
	"io"
	"maps"
	"strings"
	"testing"
)

// Every way gives the same bytes, and every cut is there.
func TestEveryWay(t *testing.T) {
	body := []byte("data: a\n\ndata: é\n\n")
	for _, size := range []int{1, 170} {
		long := bytes.Repeat(body, size)
		seen, texts := map[string]bool{}, maps.Collect(LineEnds(long))
		for how, r := range EveryWay(long) {
			got, err := io.ReadAll(r)
			end, _, _ := strings.Cut(how, ",")
			if err != nil || !bytes.Equal(got, texts[end]) || seen[how] {
				t.Fatalf("%s: %v", how, err)
			}
			seen[how] = true
		}
		want := 3*(1+len(long)) + 4*size // a CRLF has one byte more, and one cut
		if size == 1 && len(seen) != want {
			t.Errorf("%d ways, want %d", len(seen), want)
		}
		if size > 1 && (len(seen) < 170*8 || len(seen) > want) {
			t.Errorf("%d ways of a long body", len(seen))
		}
	}
	// One piece for each read, in order.
	r := Reader([]byte("abcdef"), 4, 1, 4, 99, -1)
	var got []string
	for b := make([]byte, 9); ; {
		n, err := r.Read(b)
		if err == io.EOF {
			break
		}
		got = append(got, string(b[:n]))
	}
	if strings.Join(got, "|") != "a|bcd|ef" {
		t.Error(got)
	}
}
