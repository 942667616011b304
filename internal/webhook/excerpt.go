package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxPrivate is how much of an answer is read past its excerpt, so that a
	// secret that stands at the cut is seen whole.
	maxPrivate = 8 << 10
	// minPrivate is the shortest text that is taken out: a shorter one would take
	// common words with it, and is no secret.
	minPrivate = 6

	redacted = "[redacted]"
)

// excerpt is the beginning of an answer's body: at most limit bytes of UTF-8,
// without any of the private texts.
func excerpt(body []byte, limit int, private []string) []byte {
	text := strings.ToValidUTF8(string(body), "\uFFFD")
	for _, p := range private {
		text = strings.ReplaceAll(text, p, redacted)
	}
	text = strings.ReplaceAll(text, "\x00", "\uFFFD")
	if len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	return []byte(text)
}

// private lists what a receiver may send back of a request that is nobody else's
// business, the longest first: the secret it is signed with and the signature, the
// values of the user's headers, the address past its origin, and what else the
// caller says, each also as it stands in base64, hex, a URL or a JSON text.
func private(r *Request, req *http.Request) []string {
	var list []string
	add := func(texts ...string) {
		for _, t := range texts {
			if len(t) >= minPrivate {
				list = append(list, t, url.QueryEscape(t), url.PathEscape(t), strings.ReplaceAll(t, "/", `\/`), strings.ReplaceAll(t, "&", `\u0026`),
					base64.StdEncoding.EncodeToString([]byte(t)), base64.RawURLEncoding.EncodeToString([]byte(t)), hex.EncodeToString([]byte(t)))
			}
		}
	}
	add(secretPrefix + base64.StdEncoding.EncodeToString(r.Secret))
	add(base64.StdEncoding.EncodeToString(r.Secret), string(r.Secret))
	for entry := range strings.SplitSeq(req.Header.Get(HeaderSignature), " ") {
		add(entry, strings.TrimPrefix(entry, version))
	}
	for _, v := range r.Headers {
		add(v)
	}
	add(req.URL.RequestURI(), strings.Trim(req.URL.EscapedPath(), "/"), req.URL.RawQuery)
	for _, values := range req.URL.Query() {
		add(values...)
	}
	add(r.Private...)
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(list)
}
