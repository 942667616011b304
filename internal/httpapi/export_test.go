package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// What the tests of the door see beside what it exports.

var (
	POwner         = pOwner
	ParseSeq       = parseSeq
	LookAgain      = lookAgain
	SenderPatience = senderPatience
)

// Pattern is that of the mux by which a request is served.
func (h *Handler) Pattern(r *http.Request) string {
	_, pattern := h.mux.Handler(r)
	return pattern
}

// Places are how many streams and waits are open.
func (h *Handler) Places() int { return h.server.streams.count() }

func (h *Handler) Uploads() chan struct{} { return h.server.uploads }
func (h *Handler) Senders() int           { return h.server.senders.Peers() }

func (h *Handler) Seek(ctx context.Context, t time.Time) (eventlog.Position, error) {
	return (&call{server: h.server}).seek(ctx, t)
}
