package httpapi

import "net/http"

// What the tests of the door see beside what it exports.

// Contents is the order of the reference page.
var Contents = contents

// Pattern is that of the mux by which a request is served.
func (h *Handler) Pattern(r *http.Request) string {
	_, pattern := h.mux.Handler(r)
	return pattern
}

// Places are how many streams and waits are open.
func (h *Handler) Places() int { return h.calls.Places() }
