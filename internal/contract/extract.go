package contract

import "strings"

const blank = " \t\r\n"

// Extract takes off the one Markdown fence that a model may have put around
// its whole answer: three or more backticks or tildes with any label (of a
// backtick fence: one without backticks), closed on the last line by at least
// as many of the same (CommonMark, section 4.5), with LF or CRLF line ends and
// blank space around it. A text that is anything else, such as one with words
// before the fence or with two fences, is returned as it is.
func Extract(text string) string {
	fenced := strings.Trim(text, blank)
	if fenced == "" || fenced[0] != '`' && fenced[0] != '~' {
		return text
	}
	mark := fenced[:1]
	length := runLength(fenced, mark[0])
	label, body, ok := strings.Cut(fenced[length:], "\n")
	if length < 3 || !ok || mark == "`" && strings.Contains(label, mark) {
		return text
	}
	for rest := body; ; {
		line, next, more := strings.Cut(rest, "\n")
		if closes(line, mark[0], length) {
			if more { // something follows the fence
				return text
			}
			return body[:len(body)-len(line)]
		}
		if !more {
			return text
		}
		rest = next
	}
}

// closes reports whether a line ends a fence of the given mark and length.
func closes(line string, mark byte, length int) bool {
	line = strings.Trim(line, blank)
	n := runLength(line, mark)
	return n >= length && n == len(line)
}

func runLength(s string, c byte) int {
	n := 0
	for n < len(s) && s[n] == c {
		n++
	}
	return n
}
