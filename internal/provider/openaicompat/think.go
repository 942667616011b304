package openaicompat

import "strings"

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// piece is a run of content that is either thought or answer.
type piece struct {
	text    string
	thought bool
}

// thinkSplitter parts `<think>…</think>` at the very start of the content from
// the answer behind it. Anywhere else the tags are text like any other. It
// holds back only what may be a part of a tag.
type thinkSplitter struct {
	state thinkState
	held  string
}

type thinkState int

const (
	thinkStart thinkState = iota // nothing but white space and a part of the tag yet
	thinkInside
	thinkBehind // white space behind the thought is left out
	thinkAnswer
)

// split takes a piece of content and gives what is known to be thought or
// answer. It gives at most two pieces.
func (t *thinkSplitter) split(text string) []piece {
	if text == "" {
		return nil
	}
	if t.state == thinkAnswer {
		return []piece{{text: text}}
	}
	text, t.held = t.held+text, ""
	if t.state == thinkStart {
		body := strings.TrimLeft(text, " \t\r\n")
		rest, opened := strings.CutPrefix(body, thinkOpen)
		switch {
		case opened:
			t.state, text = thinkInside, rest
		case strings.HasPrefix(thinkOpen, body) && len(text) < 1<<10:
			t.held = text
			return nil
		default:
			t.state = thinkAnswer
			return []piece{{text: text}}
		}
	}
	var out []piece
	if t.state == thinkInside {
		thought, rest, closed := strings.Cut(text, thinkClose)
		if !closed {
			n := partial(text, thinkClose)
			t.held = text[len(text)-n:]
			return []piece{{text: text[:len(text)-n], thought: true}}
		}
		out = append(out, piece{text: thought, thought: true})
		t.state, text = thinkBehind, rest
	}
	if text = strings.TrimLeft(text, " \t\r\n"); text != "" {
		t.state = thinkAnswer
		out = append(out, piece{text: text})
	}
	return out
}

// flush gives what was held back when the content ended.
func (t *thinkSplitter) flush() []piece {
	held := t.held
	t.held = ""
	if held == "" {
		return nil
	}
	return []piece{{text: held, thought: t.state == thinkInside}}
}

// partial gives the length of the longest end of text that begins tag.
func partial(text, tag string) int {
	for n := min(len(text), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(text, tag[:n]) {
			return n
		}
	}
	return 0
}
