package demo

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// received is one request that came to the receiver.
type received struct {
	id       string
	body     []byte
	verified error // of the signature over the raw bytes
}

// receiver is a webhook receiver on this machine.
type receiver struct {
	url    string
	server *http.Server
	came   chan received

	mu     sync.Mutex
	secret []byte
	all    []received
}

func newReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String() + "/answers", came: make(chan received, 16)}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go r.server.Serve(l)
	return r, nil
}

// verifyWith sets the secret that signatures are checked with.
func (r *receiver) verifyWith(secret []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secret = secret
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	if err != nil {
		http.Error(w, "cannot read", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	got := received{id: req.Header.Get("webhook-id"), body: body}
	got.verified = webhook.Verify(req.Header, body, r.secret, time.Now(), 5*time.Minute)
	r.all = append(r.all, got)
	r.mu.Unlock()
	if got.verified != nil {
		http.Error(w, "bad signature", http.StatusUnauthorized)
	}
	select {
	case r.came <- got:
	default:
	}
}

func (r *receiver) requests() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.all...)
}
