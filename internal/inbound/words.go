package inbound

import (
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// maxMeta bounds a value of the metadata, in bytes.
const maxMeta = 256

// metadata makes an object of pairs; what has no value is left out, and
// of several of one name the first counts.
func metadata(pairs []pair) canonjson.Value {
	seen := map[string]bool{}
	pairs = slices.DeleteFunc(pairs, func(p pair) bool {
		if p.value == "" || seen[p.name] {
			return true
		}
		seen[p.name] = true
		return false
	})
	slices.SortFunc(pairs, func(a, b pair) int { return canonjson.CompareNames(a.name, b.name) })
	out := []byte{'{'}
	for i, p := range pairs {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(canonjson.AppendString(out, p.name), ':')
		out = canonjson.AppendString(out, canonjson.CutRunes(p.value, maxMeta))
	}
	return append(out, '}')
}

// line puts a text on one line, without control characters.
func line(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// originOf gives the origin of a URL in one form, and what follows it. A URL that
// has a user, or is not http or https, has none.
func originOf(text string) (origin, rest string, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Opaque != "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", "", false
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	rest = u.EscapedPath()
	if u.RawQuery != "" || u.Fragment != "" || u.ForceQuery {
		rest += "?"
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port, rest, true
}

// token says whether a text is a name of a header (RFC 9110, section 5.6.2).
func token(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// eventName says whether a text can name an event.
func eventName(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_.") == "" && strings.Count(s, ".") <= 1
}

// text reads a string, or a number, of a body; empty when there is none.
func text(n canonjson.Node, path ...string) string {
	found, ok := Pointer(path).Find(n)
	if !ok {
		return ""
	}
	return found.Text()
}
