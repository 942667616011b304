package textdiff

import (
	"strconv"
)

// noNewline marks a last line that has no \n.
const noNewline = "\\ No newline at end of file\n"

// Counts are the lines that edits take out and put in.
func Counts(edits []Edit) (added, deleted int) {
	for _, e := range edits {
		added += e.NewTo - e.NewFrom
		deleted += e.OldTo - e.OldFrom
	}
	return added, deleted
}

// Unified writes edits in the unified form, without the lines that name the
// files, up to most bytes: hunks are whole, and whole says whether all are there.
func Unified(old, new [][]byte, edits []Edit, most int) (text []byte, whole bool) {
	var out []byte
	for len(edits) > 0 {
		n := 1
		for n < len(edits) && edits[n].OldFrom-edits[n-1].OldTo <= 2*Context {
			n++
		}
		next := hunk(out, old, new, edits[:n], most)
		if next == nil {
			return out, false
		}
		out, edits = next, edits[n:]
	}
	return out, true
}

// hunk appends one hunk, or gives nil when that would be more than most bytes.
func hunk(out []byte, old, new [][]byte, edits []Edit, most int) []byte {
	first, last := edits[0], edits[len(edits)-1]
	before := min(Context, first.OldFrom)
	after := min(Context, len(old)-last.OldTo)
	out = append(out, "@@ -"...)
	out = span(out, first.OldFrom-before, last.OldTo+after)
	out = append(out, " +"...)
	out = span(out, first.NewFrom-before, last.NewTo+after)
	out = append(out, " @@\n"...)
	line := func(mark byte, l []byte) bool {
		if len(out)+len(l)+1+len(noNewline) > most {
			return false
		}
		out = append(append(out, mark), l...)
		if l[len(l)-1] != '\n' {
			out = append(append(out, '\n'), noNewline...)
		}
		return true
	}
	at := first.OldFrom - before
	for _, e := range edits {
		for ; at < e.OldFrom; at++ {
			if !line(' ', old[at]) {
				return nil
			}
		}
		for ; at < e.OldTo; at++ {
			if !line('-', old[at]) {
				return nil
			}
		}
		for i := e.NewFrom; i < e.NewTo; i++ {
			if !line('+', new[i]) {
				return nil
			}
		}
	}
	for ; at < last.OldTo+after; at++ {
		if !line(' ', old[at]) {
			return nil
		}
	}
	return out
}

// span writes where lines stand: the first, from 1, and how many. Of none it is
// the line before.
func span(out []byte, from, to int) []byte {
	first := from + 1
	if from == to {
		first = from
	}
	out = strconv.AppendInt(out, int64(first), 10)
	if to-from != 1 {
		out = append(out, ',')
		out = strconv.AppendInt(out, int64(to-from), 10)
	}
	return out
}
