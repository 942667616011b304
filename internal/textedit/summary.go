package textedit

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

const (
	maxSummary = 4 << 10 // bytes of a summary, about
	maxLines   = 20      // lines of one side of a change
	maxLine    = 200     // bytes of a line that is shown
)

// summary tells changes: for each the whole lines before and after it.
type summary struct {
	b    strings.Builder
	more int // changes that are not told
}

// add tells an edit of text at places.
func (s *summary) add(text string, e Edit, at []int) {
	grown, line, counted := 0, 1, 0 // lines that the places before added
	for _, i := range at {
		if s.b.Len() > maxSummary {
			s.more++
			continue
		}
		line += strings.Count(text[counted:i], "\n")
		counted = i
		begin := strings.LastIndexByte(text[:i], '\n') + 1
		end := len(text)
		if n := strings.IndexByte(text[i+len(e.Old):], '\n'); n >= 0 {
			end = i + len(e.Old) + n
		}
		after := text[begin:i] + e.New
		switch whole := strings.HasSuffix(e.Old, "\n"); {
		case whole && e.New == "" && begin == i: // whole lines go
			s.hunk(line+grown, text[begin:i+len(e.Old)-1], nil)
		case whole && strings.HasSuffix(e.New, "\n"): // the next line stays as it is
			after = after[:len(after)-1]
			s.hunk(line+grown, text[begin:i+len(e.Old)-1], &after)
		default:
			after += text[i+len(e.Old) : end]
			s.hunk(line+grown, text[begin:end], &after)
		}
		grown += strings.Count(e.New, "\n") - strings.Count(e.Old, "\n")
	}
}

// hunk tells one change; after is nil where nothing stands in its place.
func (s *summary) hunk(line int, before string, after *string) {
	fmt.Fprintf(&s.b, "@@ line %d @@\n", line)
	s.side('-', before)
	if after != nil {
		s.side('+', *after)
	}
}

func (s *summary) side(mark byte, text string) {
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		if n++; n > maxLines || s.b.Len() > maxSummary {
			fmt.Fprintf(&s.b, "%c[%d more]\n", mark, strings.Count(text, "\n")+2-n)
			return
		}
		s.b.WriteByte(mark)
		if cut := canonjson.CutRunes(line, maxLine); len(cut) < len(line) {
			line = cut + "…"
		}
		s.b.WriteString(line)
		s.b.WriteByte('\n')
	}
}

func (s *summary) String() string {
	if s.more > 0 {
		fmt.Fprintf(&s.b, "[%d more changes]\n", s.more)
	}
	return s.b.String()
}
