package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Bounds of the headers that a user may add to deliveries.
const (
	MaxHeaders     = 16
	MaxHeaderName  = 128  // bytes
	MaxHeaderValue = 1024 // bytes
)

// reserved names headers that a user may not set, in lower case, each with the
// reason that the user sees.
var reserved = map[string]string{
	"content-type":        "follows from the body",
	"content-encoding":    "follows from the body",
	"content-range":       "follows from the body",
	"accept-encoding":     "is the sender's own",
	"user-agent":          "is the sender's own",
	"authorization":       "is a credential; secrets are references, never values",
	"proxy-authorization": "is a credential; secrets are references, never values",
	"cookie":              "is a credential; secrets are references, never values",
	"set-cookie":          "is a credential; secrets are references, never values",
	"x-api-key":           "is a credential; secrets are references, never values",
	"api-key":             "is a credential; secrets are references, never values",
	"x-auth-token":        "is a credential; secrets are references, never values",
	"x-access-token":      "is a credential; secrets are references, never values",
	// With these net/http repeats a request by itself, unseen by the ledger.
	"idempotency-key":   "is not needed: webhook-id is the same at every attempt",
	"x-idempotency-key": "is not needed: webhook-id is the same at every attempt",
}

// CheckHeaders checks the headers that a user wants on the deliveries of a
// target: at most MaxHeaders, valid names (RFC 9110, section 5.1) that are no
// others than the user's own, values of visible ASCII with spaces or
// tabs inside. The error is a *problem.Error of kind invalid, code
// invalid_headers, with an issue for each fault; it never repeats a value.
func CheckHeaders(headers map[string]string) error {
	var issues []problem.Issue
	if len(headers) > MaxHeaders {
		issues = append(issues, problem.Issue{Text: fmt.Sprintf("%d headers, at most %d are allowed", len(headers), MaxHeaders)})
		return invalidHeaders(issues)
	}
	seen := make(map[string]bool, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		text := faultOfName(name)
		lower := strings.ToLower(name)
		switch {
		case text != "":
		case seen[lower]:
			text = "is given twice"
		case len(value) > MaxHeaderValue:
			text = fmt.Sprintf("has a value longer than %d bytes", MaxHeaderValue)
		case !netguard.ValidHeaderValue(value):
			text = "has a value with characters that a header cannot hold"
		}
		seen[lower] = true
		if text != "" {
			issues = append(issues, problem.Issue{Path: fmt.Sprintf("%.*q", MaxHeaderName, name), Text: text})
		}
	}
	if len(issues) == 0 {
		return nil
	}
	return invalidHeaders(issues)
}

func invalidHeaders(issues []problem.Issue) error {
	first := issues[0]
	return problem.New(problem.Invalid, "invalid_headers", "the headers of the target cannot be used: %s", strings.TrimSpace(first.Path+" "+first.Text)).With(issues...)
}

func faultOfName(name string) string {
	if len(name) > MaxHeaderName {
		return fmt.Sprintf("is longer than %d bytes", MaxHeaderName)
	}
	if !netguard.ValidHeaderName(name) {
		return "is not a header name"
	}
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "webhook-") {
		return "is the sender's own"
	}
	if netguard.ConnectionHeader(name) {
		return "belongs to the connection"
	}
	return reserved[lower]
}
