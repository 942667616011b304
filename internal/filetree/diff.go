package filetree

import (
	"bytes"
	"context"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/textdiff"
)

// Diff is a change with what differs in it.
type Diff struct {
	Change
	Added, Deleted int    // lines; of texts that were compared
	Text           string // hunks of a unified difference, without the lines that name the files
	Cut            bool   // Text ends before the difference does, or is left out: the answer would be too large
	Binary         bool   // no text, and not shown
	Unheld         bool   // the content of one side is not held: too large, or it could not be read
}

// Bounds of one comparison. They are what a person reads, and what a request may cost.
const (
	maxDiffs     = 1000       // files that are named
	maxDiffFile  = 1 << 20    // bytes of a side that is compared
	maxDiffText  = 2 << 20    // bytes of all texts
	maxFileText  = 256 << 10  // bytes of the text of one file
	maxDiffSteps = 30_000_000 // steps of all comparisons, some of a second
)

// Diff tells what differs between two snapshots of a space with the differences
// of texts, or with stat the numbers of their lines only; and how many files
// more there are. ErrGone: one of the snapshots is not kept here.
func (s *Store) Diff(ctx context.Context, space string, from, to Tree, stat bool) ([]Diff, int, error) {
	list, more, err := s.Changes(ctx, space, from, to, maxDiffs)
	if err != nil {
		return nil, 0, err
	}
	steps, room := maxDiffSteps, maxDiffText
	out := make([]Diff, len(list))
	for i := range list {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		out[i].Change = list[i]
		if list[i].Kind == Mode {
			continue
		}
		if err := s.compare(space, &out[i], &steps, &room, stat); err != nil {
			return nil, 0, err
		}
	}
	return out, more, nil
}

func (s *Store) compare(space string, d *Diff, steps, room *int, stat bool) error {
	var sides [2][]byte
	for i, e := range []*entry{d.old, d.new} {
		switch {
		case e == nil:
			continue
		case e.kind == unheld:
			d.Unheld = true
			return nil
		case e.size > maxDiffFile || *steps <= 0:
			d.Cut = true
			return nil
		}
		data, err := s.get(space, e.sum, e.size)
		if err != nil {
			return err
		}
		if binary(data) {
			d.Binary = true
			return nil
		}
		sides[i] = data
	}
	a, b := textdiff.Lines(sides[0]), textdiff.Lines(sides[1])
	edits := textdiff.Compare(a, b, steps)
	d.Added, d.Deleted = textdiff.Counts(edits)
	if stat {
		return nil
	}
	text, whole := textdiff.Unified(a, b, edits, min(*room, maxFileText))
	d.Text, d.Cut = string(text), !whole
	*room -= len(text)
	return nil
}

// binary says whether bytes are no text.
func binary(data []byte) bool {
	return bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data)
}
