package openai

import (
	"slices"
	"strings"
)

// entry is one item of the answer under way, as far as it has been told.
type entry struct {
	kind  string // the item's type: "message", "reasoning", "function_call", or a hosted one
	id    string
	added bool // output_item.added was seen
	done  bool // output_item.done was seen
	final bool // matched with an item of the whole answer

	phase    string             // message
	pieces   map[int64]*stretch // message: by content index
	thoughts []*stretch         // reasoning, in order of appearance
	part     *part              // reasoning: all its stretches are one part
	state    []byte             // reasoning: the item as it came
	sealed   bool               // the state has been given out
	call     *call              // function_call
	hosted   *hosted            // the rest
}

// stretch is one run of text that deltas tell and events of completion repeat.
type stretch struct {
	key  int64
	kind byte // of a thought: 's' of the summary, 't' of the text itself
	part *part
	sent strings.Builder
}

// call is one tool call under way.
type call struct {
	index   int // of its output part, once it has started
	name    string
	wireID  string
	args    strings.Builder // what was streamed
	whole   string          // what the events of completion say, "" when none did
	started bool
}

// place is where in the answer an event belongs, as far as the server tells:
// some leave the index out, some send 0 for every item, some make up a new id
// for each event.
type place struct {
	index number
	ids   []string // the item's id, and of a call its call id
}

// tracker finds the entry that an event speaks of.
type tracker struct {
	all     []*entry
	byIndex map[int64]*entry
	byID    map[string]*entry
}

func newTracker() tracker {
	return tracker{byIndex: map[int64]*entry{}, byID: map[string]*entry{}}
}

// opens gives the entry for an item that begins: a new one, unless the same
// item has been announced before.
func (t *tracker) opens(kind string, at place) *entry {
	e := t.known(kind, at)
	if e == nil || e.done || e.added && !e.is(at) {
		e = t.add(kind)
	}
	e.added = true
	t.register(e, at)
	return e
}

// goesOn gives the entry for a delta or for a part that is complete.
func (t *tracker) goesOn(kind string, at place) *entry {
	e := t.known(kind, at)
	if e == nil && !at.index.known {
		e = t.latest(kind, at)
	}
	if e == nil {
		e = t.add(kind)
	}
	t.register(e, at)
	return e
}

// closes gives the entry for an item that is complete.
func (t *tracker) closes(kind string, at place) *entry {
	e := t.known(kind, at)
	switch {
	case e != nil && e.done && !e.is(at):
		e = nil // one index for all items
	case e == nil && !at.index.known:
		e = t.latest(kind, at)
	}
	if e == nil {
		e = t.add(kind)
	}
	t.register(e, at)
	return e
}

// matches gives the entry for an item of the whole answer that ends the
// stream: by its id, by its position, else the next of its kind.
func (t *tracker) matches(kind string, at place) *entry {
	var e *entry
	for _, id := range at.ids {
		if x := t.byID[id]; x != nil && x.kind == kind && !x.final {
			e = x
			break
		}
	}
	if x := t.byIndex[at.index.n]; e == nil && x != nil && x.kind == kind && !x.final {
		e = x
	}
	for _, x := range t.all {
		if e != nil {
			break
		}
		if x.kind == kind && !x.final {
			e = x
		}
	}
	if e == nil {
		e = t.add(kind)
	}
	if e.final = true; e.id == "" {
		e.id = at.id()
	}
	return e
}

func (t *tracker) known(kind string, at place) *entry {
	if at.index.known {
		e := t.byIndex[at.index.n]
		if e == nil || e.kind == kind {
			return e
		}
	}
	for _, id := range at.ids {
		if e := t.byID[id]; e != nil && e.kind == kind {
			return e
		}
	}
	return nil
}

// latest gives the last entry of a kind that is not complete and whose id, if
// both have one, is not another.
func (t *tracker) latest(kind string, at place) *entry {
	for i := len(t.all) - 1; i >= 0; i-- {
		if e := t.all[i]; e.kind == kind && !e.done && e.is(at) {
			return e
		}
	}
	return nil
}

func (t *tracker) add(kind string) *entry {
	e := &entry{kind: kind}
	t.all = append(t.all, e)
	return e
}

func (t *tracker) register(e *entry, at place) {
	if at.index.known {
		t.byIndex[at.index.n] = e
	}
	for _, id := range at.ids {
		if id != "" {
			t.byID[id] = e
		}
	}
	if e.id == "" {
		e.id = at.id()
	}
}

// is says whether the ids of a place are those of the entry, or say nothing.
func (e *entry) is(at place) bool {
	if e.id == "" || at.id() == "" || slices.Contains(at.ids, e.id) {
		return true
	}
	return e.call != nil && e.call.wireID != "" && slices.Contains(at.ids, e.call.wireID)
}

// id gives the first id that a place has.
func (p place) id() string {
	for _, id := range p.ids {
		if id != "" {
			return id
		}
	}
	return ""
}

// piece gives the stretch of a message's content.
func (e *entry) piece(key int64) *stretch {
	if e.pieces == nil {
		e.pieces = map[int64]*stretch{}
	}
	s := e.pieces[key]
	if s == nil {
		s = &stretch{key: key, part: &part{owner: e}}
		e.pieces[key] = s
	}
	return s
}

// thought gives the stretch of an item of reasoning.
func (e *entry) thought(kind byte, key int64) *stretch {
	for _, s := range e.thoughts {
		if s.kind == kind && s.key == key {
			return s
		}
	}
	if e.part == nil {
		e.part = &part{owner: e}
	}
	s := &stretch{kind: kind, key: key, part: e.part}
	e.thoughts = append(e.thoughts, s)
	return s
}
