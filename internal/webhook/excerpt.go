package webhook

import (
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/secret"
)

// maxPrivate is how much of an answer is read past its excerpt at most, so that
// a secret that stands at the cut is seen whole.
const maxPrivate = 8 << 10

// private knows what a receiver may send back of a request that is nobody else's
// business: the secrets it is signed with and the signatures, the values of the
// user's headers, the address past its origin, and what else the caller says.
func private(r *Request, req *http.Request) *secret.Scrubber {
	s := secret.NewScrubber(r.Private...)
	for _, k := range r.Keys {
		for _, t := range k.texts() {
			s.Add(t)
		}
	}
	for entry := range strings.SplitSeq(req.Header.Get(HeaderSignature), " ") {
		s.Add(entry)
		s.Add(strings.TrimPrefix(strings.TrimPrefix(entry, version), asymmetricVersion))
	}
	for _, v := range r.Headers {
		s.Add(v)
	}
	s.Add(req.URL.String())
	s.Add(req.URL.RequestURI())
	s.Add(strings.Trim(req.URL.EscapedPath(), "/"))
	return s
}
