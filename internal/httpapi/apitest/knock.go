package apitest

import (
	"cmp"
	"net/http/httptest"
	"strings"
)

// Knock is a request as the door sees it, from a peer.
type Knock struct {
	Method, Path, Token, Peer, Host string // GET, of the API's usual address and from some peer where they are empty
	Body                            string
	Header                          []string // names and values
}

// Knock sends a request without a network.
func (w *World) Knock(k Knock) *Reply {
	w.T.Helper()
	r := httptest.NewRequestWithContext(w.T.Context(), cmp.Or(k.Method, "GET"), "http://"+cmp.Or(k.Host, "127.0.0.1:7411")+k.Path, strings.NewReader(k.Body))
	r.RemoteAddr = cmp.Or(k.Peer, "192.0.2.1") + ":4711"
	if strings.Contains(k.Peer, ":") {
		r.RemoteAddr = "[" + k.Peer + "]:4711"
	}
	if k.Token != "" {
		r.Header.Set("Authorization", "Bearer "+k.Token)
	}
	for i := 0; i < len(k.Header); i += 2 {
		r.Header.Add(k.Header[i], k.Header[i+1])
	}
	rec := httptest.NewRecorder()
	w.Handler.ServeHTTP(rec, r)
	return &Reply{T: w.T, Status: rec.Code, Header: rec.Header(), Body: rec.Body.Bytes()}
}
