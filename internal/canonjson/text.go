package canonjson

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxName = 200  // bytes of a name that a message shows
	maxPath = 1024 // bytes of a path that a message shows
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string in canonical form (RFC 8785, section
// 3.2.2.2). A byte that is not UTF-8 becomes U+FFFD, as in [ReplaceInvalid].
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[done:i]...)
				dst = append(dst, "\uFFFD"...)
				done = i + 1
			}
			i += size
			continue
		case c < 0x20 || c == '"' || c == '\\':
			dst = append(dst, s[done:i]...)
			dst = appendEscape(dst, c)
			done = i + 1
		}
		i++
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\t':
		return append(dst, '\\', 't')
	case '\n':
		return append(dst, '\\', 'n')
	case '\f':
		return append(dst, '\\', 'f')
	case '\r':
		return append(dst, '\\', 'r')
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}

// ReplaceInvalid is the rule for free text (tool results, model text): each
// byte that is not UTF-8 becomes U+FFFD, everything else stays. It reports
// whether there was any.
func ReplaceInvalid(s string) (clean string, changed bool) {
	if utf8.ValidString(s) {
		return s, false
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String(), true
}

// CutRunes returns the longest beginning of s that has at most maxBytes bytes
// and does not end inside a rune.
func CutRunes(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	cut := max(maxBytes, 0)
	// No rune has more than three continuation bytes; more of them are no rune.
	for back := 0; back < utf8.UTFMax && cut > 0; back++ {
		if utf8.RuneStart(s[cut]) {
			return s[:cut]
		}
		cut--
	}
	return s[:cut]
}

// QuoteName returns a name as messages show it, between backticks, cut to a
// bounded length, with control characters and the like escaped as in JSON.
func QuoteName(name string) string { return "`" + safeName(name) + "`" }

func safeName(name string) string {
	if len(name) > maxName {
		name = CutRunes(name, maxName) + "…"
	}
	if strings.IndexFunc(name, hidden) < 0 {
		return name
	}
	var b []byte
	for _, r := range name {
		switch {
		case !hidden(r):
			b = utf8.AppendRune(b, r)
		case r < 0x20:
			b = appendEscape(b, byte(r))
		case r < 0x10000:
			b = append(b, '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, utf8.RuneError)
		}
	}
	return string(b)
}

// hidden holds for runes that could break a line or turn the direction of a
// log or a terminal.
func hidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) || r == utf8.RuneError
}

// MemberPath returns the path of a member: `.name` appended when the name is
// `[A-Za-z_][A-Za-z0-9_]*`, else `["…"]` with the name in JSON form. Paths and
// names in them are cut to a bounded length, and then end with `…`.
func MemberPath(path, name string) string { return extend(path, memberStep(name)) }

func extend(path, step string) string {
	if len(path) > maxPath {
		return path
	}
	path += step
	if len(path) > maxPath {
		return CutRunes(path, maxPath) + "…"
	}
	return path
}

func elementStep(i int) string { return "[" + strconv.Itoa(i) + "]" }

func memberStep(name string) string {
	if plainName(name) {
		return "." + name
	}
	if len(name) > maxName {
		name = CutRunes(name, maxName) + "…"
	}
	var quoted []byte
	quoted = append(quoted, '[')
	for _, r := range string(AppendString(nil, name)) {
		if hidden(r) { // valid in JSON as it is, and so is its escape
			quoted = append(quoted, safeName(string(r))...)
			continue
		}
		quoted = utf8.AppendRune(quoted, r)
	}
	return string(append(quoted, ']'))
}

func plainName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return true
}

// Trail collects the steps of a path from the inside out, so that only an
// error on its way out pays for its path.
type Trail struct{ steps []string }

// Member adds the step to a member.
func (t *Trail) Member(name string) { t.steps = append(t.steps, memberStep(name)) }

// Element adds the step to an element.
func (t *Trail) Element(i int) { t.steps = append(t.steps, elementStep(i)) }

// String returns the path from `$`.
func (t Trail) String() string {
	path := "$"
	for i := len(t.steps) - 1; i >= 0; i-- {
		path = extend(path, t.steps[i])
	}
	return path
}
