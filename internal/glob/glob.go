// Package glob matches paths against patterns. A pattern becomes a regular
// expression of RE2, so that a match takes time linear in the path, whatever
// the pattern.
//
// Names in a path are separated by `/`. The language:
//
//   - `*` stands for any text within one name, also none; `?` for one
//     character of a name.
//   - `**` as a whole name stands for any number of names, also none: `**/x.go`
//     matches `x.go` and `a/b/x.go`. At the end it stands for at least one: `a/**`
//     matches all that is below `a`, and not `a`.
//   - `{a,b}` is one of the alternatives, each a pattern without braces that
//     stays within one name; there may be an empty one.
//   - `[a-z]` is one character of a set, `[!a-z]` one outside of it, never `/`.
//     A `]` at its beginning and a `-` at either end stand for themselves.
//   - Everything else stands for itself, upper and lower case apart. A leading
//     dot is nothing special.
//
// A pattern without `/` is about the last name of a path, in whatever folder;
// one with `/` is about the whole path.
package glob

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxPattern bounds a pattern, in bytes.
const MaxPattern = 256

// Pattern is a pattern that was compiled. It is safe for concurrent use.
type Pattern struct {
	re   *regexp.Regexp
	name bool // is about the last name only
}

// Compile reads a pattern. Its error says what is wrong, for whoever wrote the
// pattern.
func Compile(pattern string) (*Pattern, error) {
	switch {
	case pattern == "":
		return nil, fmt.Errorf("the pattern is empty")
	case len(pattern) > MaxPattern:
		return nil, fmt.Errorf("the pattern is longer than %d bytes", MaxPattern)
	case !utf8.ValidString(pattern):
		return nil, fmt.Errorf("the pattern is not UTF-8")
	case strings.Contains(pattern, `\`):
		return nil, fmt.Errorf("the pattern holds a backslash; names are separated by /, and a set such as [*] takes a character as it is")
	case strings.HasPrefix(pattern, "/"):
		return nil, fmt.Errorf("the pattern begins with /; paths are relative")
	case strings.HasSuffix(pattern, "/"):
		return nil, fmt.Errorf("the pattern ends with /; add ** for all that is below a folder")
	}
	names := strings.Split(pattern, "/")
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i, name := range names {
		last := i == len(names)-1
		switch {
		case name == "" || name == "." || name == "..":
			return nil, fmt.Errorf("the pattern holds the name %q, which no path has", name)
		case name == "**" && last:
			b.WriteString(`.+`)
			continue
		case name == "**":
			b.WriteString(`(?:[^/]+/)*`)
			continue
		}
		if err := translate(&b, name, false); err != nil {
			return nil, err
		}
		if !last {
			b.WriteByte('/')
		}
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("the pattern cannot be used") // nothing that translate lets through
	}
	return &Pattern{re: re, name: len(names) == 1}, nil
}

// Match says whether the pattern fits a path of names separated by `/`.
func (p *Pattern) Match(path string) bool {
	if p.name {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	return p.re.MatchString(path)
}

// translate writes the expression of one name, or of one alternative.
func translate(b *strings.Builder, name string, inside bool) error {
	for name != "" {
		r, size := utf8.DecodeRuneInString(name)
		rest := name[size:]
		switch r {
		case '*':
			b.WriteString(`[^/]*`)
			rest = strings.TrimLeft(rest, "*")
		case '?':
			b.WriteString(`[^/]`)
		case '[':
			n, err := set(b, rest)
			if err != nil {
				return err
			}
			rest = rest[n:]
		case '{':
			if inside {
				return fmt.Errorf("the pattern has braces within braces; write the alternatives in one pair")
			}
			end := closing(rest)
			if end < 0 {
				return fmt.Errorf("the pattern has a { without its } in the same name")
			}
			if err := alternatives(b, rest[:end]); err != nil {
				return err
			}
			rest = rest[end+1:]
		case '}':
			return fmt.Errorf("the pattern has a } without its { in the same name")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
		name = rest
	}
	return nil
}

// closing gives the place of the brace that ends alternatives, outside of sets, or -1.
func closing(text string) int { return outside(text, '}') }

// outside gives the place of the first c that is not in a set, or -1.
func outside(text string, c byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case c:
			return i
		case '[':
			if n := setEnd(text[i+1:]); n >= 0 {
				i += n + 1
			}
		}
	}
	return -1
}

func alternatives(b *strings.Builder, text string) error {
	b.WriteString("(?:")
	for {
		end := outside(text, ',')
		alternative := text
		if end >= 0 {
			alternative = text[:end]
		}
		if err := translate(b, alternative, true); err != nil {
			return err
		}
		if end < 0 {
			b.WriteByte(')')
			return nil
		}
		b.WriteByte('|')
		text = text[end+1:]
	}
}

// setEnd gives the place of the bracket that ends a set whose beginning was
// read, or -1.
func setEnd(text string) int {
	begin := 0
	if strings.HasPrefix(text, "!") {
		begin++
	}
	if strings.HasPrefix(text[begin:], "]") {
		begin++
	}
	n := strings.IndexByte(text[begin:], ']')
	if n < 0 {
		return -1
	}
	return begin + n
}

// set writes a set whose bracket was read, and gives the bytes it took.
func set(b *strings.Builder, text string) (int, error) {
	end := setEnd(text)
	if end < 0 {
		return 0, fmt.Errorf("the pattern has a [ without its ] in the same name")
	}
	body, not := strings.CutPrefix(text[:end], "!")
	if body == "" {
		return 0, fmt.Errorf("the pattern has an empty set")
	}
	var ranges []rune // pairs
	runes := []rune(body)
	for i := 0; i < len(runes); i++ {
		low, high := runes[i], runes[i]
		if i+2 < len(runes) && runes[i+1] == '-' {
			high = runes[i+2]
			i += 2
		}
		if low > high {
			return 0, fmt.Errorf("the pattern has a set with %c-%c, which goes backwards", low, high)
		}
		ranges = append(ranges, low, high)
	}
	if not {
		b.WriteString("[^/")
		for i := 0; i < len(ranges); i += 2 {
			fmt.Fprintf(b, `\x{%x}-\x{%x}`, ranges[i], ranges[i+1])
		}
		b.WriteByte(']')
		return end + 1, nil
	}
	b.WriteByte('[')
	none := true
	for i := 0; i < len(ranges); i += 2 { // around the slash, which no name holds
		low, high := ranges[i], ranges[i+1]
		for _, part := range [][2]rune{{low, min(high, '/'-1)}, {max(low, '/'+1), high}} {
			if part[0] <= part[1] {
				fmt.Fprintf(b, `\x{%x}-\x{%x}`, part[0], part[1])
				none = false
			}
		}
	}
	if none {
		return 0, fmt.Errorf("the pattern has an empty set")
	}
	b.WriteByte(']')
	return end + 1, nil
}
