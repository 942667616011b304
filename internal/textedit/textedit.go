// Package textedit replaces exact pieces of a text, as a model asks for it:
// every piece must be there, and only once unless all of them are meant. What
// does not fit is refused with what to do about it.
package textedit

import (
	"errors"
	"fmt"
	"strings"
)

// Edit is one replacement. The match is on exact bytes: white space and line
// ends count.
type Edit struct {
	Old, New string
	All      bool // replace it wherever it stands; else it must stand in one place
}

// Bounds of one call.
const (
	MaxEdits = 100

	maxPlaces = 10 // lines that a refusal names
)

// Result is a text that was edited.
type Result struct {
	Text     string
	Replaced int    // pieces
	Summary  string // the changed lines, before and after, bounded
}

// Apply makes the edits in their order, each in the text that the ones before
// it left. It makes all of them or none. No text of more than maxBytes bytes
// comes out, nor arises on the way. The text of an error is meant for who
// asked, and may quote the text.
func Apply(text string, edits []Edit, maxBytes int) (Result, error) {
	switch {
	case len(edits) == 0:
		return Result{}, errors.New("there are no edits")
	case len(edits) > MaxEdits:
		return Result{}, fmt.Errorf("there are %d edits, at most %d are allowed", len(edits), MaxEdits)
	}
	r := Result{Text: text}
	var s summary
	for i, e := range edits {
		at, err := places(r.Text, e)
		if err == nil {
			if size := len(r.Text) + len(at)*(len(e.New)-len(e.Old)); size > maxBytes {
				err = fmt.Errorf("the text would have %d bytes, at most %d are allowed", size, maxBytes)
			}
		}
		if err != nil {
			if len(edits) > 1 {
				err = fmt.Errorf("edit %d of %d: %w; nothing was changed", i+1, len(edits), err)
			}
			return Result{}, err
		}
		s.add(r.Text, e, at)
		r.Text = replace(r.Text, e, at)
		r.Replaced += len(at)
	}
	if r.Text == text {
		return Result{}, errors.New("the edits undo each other: nothing would change")
	}
	r.Summary = s.String()
	return r, nil
}

// places gives where the pieces of an edit begin, in order.
func places(text string, e Edit) ([]int, error) {
	switch {
	case e.Old == "":
		return nil, errors.New("old_text is empty; to write a whole file use write_file")
	case e.Old == e.New:
		return nil, errors.New("old_text and new_text are the same")
	}
	var at []int
	if e.All {
		for from := 0; ; {
			i := strings.Index(text[from:], e.Old)
			if i < 0 {
				break
			}
			at = append(at, from+i)
			from += i + len(e.Old)
		}
	} else {
		// Places that overlap are several places too.
		for from := 0; len(at) <= maxPlaces; {
			i := strings.Index(text[from:], e.Old)
			if i < 0 {
				break
			}
			at = append(at, from+i)
			from += i + 1
		}
		if len(at) > 1 {
			return nil, several(text, at)
		}
	}
	if len(at) == 0 {
		return nil, missing(text, e.Old)
	}
	return at, nil
}

func replace(text string, e Edit, at []int) string {
	var b strings.Builder
	b.Grow(len(text) + len(at)*(len(e.New)-len(e.Old)))
	from := 0
	for _, i := range at {
		b.WriteString(text[from:i])
		b.WriteString(e.New)
		from = i + len(e.Old)
	}
	b.WriteString(text[from:])
	return b.String()
}

// lineOf is the number, from 1, of the line in which a place lies.
func lineOf(text string, at int) int { return 1 + strings.Count(text[:at], "\n") }
