package wire

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// MaxMessage is the most of a vendor's words that an error holds, in bytes.
const MaxMessage = 300

// maxRaw is how much of a vendor's words is looked at for a message, in bytes.
const maxRaw = 16 << 10

const redacted = "[redacted]"

// credential matches what looks like a key even when it is not ours.
var credential = regexp.MustCompile(`(?i)\b(?:sk|pk|rk|gsk|xai|hf|nvapi|ghp|ghs|pplx|key)[-_][\w*.-]{6,}` +
	`|\bAIza[\w-]{10,}|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|\bbearer\s+[^\s"',;]+`)

// Safe makes a vendor's text fit to be shown and stored: one line of at most
// MaxMessage bytes of valid UTF-8, without the given secrets or anything that
// looks like a credential. A page of HTML gives "".
func Safe(text string, secrets ...string) string {
	others := secret.NewScrubber(secrets...)
	text = text[:min(len(text), maxRaw+others.Reach())]
	if isHTML("", []byte(text)) || strings.Contains(text, "</") {
		return ""
	}
	text = others.Head(text, maxRaw) // in every form
	for _, s := range secrets {
		if len(s) >= 4 { // shorter ones are placeholders, and are in many words
			text = strings.ReplaceAll(text, s, redacted)
		}
	}
	text = credential.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), redacted)
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Cf) {
			return ' '
		}
		return r
	}, text)
	return cut(strings.Join(strings.Fields(text), " "), MaxMessage)
}

// NoKey is the error of a key that cannot be had. Nothing was sent.
func NoKey(err error) error {
	if problem.Is(err, "secret_not_for_host") {
		return llm.Errorf(llm.Auth, "the API key is not bound to the vendor's host (secret_not_for_host); nothing was sent").Because(err)
	}
	return llm.Errorf(llm.Auth, "the API key cannot be read").Because(err)
}

// Redact takes the given secrets out of an *llm.Error that was made without
// them: of a refusal, say, in the vendor's own words. Any other error, and one
// that holds none, is given back as it is.
func Redact(err error, secrets ...string) error {
	e, ok := err.(*llm.Error)
	if !ok {
		return err
	}
	clean := *e
	for _, s := range secrets {
		clean.Message, clean.Code = without(clean.Message, s), without(clean.Code, s)
	}
	others := secret.NewScrubber(secrets...)
	clean.Message, clean.Code = cut(others.Text(clean.Message), MaxMessage), others.Text(clean.Code)
	if clean.Message == e.Message && clean.Code == e.Code {
		return err
	}
	return &clean
}

// without takes a secret out of a text that may have been cut in its middle.
func without(text, secret string) string {
	if len(secret) < 4 {
		return text
	}
	text = strings.ReplaceAll(text, secret, redacted)
	rest, dots := strings.CutSuffix(text, "…")
	for n := len(secret) - 1; n >= 8; n-- {
		if head, ok := strings.CutSuffix(rest, secret[:n]); ok {
			text = head + redacted
			if dots {
				text += "…"
			}
			break
		}
	}
	return cut(text, MaxMessage)
}

// cut shortens text to limit bytes at the border of a rune, with an ellipsis.
func cut(text string, limit int) string {
	const dots = "…"
	if len(text) <= limit {
		return text
	}
	return canonjson.CutRunes(text, limit-len(dots)) + dots
}

// isHTML says whether a body is a page for people.
func isHTML(contentType string, body []byte) bool {
	if strings.Contains(strings.ToLower(contentType), "html") {
		return true
	}
	head := strings.TrimLeft(strings.TrimPrefix(string(body[:min(len(body), 512)]), "\xef\xbb\xbf"), " \t\r\n")
	head = strings.ToLower(head)
	for _, tag := range []string{"<!doctype", "<html", "<head", "<body", "<?xml", "<!--"} {
		if strings.HasPrefix(head, tag) {
			return true
		}
	}
	return false
}
