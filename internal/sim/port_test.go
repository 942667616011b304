package sim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// port is the store as one node has it: every call of it waits for its turn,
// and may fail on its way there or back.
type port struct {
	under daemon.Store
	n     *node
}

var _ daemon.Store = (*port)(nil)

var (
	errFault = errors.New("a fault that was put in")
	errFull  = eventlog.Full(errors.New("a fault that was put in"), false)
	errSplit = errors.New("the store cannot be reached")
)

// do waits for the call's turn and makes it. The call itself does not end with
// ctx; its caller does.
func do[T any](ctx context.Context, p *port, k kind, key string, call func(context.Context) (T, error)) (T, error) {
	var zero T
	h := p.n.h
	v := h.sched.park(ctx, p.n, k, key)
	switch {
	case v == gone:
		return zero, eventlog.ErrClosed
	case v == lingers:
		h.linger(p.n, key, func() { _, _ = call(context.Background()) })
		if ctx.Err() != nil {
			return zero, ctx.Err()
		}
		return zero, eventlog.ErrClosed
	case v == crashBefore:
		h.crash(p.n)
		return zero, eventlog.ErrClosed
	case v == errNoRoom:
		return zero, errFull
	case v == errApart:
		return zero, errSplit
	case v == errBefore:
		return zero, errFault
	case ctx.Err() != nil && v == proceed: // nobody waits for it any more
		return zero, ctx.Err()
	}
	out, err := call(context.WithoutCancel(ctx))
	switch v {
	case crashAfter:
		h.crash(p.n)
		return zero, eventlog.ErrClosed
	case errAfter:
		return zero, errFault
	case late:
		if h.sched.park(ctx, p.n, k, key+" answer") == gone {
			return zero, eventlog.ErrClosed
		}
	}
	if ctx.Err() != nil {
		return zero, ctx.Err()
	}
	return out, err
}

type none struct{}

func (p *port) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	about := make([]any, 0, 4)
	for i := range a.Entries {
		e := &a.Entries[i]
		about = append(about, e.Stream, e.Events[0].Data.EventType())
	}
	key := name(ctx, p.n, "append", about...)
	begun := false
	stamps, err := do(ctx, p, appends, key, func(ctx context.Context) ([]eventlog.Stamp, error) {
		p.n.h.watch.appending(p.n, &a)
		stamps, err := p.under.Append(ctx, a)
		p.n.h.watch.appended(p.n, &a, stamps, err)
		if err != nil {
			p.n.h.say("%s: append refused: %v", key, err)
		}
		begun = err == nil && beginsAtOnce(a.Entries[0].Events)
		return stamps, err
	})
	switch {
	case begun && err != nil:
		p.n.h.count("begun with its submission, and not told so")
	case begun:
		p.n.h.count("begun with its submission")
	}
	return stamps, err
}

// beginsAtOnce says whether a run is submitted and started by these events.
func beginsAtOnce(events []event.Event) bool {
	has := func(t event.Type) bool {
		return slices.ContainsFunc(events, func(e event.Event) bool { return e.Data.EventType() == t })
	}
	return has(event.TypeRunCreated) && has(event.TypeRunStarted)
}

func (p *port) Beat(ctx context.Context, node eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	return do(ctx, p, writes, name(ctx, p.n, "beat"), func(ctx context.Context) (eventlog.Lease, error) {
		l, err := p.under.Beat(ctx, node, ttl)
		if err == nil {
			p.n.h.watch.beaten(p.n, l)
		}
		return l, err
	})
}

func (p *port) Release(ctx context.Context, id eventlog.NodeID) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "release"), func(ctx context.Context) (none, error) {
		err := p.under.Release(ctx, id)
		if err == nil {
			p.n.h.watch.released(p.n)
		}
		return none{}, err
	})
	return err
}

func (p *port) ListNodes(ctx context.Context) ([]eventlog.NodeRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "nodes"), p.under.ListNodes)
}

func (p *port) Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error) {
	return do(ctx, p, writes, name(ctx, p.n, "take", kind), func(ctx context.Context) ([]event.Stream, error) {
		list, err := p.under.Take(ctx, id, kind, limit, mine)
		if err == nil {
			p.n.h.watch.took(p.n, list)
		}
		return list, err
	})
}

func (p *port) Rest(ctx context.Context, id eventlog.NodeID, streams []eventlog.Rested) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "rest", streams[0].Stream), func(ctx context.Context) (none, error) {
		err := p.under.Rest(ctx, id, streams)
		if err == nil {
			for _, r := range streams {
				p.n.h.watch.letGo(p.n, r.Stream, r.Head)
			}
		}
		return none{}, err
	})
	return err
}

func (p *port) Yield(ctx context.Context, id eventlog.NodeID, streams []event.Stream) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "yield", streams[0]), func(ctx context.Context) (none, error) {
		err := p.under.Yield(ctx, id, streams)
		if err == nil {
			for _, s := range streams {
				p.n.h.watch.letGo(p.n, s, -1)
			}
		}
		return none{}, err
	})
	return err
}

func (p *port) Head(ctx context.Context, s event.Stream) (eventlog.Head, error) {
	return do(ctx, p, reads, name(ctx, p.n, "head", s), func(ctx context.Context) (eventlog.Head, error) { return p.under.Head(ctx, s) })
}

func (p *port) Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	return do(ctx, p, reads, name(ctx, p.n, "read", s, after), func(ctx context.Context) ([]event.Event, error) {
		return p.under.Read(ctx, s, after, limit)
	})
}

func (p *port) Facts(ctx context.Context, places []eventlog.Place) ([]event.Event, error) {
	return do(ctx, p, reads, name(ctx, p.n, fmt.Sprintf("facts %d", len(places))), func(ctx context.Context) ([]event.Event, error) { return p.under.Facts(ctx, places) })
}

func (p *port) ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	return do(ctx, p, reads, name(ctx, p.n, "read-bounded", s, after), func(ctx context.Context) ([]event.Event, error) {
		return p.under.ReadBounded(ctx, s, after, limit)
	})
}

type fed struct {
	list []eventlog.Positioned
	pos  eventlog.Position
}

func (p *port) Feed(ctx context.Context, after eventlog.Position, limit int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position, error) {
	out, err := do(ctx, p, reads, name(ctx, p.n, "feed", after), func(ctx context.Context) (fed, error) {
		list, pos, err := p.under.Feed(ctx, after, limit, f)
		return fed{list, pos}, err
	})
	return out.list, out.pos, err
}

type blob struct {
	data []byte
	kind event.BlobKind
}

func (p *port) Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error) {
	out, err := do(ctx, p, reads, name(ctx, p.n, "blob", owner, ref[:min(len(ref), 15)]), func(ctx context.Context) (blob, error) {
		data, kind, err := p.under.Blob(ctx, owner, ref)
		return blob{data, kind}, err
	})
	return out.data, out.kind, err
}

func (p *port) Now(ctx context.Context) (time.Time, error) {
	return do(ctx, p, reads, name(ctx, p.n, "now"), p.under.Now)
}

func (p *port) Session(ctx context.Context, id event.SessionID) (eventlog.SessionRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "session", id), func(ctx context.Context) (eventlog.SessionRow, error) { return p.under.Session(ctx, id) })
}

func (p *port) SessionByAlias(ctx context.Context, user, alias string) (event.SessionID, error) {
	return do(ctx, p, reads, name(ctx, p.n, "alias", user, alias), func(ctx context.Context) (event.SessionID, error) {
		return p.under.SessionByAlias(ctx, user, alias)
	})
}

type page[T any] struct {
	rows []T
	next string
}

func paged[T any](ctx context.Context, p *port, op string, call func(context.Context) ([]T, string, error)) ([]T, string, error) {
	out, err := do(ctx, p, reads, name(ctx, p.n, op), func(ctx context.Context) (page[T], error) {
		rows, next, err := call(ctx)
		return page[T]{rows, next}, err
	})
	return out.rows, out.next, err
}

func (p *port) Sessions(ctx context.Context, f eventlog.SessionFilter, pg eventlog.Page) ([]eventlog.SessionRow, string, error) {
	return paged(ctx, p, "sessions", func(ctx context.Context) ([]eventlog.SessionRow, string, error) { return p.under.Sessions(ctx, f, pg) })
}

func (p *port) Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "run", id), func(ctx context.Context) (eventlog.RunRow, error) { return p.under.Run(ctx, id) })
}

func (p *port) Runs(ctx context.Context, f eventlog.RunFilter, pg eventlog.Page) ([]eventlog.RunRow, string, error) {
	return paged(ctx, p, fmt.Sprintf("runs %v %s", p.n.h.watch.called(f.SessionID), f.Status), func(ctx context.Context) ([]eventlog.RunRow, string, error) { return p.under.Runs(ctx, f, pg) })
}

func (p *port) Idempotency(ctx context.Context, s event.SessionID, operation, keyHash string) (eventlog.IdempotencyRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "key", s), func(ctx context.Context) (eventlog.IdempotencyRow, error) {
		return p.under.Idempotency(ctx, s, operation, keyHash)
	})
}

func (p *port) Inbound(ctx context.Context, user, connector, hash string) (eventlog.InboundRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "event of "+connector), func(ctx context.Context) (eventlog.InboundRow, error) {
		return p.under.Inbound(ctx, user, connector, hash)
	})
}

func (p *port) Pending(ctx context.Context, s event.SessionID, most int) (int, error) {
	return do(ctx, p, reads, name(ctx, p.n, "pending", s), func(ctx context.Context) (int, error) { return p.under.Pending(ctx, s, most) })
}

func (p *port) Unfinished(ctx context.Context) ([]event.SessionID, error) {
	return do(ctx, p, reads, name(ctx, p.n, "unfinished"), p.under.Unfinished)
}

func (p *port) Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "delivery", id), func(ctx context.Context) (eventlog.DeliveryRow, error) { return p.under.Delivery(ctx, id) })
}

func (p *port) Deliveries(ctx context.Context, f eventlog.DeliveryFilter, pg eventlog.Page) ([]eventlog.DeliveryRow, string, error) {
	return paged(ctx, p, "deliveries", func(ctx context.Context) ([]eventlog.DeliveryRow, string, error) {
		return p.under.Deliveries(ctx, f, pg)
	})
}

func (p *port) NextDelivery(ctx context.Context, t event.TargetID) (eventlog.DeliveryRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "next-delivery", t), func(ctx context.Context) (eventlog.DeliveryRow, error) { return p.under.NextDelivery(ctx, t) })
}

func (p *port) Ahead(ctx context.Context, t event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
	return do(ctx, p, reads, name(ctx, p.n, "ahead", t), func(ctx context.Context) ([]eventlog.Outgoing, error) {
		return p.under.Ahead(ctx, t, q)
	})
}

func (p *port) TargetState(ctx context.Context, id event.TargetID) (eventlog.TargetState, error) {
	return do(ctx, p, reads, name(ctx, p.n, "target-state", id), func(ctx context.Context) (eventlog.TargetState, error) { return p.under.TargetState(ctx, id) })
}

func (p *port) Attempts(ctx context.Context, t event.TargetID, id event.DeliveryID, pg eventlog.Page) ([]eventlog.AttemptRow, string, error) {
	return paged(ctx, p, "attempts", func(ctx context.Context) ([]eventlog.AttemptRow, string, error) {
		return p.under.Attempts(ctx, t, id, pg)
	})
}

func (p *port) Target(ctx context.Context, id event.TargetID) (eventlog.TargetRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "target", id), func(ctx context.Context) (eventlog.TargetRow, error) { return p.under.Target(ctx, id) })
}

func (p *port) Targets(ctx context.Context, f eventlog.TargetFilter, pg eventlog.Page) ([]eventlog.TargetRow, string, error) {
	return paged(ctx, p, "targets", func(ctx context.Context) ([]eventlog.TargetRow, string, error) { return p.under.Targets(ctx, f, pg) })
}

func (p *port) Replays(ctx context.Context, t event.TargetID, id event.DeliveryID, limit int) ([]eventlog.ReplayRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "replays", id), func(ctx context.Context) ([]eventlog.ReplayRow, error) { return p.under.Replays(ctx, t, id, limit) })
}

func (p *port) SettledDeliveries(ctx context.Context, status string, before time.Time, limit int) ([]eventlog.DeliveryRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "settled", status), func(ctx context.Context) ([]eventlog.DeliveryRow, error) {
		return p.under.SettledDeliveries(ctx, status, before, limit)
	})
}

func (p *port) Job(ctx context.Context, id event.JobID) (eventlog.JobRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "job", id), func(ctx context.Context) (eventlog.JobRow, error) { return p.under.Job(ctx, id) })
}

func (p *port) Jobs(ctx context.Context, f eventlog.JobFilter, pg eventlog.Page) ([]eventlog.JobRow, string, error) {
	return paged(ctx, p, "jobs", func(ctx context.Context) ([]eventlog.JobRow, string, error) { return p.under.Jobs(ctx, f, pg) })
}

func (p *port) UnfinishedJobs(ctx context.Context) ([]event.JobID, error) {
	return do(ctx, p, reads, name(ctx, p.n, "unfinished-jobs"), p.under.UnfinishedJobs)
}

func (p *port) PendingTargets(ctx context.Context) ([]event.TargetID, error) {
	return do(ctx, p, reads, name(ctx, p.n, "pending-targets"), p.under.PendingTargets)
}

func (p *port) Backlog(ctx context.Context) (eventlog.Backlog, error) {
	return do(ctx, p, reads, name(ctx, p.n, "backlog"), p.under.Backlog)
}

func (p *port) SaveSnapshot(ctx context.Context, s eventlog.Snapshot) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "save-snapshot", s.SessionID, s.Head), func(ctx context.Context) (none, error) {
		err := p.under.SaveSnapshot(ctx, s)
		if err == nil {
			p.n.h.count("snapshot saved")
		}
		return none{}, err
	})
	return err
}

func (p *port) Snapshot(ctx context.Context, id event.SessionID) (eventlog.Snapshot, error) {
	return do(ctx, p, reads, name(ctx, p.n, "snapshot", id), func(ctx context.Context) (eventlog.Snapshot, error) {
		s, err := p.under.Snapshot(ctx, id)
		if err == nil {
			p.n.h.count("snapshot loaded")
		}
		return s, err
	})
}

type put struct {
	row     eventlog.AssetRow
	created bool
}

func (p *port) PutAsset(ctx context.Context, a eventlog.AssetRow, data []byte, quota int64) (eventlog.AssetRow, bool, error) {
	out, err := do(ctx, p, writes, name(ctx, p.n, "put-asset", a.ID), func(ctx context.Context) (put, error) {
		row, created, err := p.under.PutAsset(ctx, a, data, quota)
		return put{row, created}, err
	})
	return out.row, out.created, err
}

func (p *port) Asset(ctx context.Context, id event.AssetID) (eventlog.AssetRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "asset", id), func(ctx context.Context) (eventlog.AssetRow, error) { return p.under.Asset(ctx, id) })
}

func (p *port) AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error) {
	return do(ctx, p, reads, name(ctx, p.n, "asset-bytes", id), func(ctx context.Context) ([]byte, error) { return p.under.AssetBytes(ctx, id) })
}

func (p *port) ListAssets(ctx context.Context, user string, pg eventlog.Page) ([]eventlog.AssetRow, string, error) {
	return paged(ctx, p, "assets", func(ctx context.Context) ([]eventlog.AssetRow, string, error) {
		return p.under.ListAssets(ctx, user, pg)
	})
}

func (p *port) CollectAssets(ctx context.Context, before time.Time, limit int) (int, error) {
	return do(ctx, p, writes, name(ctx, p.n, "collect-assets"), func(ctx context.Context) (int, error) { return p.under.CollectAssets(ctx, before, limit) })
}

func (p *port) PutSecret(ctx context.Context, row eventlog.SecretRow, formerUntil string, quota int) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "put-secret"), func(ctx context.Context) (none, error) {
		return none{}, p.under.PutSecret(ctx, row, formerUntil, quota)
	})
	return err
}

func (p *port) Secret(ctx context.Context, owner, slot string) ([]eventlog.SecretRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "secret"), func(ctx context.Context) ([]eventlog.SecretRow, error) { return p.under.Secret(ctx, owner, slot) })
}

func (p *port) ListSecrets(ctx context.Context, owner string, page eventlog.Page) ([]eventlog.SecretRow, string, error) {
	return p.under.ListSecrets(ctx, owner, page) // nothing that is played asks for it
}

func (p *port) DeleteSecret(ctx context.Context, owner, slot string) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "delete-secret"), func(ctx context.Context) (none, error) { return none{}, p.under.DeleteSecret(ctx, owner, slot) })
	return err
}

func (p *port) SecretKeys(ctx context.Context) ([]eventlog.SecretKey, error) {
	return do(ctx, p, reads, name(ctx, p.n, "secret-keys"), p.under.SecretKeys)
}

func (p *port) SecretsUnder(ctx context.Context, notKey string, limit int) ([]eventlog.SecretRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "secrets-under"), func(ctx context.Context) ([]eventlog.SecretRow, error) {
		return p.under.SecretsUnder(ctx, notKey, limit)
	})
}

func (p *port) ResealSecret(ctx context.Context, row eventlog.SecretRow, was []byte) (bool, error) {
	return do(ctx, p, writes, name(ctx, p.n, "reseal-secret"), func(ctx context.Context) (bool, error) { return p.under.ResealSecret(ctx, row, was) })
}

func (p *port) DropSecrets(ctx context.Context, now string, limit int) (int, error) {
	return do(ctx, p, writes, name(ctx, p.n, "drop-secrets"), func(ctx context.Context) (int, error) { return p.under.DropSecrets(ctx, now, limit) })
}

func (p *port) AddToken(ctx context.Context, t eventlog.TokenRow) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "add-token"), func(ctx context.Context) (none, error) { return none{}, p.under.AddToken(ctx, t) })
	return err
}

func (p *port) TokenByHash(ctx context.Context, hash string) (eventlog.TokenRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "token"), func(ctx context.Context) (eventlog.TokenRow, error) { return p.under.TokenByHash(ctx, hash) })
}

func (p *port) TokenByID(ctx context.Context, id string) (eventlog.TokenRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "token"), func(ctx context.Context) (eventlog.TokenRow, error) { return p.under.TokenByID(ctx, id) })
}

func (p *port) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "touch-tokens"), func(ctx context.Context) (none, error) { return none{}, p.under.TouchTokens(ctx, used) })
	return err
}

func (p *port) ListTokens(ctx context.Context) ([]eventlog.TokenRow, error) {
	return do(ctx, p, reads, name(ctx, p.n, "tokens"), p.under.ListTokens)
}

func (p *port) DeleteToken(ctx context.Context, id string) error {
	_, err := do(ctx, p, writes, name(ctx, p.n, "delete-token"), func(ctx context.Context) (none, error) { return none{}, p.under.DeleteToken(ctx, id) })
	return err
}
