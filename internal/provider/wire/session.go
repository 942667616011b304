package wire

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// maxKey is the longest cache key that vendors take, in characters.
const maxKey = 64

// SetSession says in a request's headers which session it is of, so that
// gateways and servers with caches of their own send one session to one place.
// Of a request that names no session nothing is said.
func SetSession(h http.Header, req *llm.Request) {
	set := func(name, id string) {
		if id != "" && len(id) <= 256 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			h.Set(name, id)
		}
	}
	set("X-Session-Affinity", req.SessionID)
	set("X-Session-Id", req.SessionID)
	if req.SessionID != "" {
		set("X-Parent-Session-Id", req.ParentSessionID)
	}
}

var longID = regexp.MustCompile(`^ses_[0-9a-f]{64}$`)

// CacheKey is the key under which a vendor may keep the prompts of a session:
// the session's id. One of 64 hexadecimal digits goes without its prefix, which
// would make it too long; any other is cut.
func CacheKey(sessionID string) string {
	if longID.MatchString(sessionID) {
		return strings.TrimPrefix(sessionID, "ses_")
	}
	return canonjson.CutRunes(strings.ToValidUTF8(sessionID, "\uFFFD"), maxKey)
}
