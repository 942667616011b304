// Package textdiff compares texts by lines and writes the difference in the
// unified form. What a comparison may cost is bounded: past its budget it gives
// a difference that is right and larger than it need be, never none and never a
// late one.
package textdiff

import (
	"bytes"
	"slices"
)

// Context is how many equal lines a unified difference shows around what differs.
const Context = 3

// Edit says that the lines OldFrom..OldTo of the old text (counted from 0, the
// last one excluded) are those of NewFrom..NewTo in the new one.
type Edit struct{ OldFrom, OldTo, NewFrom, NewTo int }

// Lines cuts a text behind each \n. Together they are the text; a last line
// without \n is a line of its own.
func Lines(text []byte) [][]byte {
	var lines [][]byte
	for len(text) > 0 {
		n := bytes.IndexByte(text, '\n') + 1
		if n == 0 {
			n = len(text)
		}
		lines = append(lines, text[:n:n])
		text = text[n:]
	}
	return lines
}

// Bounds of the search for the shortest difference.
const (
	maxEdits  = 1000 // lines that differ in one block; its memory grows with the square, 4 MB here
	maxBlocks = 200  // lines that differ between two anchors
)

// Compare gives the edits that make the new text of the old one, in their
// order, none touching the next. budget is counted down by the steps taken
// (about one for each line that is looked at); when it is used up, what is still
// to be compared counts as different.
func Compare(old, new [][]byte, budget *int) []Edit {
	c := comparison{budget: budget}
	c.a, c.b = intern(old, new)
	*budget -= len(old) + len(new)
	c.block(0, len(old), 0, len(new), maxEdits, true)
	return c.edits
}

// intern gives equal lines equal numbers.
func intern(old, new [][]byte) (a, b []int32) {
	known := make(map[string]int32, len(old)+len(new))
	number := func(lines [][]byte) []int32 {
		out := make([]int32, len(lines))
		for i, l := range lines {
			n, ok := known[string(l)]
			if !ok {
				n = int32(len(known))
				known[string(l)] = n
			}
			out[i] = n
		}
		return out
	}
	return number(old), number(new)
}

type comparison struct {
	a, b   []int32
	budget *int
	edits  []Edit
}

// add takes an edit; one that touches the last is joined to it.
func (c *comparison) add(e Edit) {
	if n := len(c.edits); n > 0 && c.edits[n-1].OldTo == e.OldFrom && c.edits[n-1].NewTo == e.NewFrom {
		c.edits[n-1].OldTo, c.edits[n-1].NewTo = e.OldTo, e.NewTo
		return
	}
	c.edits = append(c.edits, e)
}

// block compares a part of both texts. anchors: when the shortest difference is
// not found within most edits, lines that stand once in both may cut the block.
func (c *comparison) block(a0, a1, b0, b1, most int, anchors bool) {
	for a0 < a1 && b0 < b1 && c.a[a0] == c.b[b0] {
		a0, b0 = a0+1, b0+1
	}
	for a0 < a1 && b0 < b1 && c.a[a1-1] == c.b[b1-1] {
		a1, b1 = a1-1, b1-1
	}
	switch {
	case a0 == a1 && b0 == b1:
	case a0 == a1 || b0 == b1:
		c.add(Edit{a0, a1, b0, b1})
	case c.shortest(a0, a1, b0, b1, most):
	case anchors && *c.budget > 0:
		for _, at := range append(c.anchors(a0, a1, b0, b1), [2]int{a1, b1}) {
			c.block(a0, at[0], b0, at[1], maxBlocks, false)
			a0, b0 = at[0], at[1]
		}
	default:
		c.add(Edit{a0, a1, b0, b1})
	}
}

// shortest looks for the shortest difference of a block by the greedy algorithm
// of Myers: for each number of edits the furthest place on each diagonal. It
// says whether it found one within most edits and the budget.
func (c *comparison) shortest(a0, a1, b0, b1, most int) bool {
	a, b := c.a[a0:a1], c.b[b0:b1]
	n, m := len(a), len(b)
	most = min(most, n+m)
	far := make([]int32, 2*most+3) // by diagonal x-y, around most+1
	mid := most + 1
	var trace [][]int32 // far before each round, as far as that round reads
	for d := 0; d <= most; d++ {
		if *c.budget -= d + 1; *c.budget < 0 {
			return false
		}
		trace = append(trace, slices.Clone(far[mid-d:mid+d+1]))
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && far[mid+k-1] < far[mid+k+1] {
				x = int(far[mid+k+1])
			} else {
				x = int(far[mid+k-1]) + 1
			}
			y, from := x-k, x
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			*c.budget -= x - from
			far[mid+k] = int32(x)
			if x >= n && y >= m {
				c.walk(trace, a0, b0, n, m)
				return true
			}
		}
	}
	return false
}

// walk goes back from the end over the rounds, and adds the edits.
func (c *comparison) walk(trace [][]int32, a0, b0, x, y int) {
	var back []Edit
	for d := len(trace) - 1; d > 0; d-- {
		far := trace[d] // of round d-1, by diagonal around d
		k := x - y
		down := k == -d || k != d && at(far, d, k-1) < at(far, d, k+1)
		pk := k - 1
		if down {
			pk = k + 1
		}
		px := at(far, d, pk)
		py := px - pk
		e := Edit{a0 + px, a0 + px + 1, b0 + py, b0 + py}
		if down {
			e = Edit{a0 + px, a0 + px, b0 + py, b0 + py + 1}
		}
		back = append(back, e)
		x, y = px, py
	}
	for i := len(back) - 1; i >= 0; i-- {
		c.add(back[i])
	}
}

// at reads a round's furthest place on a diagonal.
func at(far []int32, d, k int) int {
	if k < -d || k > d {
		return -1
	}
	return int(far[d+k])
}

// anchors gives the places of lines that stand once in each of both parts, as
// many as can be had in the order of both.
func (c *comparison) anchors(a0, a1, b0, b1 int) [][2]int {
	type place struct{ inA, inB, at int }
	seen := map[int32]*place{}
	for i := a0; i < a1; i++ {
		p := seen[c.a[i]]
		if p == nil {
			p = &place{}
			seen[c.a[i]] = p
		}
		p.inA, p.at = p.inA+1, i
	}
	for j := b0; j < b1; j++ {
		if p := seen[c.b[j]]; p != nil {
			p.inB++
		}
	}
	*c.budget -= (a1 - a0) + (b1 - b0)
	// The longest chain that grows in both: piles of the least last place.
	var piles []int // index of the last pair of a chain of that length
	var pairs [][2]int
	var before []int
	for j := b0; j < b1; j++ {
		p := seen[c.b[j]]
		if p == nil || p.inA != 1 || p.inB != 1 {
			continue
		}
		pile, _ := slices.BinarySearchFunc(piles, p.at, func(i, at int) int { return pairs[i][0] - at })
		prev := -1
		if pile > 0 {
			prev = piles[pile-1]
		}
		pairs, before = append(pairs, [2]int{p.at, j}), append(before, prev)
		if pile == len(piles) {
			piles = append(piles, len(pairs)-1)
		} else {
			piles[pile] = len(pairs) - 1
		}
	}
	if len(piles) == 0 {
		return nil
	}
	var chain [][2]int
	for i := piles[len(piles)-1]; i >= 0; i = before[i] {
		chain = append(chain, pairs[i])
	}
	slices.Reverse(chain)
	return chain
}
