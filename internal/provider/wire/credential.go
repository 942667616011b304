package wire

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	// keyShape matches keys, tokens and private keys by their usual shapes.
	keyShape = regexp.MustCompile(`\b(?:sk|rk|pk|gsk|xai|hf|nvapi|pplx|fw|tgp|csk|r8|glpat|xox[abpr])[-_][A-Za-z0-9_-]{12,}` +
		`|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{12,}|\bA(?:KIA|SIA)[A-Z0-9]{12,}` +
		`|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----`)
	// keyField matches headers, members and query parameters that hold a
	// credential, with their value as the last group.
	keyField = regexp.MustCompile(`(?im)(?:^[\s<>*]*|["'{,?&\s])` +
		`(authorization|proxy-authorization|x-api-key|api-key|x-goog-api-key|x-goog-iam-authorization-token|x-auth-token|x-amz-security-token` +
		`|cookie|set-cookie|api_key|apikey|access_token|refresh_token|client_secret|password)` +
		`["']?\s*[:=]\s*["']?([^\r\n"']*)`)
	scheme = regexp.MustCompile(`(?i)^(?:bearer|basic|token|apikey)\s+`)
	// stands matches what stands in for a credential.
	stands = regexp.MustCompile(`(?i)redacted|example|placeholder|dummy|fake|scrubbed|your[-_ ]|^[-_\w]{0,8}[-_]?test\b|^test|x{4,}|\*{3,}|\.\.\.|…|^<.*>$|^\[.*\]$|^\$\{?\w+\}?$|^%`)
)

// FindCredential looks through a recording of traffic for credentials: keys,
// tokens and private keys of the usual shapes, and any value of a header,
// member or query parameter that holds one. What plainly stands in for a
// credential ("redacted", "test-key", "<key>", "sk-xxxx") is none. It says
// what was found and on which line, with the first characters only, or "".
func FindCredential(recording []byte) string {
	found := func(at int, what, value string) string {
		line := 1 + bytes.Count(recording[:at], []byte("\n"))
		return fmt.Sprintf("line %d: %s %q", line, what, cut(value, 9))
	}
	for _, m := range keyField.FindAllSubmatchIndex(recording, -1) {
		name, value := string(recording[m[2]:m[3]]), strings.TrimSpace(string(recording[m[4]:m[5]]))
		value = scheme.ReplaceAllString(value, "")
		if i := strings.IndexAny(value, "&,;} \t"); i >= 0 && !strings.Contains(strings.ToLower(name), "cookie") {
			value = value[:i]
		}
		if len(value) >= 4 && !standsIn(value) && !slices.Contains(notValues, value) {
			return found(m[4], name, value)
		}
	}
	for _, m := range keyShape.FindAllIndex(recording, -1) {
		if value := string(recording[m[0]:m[1]]); !standsIn(value) {
			return found(m[0], "a key", value)
		}
	}
	return ""
}

// notValues are what a schema or a null says in the place of a value.
var notValues = []string{"null", "none", "true", "false", "string"}

// standsIn says that a value is a placeholder: it says so, or its secret part
// is one character again and again.
func standsIn(value string) bool {
	if stands.MatchString(value) {
		return true
	}
	_, secret, cut := strings.Cut(value, "-")
	if !cut {
		secret = value
	}
	return secret != "" && strings.Trim(secret, secret[:1]) == ""
}
