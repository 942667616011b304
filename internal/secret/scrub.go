package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

const (
	// MinLength is the shortest text that a Scrubber takes out, in bytes; shorter
	// words (a scheme, a version) are no secrets, and would tear the text.
	MinLength = 8
	// Redacted stands where a secret was.
	Redacted = "[redacted]"
	// maxEscaped is how many bytes one byte of a secret may take in a body:
	// three of a percent-encoding, each as \uXXXX, whose backslash is escaped again.
	maxEscaped = 21
)

// Scrubber takes secrets out of texts. It knows a secret as it is, behind the
// escapes of JSON (RFC 8259, section 7; JSON within a string of JSON too) and of
// quoted strings of programs (\x41, \'), percent-encoded for a path or a query
// (RFC 3986, section 2.1; + for a space), with the references of HTML (&quot;), two
// of these in one another, in hexadecimal, and within base64 of either alphabet
// (RFC 4648), also when more was encoded with it. Any other form, such as a digest
// or parts, it does not recognize. The zero value knows none. It is safe for
// concurrent use once nothing more is added.
type Scrubber struct {
	patterns map[uint64][]string // by their first 8 bytes, the longest first
	heads    [1 << 16]bool       // the first 2 bytes of a pattern
	longest  int                 // secret, in bytes
}

// NewScrubber knows the given secrets.
func NewScrubber(values ...string) *Scrubber {
	r := new(Scrubber)
	for _, v := range values {
		r.Add(v)
	}
	return r
}

// Reach is how many bytes past a border must be read so that a secret that
// crosses it is seen in full.
func (r *Scrubber) Reach() int { return r.longest * maxEscaped }

// Add makes a value a secret, and its words: those of a header, of more than
// one line. Of Basic credentials (RFC 7617) the pair and the password are
// secrets too, and of a URL what stands behind its host.
func (r *Scrubber) Add(value string) {
	words := strings.Fields(value)
	r.secret(value)
	for _, w := range words {
		r.secret(w)
		r.address(w)
	}
	if len(words) == 2 && strings.EqualFold(words[0], "Basic") { // RFC 7617: user:password
		if pair, err := base64.StdEncoding.DecodeString(words[1]); err == nil {
			_, password, _ := strings.Cut(string(pair), ":")
			r.secret(string(pair))
			r.secret(password)
		}
	}
}

// address makes the parts of a URL secrets that may show apart from it: the
// password, the name where it is a token (of a bus), and of the web the path with
// its last part and the query with its values. Names of databases and of users
// are no secrets.
func (r *Scrubber) address(word string) {
	if !strings.Contains(word, "://") {
		return
	}
	u, err := url.Parse(word)
	if err != nil {
		return
	}
	if password, ok := u.User.Password(); ok {
		r.secret(password)
	} else if u.Scheme == "nats" || u.Scheme == "tls" {
		r.secret(u.User.Username())
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return
	}
	r.secret(u.EscapedPath())
	r.secret(strings.Trim(u.Path, "/"))
	r.secret(path.Base(u.Path))
	r.secret(u.RawQuery)
	for _, values := range u.Query() {
		for _, v := range values {
			r.secret(v)
		}
	}
}

func (r *Scrubber) secret(s string) {
	if len(s) < MinLength {
		return
	}
	r.longest = max(r.longest, len(s))
	r.pattern(s)
	digits := hex.EncodeToString([]byte(s))
	r.pattern(digits)
	r.pattern(strings.ToUpper(digits))
	for before := range 3 {
		// Of the encoding of some bytes before, the secret and some after, the
		// characters that the secret alone decides.
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), s...))
		text = text[(before*8+5)/6 : (before+len(s))*8/6]
		r.pattern(text)
		r.pattern(strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
}

func (r *Scrubber) pattern(p string) {
	if r.patterns == nil {
		r.patterns = map[uint64][]string{}
	}
	key := binary.LittleEndian.Uint64([]byte(p))
	if slices.Contains(r.patterns[key], p) {
		return
	}
	list := append(r.patterns[key], p)
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	r.patterns[key] = list
	r.heads[int(p[0])<<8|int(p[1])] = true
}

// Text takes the secrets out of a text.
func (r *Scrubber) Text(s string) string { return r.Head(s, len(s)) }

// Head takes the secrets out of the first keep bytes of a text. What follows them
// is looked at and not given, so that of a secret that crosses the border no part
// is left: see Reach.
func (r *Scrubber) Head(s string, keep int) string {
	keep = len(canonjson.CutRunes(s, keep))
	if len(r.patterns) == 0 {
		return s[:keep]
	}
	found := r.all(s)
	if len(found) == 0 {
		return s[:keep]
	}
	var out strings.Builder
	at := 0
	for _, f := range found {
		if f.from >= keep {
			break
		}
		if f.from >= at {
			out.WriteString(s[at:f.from])
			out.WriteString(Redacted)
		}
		at = max(at, f.to)
	}
	if at < keep {
		out.WriteString(s[at:keep])
	}
	return out.String()
}

// all gives the parts of a text that are secrets, in their order.
func (r *Scrubber) all(s string) (found []span) {
	(&view{text: []byte(s)}).readings(func(v *view) { found = r.find(found, v) })
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	return found
}

// Excerpt is the beginning of what another said: at most limit bytes of UTF-8,
// without a NUL and without the secrets, in whatever form it says them. body may be
// longer, and is to be by up to Reach, so that a secret at the cut is seen whole.
func (r *Scrubber) Excerpt(body []byte, limit int) []byte {
	text := strings.ToValidUTF8(string(body), "\uFFFD")
	text = strings.ReplaceAll(r.Head(text, limit), "\x00", "\uFFFD")
	return []byte(canonjson.CutRunes(text, limit))
}

// JSON takes the secrets out of a text that is JSON, or begins like it: out of
// each string as it reads, and of numbers, so that JSON stays JSON. torn says
// that a secret went across values; then it is JSON no more.
func (r *Scrubber) JSON(s string) (clean string, torn bool) { return r.HeadJSON(s, len(s)) }

// HeadJSON is to JSON what Head is to Text.
func (r *Scrubber) HeadJSON(s string, keep int) (clean string, torn bool) {
	keep = len(canonjson.CutRunes(s, keep))
	if len(r.patterns) == 0 {
		return s[:keep], false
	}
	end := ""
	if keep < len(s) {
		for _, f := range r.all(s) {
			if f.from < keep && f.to > keep { // it stands across the border
				keep, end = f.from, Redacted
			}
		}
	}
	var out strings.Builder
	for keep > 0 {
		n := strings.IndexAny(s[:keep], `"-0123456789`)
		if n < 0 {
			n = keep
		}
		out.WriteString(s[:n])
		if s, keep = s[n:], keep-n; keep == 0 {
			break
		}
		if s[0] != '"' {
			n = len(s) - len(strings.TrimLeft(s, "+-.0123456789eE"))
			if number := s[:n]; r.Text(number) != number {
				out.WriteString(`"` + Redacted + `"`)
			} else {
				out.WriteString(number[:min(n, keep)])
			}
		} else if n = literal(s); n <= keep {
			out.WriteString(r.literal(s[:n]))
		} else {
			out.WriteString(r.Head(s, keep))
		}
		n = min(n, keep)
		s, keep = s[n:], keep-n
	}
	joined := out.String()
	clean = r.Text(joined)
	return clean + end, clean != joined
}

// literal gives the length of the JSON string that s begins with, or all of s
// when it does not end.
func literal(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(s)
}

// literal redacts one JSON string, which may be broken off.
func (r *Scrubber) literal(s string) string {
	var value string
	if json.Unmarshal([]byte(s), &value) == nil {
		if clean := r.Text(value); clean != value {
			return string(canonjson.AppendString(nil, clean))
		}
		return s
	}
	for cut := range min(12, len(s)) { // perhaps inside of an escape, or a pair of them
		if json.Unmarshal([]byte(s[:len(s)-cut]+`"`), &value) == nil {
			if clean := r.Text(value); clean != value {
				return strings.TrimSuffix(string(canonjson.AppendString(nil, clean)), `"`)
			}
			return s
		}
	}
	return r.Text(s)
}

// span is a part of the source text.
type span struct{ from, to int }

// find adds the parts in which a view has a pattern.
func (r *Scrubber) find(found []span, v *view) []span {
	b := v.text
	for i := 0; i+8 <= len(b); i++ {
		if !r.heads[int(b[i])<<8|int(b[i+1])] {
			continue
		}
		for _, p := range r.patterns[binary.LittleEndian.Uint64(b[i:])] {
			if len(p) <= len(b)-i && string(b[i:i+len(p)]) == p {
				found = append(found, span{v.source(i), v.source(i + len(p))})
				i += len(p) - 1
				break
			}
		}
	}
	return found
}

// view is a text with escapes of one kind undone.
type view struct {
	text []byte
	at   []int // where each byte, and the end, was in the source; nil: there
}

func (v *view) source(i int) int {
	if v.at == nil {
		return i
	}
	return v.at[i]
}

// readings gives the views of a text that a secret may be found in to f, one at a
// time: each takes nine times the room of the text.
func (v *view) readings(f func(*view)) {
	// query gives what a view is without the encoding of a query, where + may stand for
	// a space.
	query := func(x *view, f func(*view)) {
		for _, plus := range []byte{'+', ' '} {
			if plus == '+' || bytes.IndexByte(x.text, '+') >= 0 { // else it is the same
				if q := x.percent(plus); q != nil {
					f(q)
				}
			}
		}
	}
	decoded := func(x *view, first bool) {
		if x == nil {
			return
		}
		f(x)
		query(x, func(q *view) {
			f(q)
			if first { // it may have been JSON, or have been encoded before
				query(q, f)
				if program := q.unescape(); program != nil {
					f(program)
				}
			}
		})
	}
	decoded(v, true)
	if program := v.unescape(); program != nil {
		decoded(program, false)
		decoded(program.unescape(), false)
		decoded(program.references(), false)
	}
	if page := v.references(); page != nil {
		decoded(page, false)
		decoded(page.unescape(), false)
	}
}

// undo makes a view in which one kind of escape is undone. one reads the escape
// at the beginning of what is left: what it stands for, appended to dst, and its
// length, 0 for none. The view is nil when there is nothing to undo.
func (v *view) undo(chars string, one func(dst, rest []byte) ([]byte, int)) *view {
	if v == nil || !bytes.ContainsAny(v.text, chars) {
		return nil
	}
	out := &view{text: make([]byte, 0, len(v.text)), at: make([]int, 0, len(v.text)+1)}
	for i := 0; i < len(v.text); {
		n := 0
		if strings.IndexByte(chars, v.text[i]) >= 0 {
			out.text, n = one(out.text, v.text[i:])
		}
		if n == 0 {
			out.text = append(out.text, v.text[i])
			n = 1
		}
		for len(out.at) < len(out.text) {
			out.at = append(out.at, v.source(i))
		}
		i += n
	}
	out.at = append(out.at, v.source(len(v.text)))
	return out
}

// percent undoes percent-encoding; plus is what a + stands for.
func (v *view) percent(plus byte) *view {
	chars := "%"
	if plus != '+' {
		chars = "%+"
	}
	return v.undo(chars, func(dst, rest []byte) ([]byte, int) {
		if rest[0] == '+' {
			return append(dst, plus), 1
		}
		if c, ok := hexadecimal(rest[1:], 2); ok {
			return append(dst, byte(c)), 3
		}
		return dst, 0
	})
}

// references undoes the character references of HTML.
func (v *view) references() *view {
	return v.undo("&", func(dst, rest []byte) ([]byte, int) {
		n := bytes.IndexByte(rest[:min(len(rest), maxReference)], ';') + 1
		if n == 0 {
			return dst, 0
		}
		name := string(rest[:n])
		text := html.UnescapeString(name)
		if text == name {
			return dst, 0
		}
		return append(dst, text...), n
	})
}

// maxReference bounds a character reference that is looked at, in bytes.
const maxReference = 12

// unescape undoes the escapes of strings of JSON, and of those of programs that
// write more of them.
func (v *view) unescape() *view {
	return v.undo(`\`, func(dst, rest []byte) ([]byte, int) {
		if len(rest) < 2 {
			return dst, 0
		}
		switch rest[1] {
		case 'x':
			if c, ok := hexadecimal(rest[2:], 2); ok {
				return append(dst, byte(c)), 4
			}
			return dst, 0
		case 'U':
			if c, ok := hexadecimal(rest[2:], 8); ok {
				return utf8.AppendRune(dst, c), 10
			}
			return dst, 0
		case 'u':
			c, ok := hexadecimal(rest[2:], 4)
			if !ok {
				return dst, 0
			}
			if utf16.IsSurrogate(c) && len(rest) > 8 && rest[6] == '\\' && rest[7] == 'u' {
				if low, ok := hexadecimal(rest[8:], 4); ok {
					if full := utf16.DecodeRune(c, low); full != utf8.RuneError {
						return utf8.AppendRune(dst, full), 12
					}
				}
			}
			return utf8.AppendRune(dst, c), 6
		}
		if i := strings.IndexByte(`"\/'bfnrt`, rest[1]); i >= 0 {
			return append(dst, "\"\\/'\b\f\n\r\t"[i]), 2
		}
		return dst, 0
	})
}

// hexadecimal reads n digits.
func hexadecimal(b []byte, n int) (rune, bool) {
	if len(b) < n {
		return 0, false
	}
	c, err := strconv.ParseUint(string(b[:n]), 16, 32)
	return rune(c), err == nil
}
