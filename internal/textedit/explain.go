package textedit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

const (
	maxNear   = 1 << 10 // bytes of a line, or of old_text, that are compared
	leastLike = 0.5     // share of pairs of bytes from which two lines are near
)

// several is the refusal of a piece that stands in more than one place.
func several(text string, at []int) error {
	var lines []string
	for _, i := range at[:min(len(at), maxPlaces)] {
		if n := strconv.Itoa(lineOf(text, i)); len(lines) == 0 || lines[len(lines)-1] != n {
			lines = append(lines, n)
		}
	}
	times := strconv.Itoa(len(at)) + " times"
	if len(at) > maxPlaces {
		times = fmt.Sprintf("more than %d times", maxPlaces)
		lines = append(lines, "…")
	}
	word := "line"
	if len(lines) > 1 {
		word = "lines"
	}
	return fmt.Errorf("old_text is there %s, at %s %s; give more of the text around it so that it is there once, or set all", times, word, strings.Join(lines, ", "))
}

// missing is the refusal of a piece that is not there: with what stands there
// that is almost it.
func missing(text, old string) error {
	if text == "" {
		return errors.New("old_text is not there: the file is empty; use write_file")
	}
	if i := strings.Index(unixEnds(text), unixEnds(old)); i >= 0 && (strings.Contains(text, "\r") || strings.Contains(old, "\r")) {
		ends := `lines of the file end in \n, those of old_text in \r\n`
		if strings.Contains(text, "\r\n") {
			ends = `lines of the file end in \r\n`
			if strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\n") {
				ends = `some lines of the file end in \r\n, others in \n`
			}
		}
		return fmt.Errorf("old_text is not there byte for byte; at line %d only the line ends differ: %s; write the same line ends in old_text and new_text",
			lineOf(unixEnds(text), i), ends)
	}
	line, near, spaces := nearest(text, old)
	switch {
	case line == 0:
		return errors.New("old_text is not there, nor is a line like it; read the file again")
	case spaces:
		return fmt.Errorf("old_text is not there; line %d is as its first line but for white space: %s; copy the text exactly as it stands in the file", line, quote(near))
	}
	return fmt.Errorf("old_text is not there; the nearest to its first line is line %d: %s; copy the text exactly as it stands in the file", line, quote(near))
}

func unixEnds(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// nearest finds the line that is most like the first line of old that is not
// blank; 0: none is. spaces says that they differ in white space at most.
func nearest(text, old string) (number int, line string, spaces bool) {
	want := ""
	for l := range strings.SplitSeq(old, "\n") {
		if want = squeeze(l); want != "" {
			break
		}
	}
	if want == "" {
		return 0, "", false
	}
	pairs := pairsOf(want)
	best, n := leastLike, 0
	for l := range strings.SplitSeq(text, "\n") {
		n++
		have := squeeze(l)
		if have == want {
			return n, l, true
		}
		if score := pairs.like(have); score > best {
			best, number, line = score, n, l
		}
	}
	return number, line, false
}

// squeeze takes the white space out of the beginning of a line.
func squeeze(line string) string {
	return strings.Join(strings.Fields(canonjson.CutRunes(line, maxNear)), "")
}

// pairs counts the pairs of neighbouring bytes of a line.
type pairs struct {
	count map[[2]byte]int
	total int
}

func pairsOf(s string) pairs {
	p := pairs{count: map[[2]byte]int{}}
	for i := range len(s) - 1 {
		p.count[[2]byte{s[i], s[i+1]}]++
		p.total++
	}
	return p
}

// like gives the share of pairs that both have (Dice), from 0 to 1.
func (p pairs) like(s string) float64 {
	if p.total == 0 || len(s) < 2 {
		return 0
	}
	other := pairsOf(s)
	common := 0
	for pair, n := range other.count {
		common += min(n, p.count[pair])
	}
	return 2 * float64(common) / float64(p.total+other.total)
}

// quote shows a line of the text, bounded, with what cannot be seen escaped.
func quote(line string) string {
	if cut := canonjson.CutRunes(line, maxLine); len(cut) < len(line) {
		line = cut + "…"
	}
	return string(canonjson.AppendString(nil, line))
}
