package anthropic

import "strings"

// settle makes the turns keep the vendor's rules: hosted calls pair with their
// results, no assistant turn ends with thinking, and the last word is the
// user's, save where the assistant goes on.
func (l *lowering) settle(continues bool) {
	l.pairHosted(continues)
	resumes := continues && l.turns[len(l.turns)-1].role == assistant && l.turns[len(l.turns)-1].hosted()
	turns := l.turns
	l.turns = nil
	for i := range turns {
		t := &turns[i]
		if last := i == len(turns)-1; t.role == assistant && !(last && resumes) {
			t.dropLastThoughts()
		}
		for _, b := range t.blocks {
			l.put(t.role, b)
		}
	}
	if len(l.turns) == 0 || l.turns[len(l.turns)-1].role == assistant && !resumes {
		// Words of the assistant alone are no pause that the vendor goes on from.
		l.put(user, outBlock{Type: "text", Text: textGoOn})
		return
	}
	if t := &l.turns[len(l.turns)-1]; resumes && t.role == assistant {
		if b := &t.blocks[len(t.blocks)-1]; b.Type == "text" {
			b.Text = strings.TrimRight(b.Text, " \t\r\n")
		}
	}
}

// pairHosted leaves out hosted calls that have no result and results that have
// no call: an answer may have been cut between them. A call may wait for its
// result while the assistant goes on, or calls of ours are answered: the vendor
// gives the result in a later answer.
func (l *lowering) pairHosted(continues bool) {
	open := map[string]bool{}    // calls so far
	settled := map[string]bool{} // calls with a result behind them
	for _, t := range l.turns {
		for _, b := range t.blocks {
			switch kind := b.hosted(); {
			case kind == kindHostedCall:
				open[b.own.ID] = true
			case kind == kindHostedResult && open[b.own.ToolUseID]:
				settled[b.own.ToolUseID] = true
			}
		}
	}
	seen, waits := map[string]bool{}, l.underWay(continues)
	for i := range l.turns {
		t := &l.turns[i]
		kept := t.blocks[:0]
		for _, b := range t.blocks {
			switch b.hosted() {
			case kindHostedCall:
				if seen[b.own.ID] || !settled[b.own.ID] && i < waits {
					continue
				}
				seen[b.own.ID] = true
			case kindHostedResult:
				if id := b.own.ToolUseID; !seen[id] || !settled[id] {
					continue
				}
				settled[b.own.ToolUseID] = false // one result for a call
			}
			if b.Caller != nil && !seen[callerID(b.Caller)] {
				b.Caller = nil
			}
			kept = append(kept, b)
		}
		t.blocks = kept
	}
}

// underWay gives the first turn of what the vendor has not ended yet: turns
// with nothing but tool results between them, up to the end of the request.
func (l *lowering) underWay(continues bool) int {
	i := len(l.turns) - 1
	if l.turns[i].role == user || !continues {
		i++
	}
	for i >= 2 && l.turns[i-1].role == user && l.turns[i-1].onlyResults() && l.turns[i-2].calls() {
		i -= 2
	}
	return i
}

// callerID gives the id of the hosted call whose code made a call.
func callerID(caller []byte) string {
	var c struct {
		ToolID string `json:"tool_id"`
	}
	_ = readObject(caller, &c) // no object: no id
	return c.ToolID
}

func (b *outBlock) hosted() blockKind {
	if b.raw == nil {
		return kindOther
	}
	switch k := kindOf(&b.own); k {
	case kindHostedCall, kindHostedResult:
		return k
	}
	return kindOther
}

// hosted says whether a turn holds blocks of hosted tools.
func (t *turn) hosted() bool {
	for i := range t.blocks {
		if t.blocks[i].hosted() != kindOther {
			return true
		}
	}
	return false
}

func (t *turn) calls() bool {
	for i := range t.blocks {
		if t.blocks[i].Type == "tool_use" {
			return true
		}
	}
	return false
}

func (t *turn) onlyResults() bool {
	for i := range t.blocks {
		if t.blocks[i].Type != "tool_result" {
			return false
		}
	}
	return true
}

// dropLastThoughts leaves out thinking that nothing follows: an answer was cut there.
func (t *turn) dropLastThoughts() {
	n := len(t.blocks)
	for n > 0 && t.blocks[n-1].thinks() {
		n--
	}
	t.blocks = t.blocks[:n]
}

// fitsManualThinking says whether a request with manual thinking would be
// taken: where the last that was said are tool results, or the assistant goes
// on, the first assistant turn since the user spoke must begin with thinking.
// History of another maker does not.
func (l *lowering) fitsManualThinking() bool {
	i := len(l.turns) - 1
	if l.turns[i].role == user && !hasResults(&l.turns[i]) {
		return true
	}
	for i > 0 && (l.turns[i].role == assistant || hasResults(&l.turns[i])) {
		i--
	}
	first := &l.turns[min(i+1, len(l.turns)-1)]
	return first.role == assistant && first.blocks[0].thinks()
}

func hasResults(t *turn) bool {
	for i := range t.blocks {
		if t.blocks[i].Type == "tool_result" {
			return true
		}
	}
	return false
}
