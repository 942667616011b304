package pieces

import (
	"bytes"
	"fmt"
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
		for cut := 1; cut < len(long); cut++ {
			if near := bytes.Contains(long[cut-1:cut+1], []byte("\n")); (size == 1 || near) && !seen[fmt.Sprintf("LF, cut at %d", cut)] {
				t.Errorf("no cut at %d", cut)
			}
		}
		if !seen["CR, whole"] || !seen["CRLF, byte by byte"] || !seen["CRLF, cut at 8"] || !seen["CRLF, cut at 9"] {
			t.Errorf("not all of CRLF and CR in %d ways", len(seen))
		}
		if size > 1 && len(seen) > 3*len(long) {
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
