package door

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
func (d *Door) Start() {
	d.keeper.wait.Go(func() {
		var last time.Time
		for {
			select {
			case <-d.keeper.woken:
			case <-d.keeper.stop:
				return
			}
			pause := time.NewTimer(max(keepSoon, keepEvery-time.Since(last)))
			select {
			case <-pause.C:
			case <-d.keeper.stop:
				pause.Stop()
				return
			}
			last = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
			d.keep(ctx)
			cancel()
		}
	})
}

// Stop writes down what is left. The door stays open; what it notes
// from then on is lost.
func (d *Door) Stop(ctx context.Context) {
	d.keeper.once.Do(func() { close(d.keeper.stop) })
	d.keeper.wait.Wait()
	ctx, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	d.keep(ctx)
}

// keep writes the notes. What cannot be written is lost, and logged: a note must
// not hold anything up.
func (d *Door) keep(ctx context.Context) {
	if used := d.tokens.Take(); len(used) > 0 {
		if err := d.cfg.Tokens.TouchTokens(ctx, used); err != nil {
			d.cfg.Logger.Warn("note when tokens were used", "err", err)
		}
	}
	list := d.refusals.Take()
	if len(list) == 0 {
		return
	}
	for _, r := range list {
		d.cfg.Logger.Warn("turned away", "reason", r.Reason, "peer", peerName(r), "count", r.Count, "actor", r.Actor)
	}
	if d.cfg.Audit == nil {
		return
	}
	records := make([]event.Audit, len(list))
	for i, r := range list {
		records[i] = &event.AuditRefused{Actor: r.Actor, Count: r.Count, Detail: r.Detail, Method: r.Method, Path: r.Path, Peer: peerName(r), Reason: r.Reason, Since: event.FormatTime(r.Since)}
	}
	if err := d.cfg.Audit.Audit(ctx, records...); err != nil {
		d.cfg.Logger.Warn("audit who was turned away", "err", err)
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

// Refused notes that the request was turned away.
func (v *Visit) Refused(code string) {
	if !audited[code] {
		return
	}
	r := gate.Refusal{Reason: code, Socket: v.local, Actor: v.Who.Actor, Method: short(v.r.Method), Path: short(v.r.URL.Path)}
	r.Peer, _ = v.Peer()
	switch code {
	case "host_not_allowed":
		r.Detail = short(v.r.Host)
	case "sender_unknown":
		r.Detail = short(v.Why)
	case "cross_origin":
		r.Detail = short(v.r.Header.Get("Origin"))
	}
	if v.door.refusals.Note(r, time.Now()) {
		v.door.keeper.wake()
	}
}

// short bounds what a stranger sent, and does not hold on to the rest of it.
func short(s string) string { return string([]byte(s[:min(len(s), event.MaxAuditText)])) }

// Audit writes a record of a change before it is made.
func (v *Visit) Audit(d event.Audit) error {
	if v.door.cfg.Audit == nil {
		return nil
	}
	return v.door.cfg.Audit.Audit(v.r.Context(), d)
}
