package openaicompat

import "strings"

// thinkTags are the marks that local models put around their thoughts at the
// start of an answer. No opening one is the beginning of another.
var thinkTags = []struct{ open, close string }{
	{"<think>", "</think>"},
	{"<thinking>", "</thinking>"},
	{"<thought>", "</thought>"},
	{"[THINK]", "[/THINK]"},
}

// piece is a run of content that is either thought or answer.
type piece struct {
	text    string
	thought bool
}

// thinkSplitter parts thoughts in tags at the very start of the content, also
// several in a row, from the answer behind them. Anywhere else the tags are
// text like any other. It holds back only what may be a part of a tag.
type thinkSplitter struct {
	state thinkState
	close string // the end of the open thought
	held  string
	some  bool // there was a thought: white space behind it is left out
}

type thinkState int

const (
	thinkStart  thinkState = iota // nothing but white space and a part of a tag yet
	thinkInside                   // a thought is open
	thinkAnswer
)

// maxHeld bounds the white space that is held back before a tag.
const maxHeld = 1 << 10

// split takes a piece of content and gives what is known to be thought or
// answer.
func (t *thinkSplitter) split(text string) []piece {
	if text == "" {
		return nil
	}
	var out []piece
	text, t.held = t.held+text, ""
	for text != "" {
		switch t.state {
		case thinkAnswer:
			return append(out, piece{text: text})
		case thinkInside:
			thought, rest, closed := strings.Cut(text, t.close)
			if !closed {
				n := partial(text, t.close)
				t.held = text[len(text)-n:]
				return append(out, piece{text: text[:len(text)-n], thought: true})
			}
			out = append(out, piece{text: thought, thought: true})
			t.state, t.some, text = thinkStart, true, rest
		case thinkStart:
			body := strings.TrimLeft(text, " \t\r\n")
			near := len(text)-len(body) < maxHeld
			rest, opened := t.opened(body)
			switch {
			case opened && near:
				t.state, text = thinkInside, rest
			case mayOpen(body) && near:
				t.held = text
				return out
			default:
				if t.state = thinkAnswer; t.some {
					text = body
				}
			}
		}
	}
	return out
}

func (t *thinkSplitter) opened(body string) (rest string, ok bool) {
	for _, tag := range thinkTags {
		if rest, ok := strings.CutPrefix(body, tag.open); ok {
			t.close = tag.close
			return rest, true
		}
	}
	return "", false
}

// mayOpen says that a tag may still come of body.
func mayOpen(body string) bool {
	for _, tag := range thinkTags {
		if strings.HasPrefix(tag.open, body) {
			return true
		}
	}
	return false
}

// flush gives what was held back when the content ended.
func (t *thinkSplitter) flush() []piece {
	held := t.held
	t.held = ""
	if t.state == thinkStart && t.some {
		held = strings.TrimLeft(held, " \t\r\n")
	}
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
