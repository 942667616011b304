package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
)

// keeper writes down, beside the requests, what they leave to be noted: when
// tokens were used, and who was turned away. It rests as long as there is
// nothing, and writes at most once a minute, so that no flood of requests becomes
// one of writes.
type keeper struct {
	woken chan struct{} // holds one
	stop  chan struct{}
	wait  sync.WaitGroup
	once  sync.Once
}

const (
	// keepSoon is how long the first note waits for others.
	keepSoon = time.Second
	// keepEvery is the least time between two writings.
	keepEvery = time.Minute
	// keepPatience bounds one writing.
	keepPatience = 10 * time.Second
)

func (k *keeper) wake() {
	select {
	case k.woken <- struct{}{}:
	default:
	}
}

// Start begins to write notes down. Without it they stay in memory, in bounded room.
func (h *Handler) Start() {
	s := h.server
	s.keeper.wait.Go(func() {
		var last time.Time
		for {
			select {
			case <-s.keeper.woken:
			case <-s.keeper.stop:
				return
			}
			pause := time.NewTimer(max(keepSoon, keepEvery-time.Since(last)))
			select {
			case <-pause.C:
			case <-s.keeper.stop:
				pause.Stop()
				return
			}
			last = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
			s.keep(ctx)
			cancel()
		}
	})
}

// Stop writes down what is left. The handler goes on answering; what it notes
// from then on is lost.
func (h *Handler) Stop(ctx context.Context) {
	h.server.keeper.once.Do(func() { close(h.server.keeper.stop) })
	h.server.keeper.wait.Wait()
	ctx, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	h.server.keep(ctx)
}

// keep writes the notes. What cannot be written is lost, and logged: a note must
// not hold anything up.
func (s *server) keep(ctx context.Context) {
	if used := s.tokens.Take(); len(used) > 0 {
		if err := s.cfg.Store.TouchTokens(ctx, used); err != nil {
			s.cfg.Logger.Warn("note when tokens were used", "err", err)
		}
	}
	list := s.refusals.Take()
	if len(list) == 0 {
		return
	}
	for _, r := range list {
		s.cfg.Logger.Warn("turned away", "reason", r.Reason, "peer", peerName(r), "count", r.Count, "actor", r.Actor)
	}
	if s.cfg.Audit == nil {
		return
	}
	records := make([]event.Audit, len(list))
	for i, r := range list {
		records[i] = &event.AuditRefused{Actor: r.Actor, Count: r.Count, Detail: r.Detail, Method: r.Method, Path: r.Path, Peer: peerName(r), Reason: r.Reason, Since: event.FormatTime(r.Since)}
	}
	if err := s.cfg.Audit.Audit(ctx, records...); err != nil {
		s.cfg.Logger.Warn("audit who was turned away", "err", err)
	}
}

func peerName(r gate.Counted) string {
	switch {
	case r.Socket:
		return bySocket
	case !r.Peer.IsValid():
		return ""
	}
	return r.Peer.String()
}

// bySocket is the peer of the unix socket, for the record.
const bySocket = "unix"

// audited are the codes of problems that stand in the audit stream: uses of
// tokens that failed, senders of events that were not believed, and requests that
// were turned away at the door. The absence
// of a token is none: every probe of a load balancer would be one.
var audited = map[string]bool{
	"invalid_token": true, "token_expired": true, "too_many_failures": true, "role_required": true, "unbound_token_required": true, "wrong_user": true,
	"host_not_allowed": true, "cross_origin": true, "token_in_query": true, "proxy_required": true, "rate_limited": true,
	"sender_unknown": true,
}

// refused notes that the request was turned away.
func (c *call) refused(code string) {
	if !audited[code] {
		return
	}
	r := gate.Refusal{Reason: code, Socket: c.local, Actor: c.who.Actor, Method: short(c.R.Method), Path: short(c.R.URL.Path)}
	r.Peer, _ = c.peer()
	switch code {
	case "host_not_allowed":
		r.Detail = short(c.R.Host)
	case "sender_unknown":
		r.Detail = short(c.why)
	case "cross_origin":
		r.Detail = short(c.R.Header.Get("Origin"))
	}
	if c.refusals.Note(r, time.Now()) {
		c.keeper.wake()
	}
}

// short bounds what a stranger sent, and does not hold on to the rest of it.
func short(s string) string { return string([]byte(s[:min(len(s), event.MaxAuditText)])) }

// audit writes a record of a change before it is made.
func (c *call) audit(d event.Audit) error {
	if c.cfg.Audit == nil {
		return nil
	}
	return c.cfg.Audit.Audit(c.Ctx(), d)
}
