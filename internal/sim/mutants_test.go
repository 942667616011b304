package sim_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// mutant breaks a guard on purpose, by what stands around a port. The zero
// value breaks nothing.
type mutant struct {
	name     string
	always   bool // broken in each run of the tests, not only by make sim-mutants
	ofStore  func(daemon.Store, *node) daemon.Store
	ofModel  func(llm.Model, *node) llm.Model
	ofTool   func(tool.Tool, *node) tool.Tool
	ofSender func(delivery.Sender, *node) delivery.Sender
}

func (m *mutant) store(s daemon.Store, n *node) daemon.Store {
	if m.ofStore == nil {
		return s
	}
	return m.ofStore(s, n)
}

func (m *mutant) model(x llm.Model, n *node) llm.Model {
	if m.ofModel == nil {
		return x
	}
	return m.ofModel(x, n)
}

func (m *mutant) tools(list []tool.Tool, n *node) []tool.Tool {
	if m.ofTool != nil {
		for i := range list {
			list[i] = m.ofTool(list[i], n)
		}
	}
	return list
}

func (m *mutant) send(s delivery.Sender, n *node) delivery.Sender {
	if m.ofSender == nil {
		return s
	}
	return m.ofSender(s, n)
}

// broken is a store with one method that does not do what it says.
type broken struct {
	daemon.Store
	append      func(context.Context, eventlog.Append) ([]eventlog.Stamp, error)
	beat        func(context.Context, eventlog.Node, time.Duration) (eventlog.Lease, error)
	ahead       func(context.Context, event.TargetID, eventlog.Ahead) ([]eventlog.Outgoing, error)
	readBounded func(context.Context, event.Stream, int64, int) ([]event.Event, error)
	key         func(context.Context, event.SessionID, string, string) (eventlog.IdempotencyRow, error)
}

func (b *broken) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	if b.append != nil {
		return b.append(ctx, a)
	}
	return b.Store.Append(ctx, a)
}

func (b *broken) Beat(ctx context.Context, n eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	if b.beat != nil {
		return b.beat(ctx, n, ttl)
	}
	return b.Store.Beat(ctx, n, ttl)
}

func (b *broken) Ahead(ctx context.Context, t event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
	if b.ahead != nil {
		return b.ahead(ctx, t, q)
	}
	return b.Store.Ahead(ctx, t, q)
}

func (b *broken) ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	if b.readBounded != nil {
		return b.readBounded(ctx, s, after, limit)
	}
	return b.Store.ReadBounded(ctx, s, after, limit)
}

func (b *broken) Idempotency(ctx context.Context, s event.SessionID, operation, hash string) (eventlog.IdempotencyRow, error) {
	if b.key != nil {
		return b.key(ctx, s, operation, hash)
	}
	return b.Store.Idempotency(ctx, s, operation, hash)
}

// mutants are the guards that are broken, each with the invariant that sees it.
var mutants = []*mutant{
	{name: "the store ignores epochs", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			a.Entries = slices.Clone(a.Entries)
			for i := range a.Entries { // whose epoch is behind has a head that is behind
				e := &a.Entries[i]
				if head, err := s.Head(ctx, e.Stream); err == nil && e.Node != "" && !e.Claim && e.Epoch < head.Epoch {
					e.Epoch, e.Expect, e.Node = head.Epoch, eventlog.AnyHead, ""
				}
			}
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store lets a living node's streams be claimed", always: true, ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			for {
				stamps, err := s.Append(ctx, a)
				var held *eventlog.HeldError
				if !errors.As(err, &held) {
					return stamps, err
				}
				if err := s.Yield(ctx, held.By, []event.Stream{held.Stream}); err != nil {
					return nil, err
				}
			}
		}}
	}},
	{name: "the store takes an append whose head has moved", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			stamps, err := s.Append(ctx, a)
			if !errors.Is(err, eventlog.ErrHeadMoved) {
				return stamps, err
			}
			a.Entries = slices.Clone(a.Entries)
			a.Entries[0].Expect = eventlog.AnyHead
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store ends leases before their time", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, beat: func(ctx context.Context, n eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
			return s.Beat(ctx, n, ttl/3)
		}}
	}},
	{name: "the store forgets an append that it acknowledged", ofStore: func(s daemon.Store, n *node) daemon.Store {
		var mu sync.Mutex
		count := 0
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			mu.Lock()
			count++
			now := count%25 == 0
			mu.Unlock()
			if !now {
				return s.Append(ctx, a)
			}
			var stamps []eventlog.Stamp
			for i := range a.Entries {
				e := &a.Entries[i]
				head, err := s.Head(ctx, e.Stream)
				if err != nil {
					return nil, err
				}
				stamps = append(stamps, eventlog.Stamp{Stream: e.Stream, Head: head.Seq + int64(len(e.Events)), Epoch: max(1, e.Epoch)})
			}
			return stamps, nil
		}}
	}},
	{name: "the store forgets idempotency keys", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			for i := range a.Entries {
				for j := range a.Entries[i].Events {
					if d, ok := a.Entries[i].Events[j].Data.(*event.RunCreated); ok {
						bare := *d
						bare.Idempotency = nil
						a.Entries[i].Events[j].Data = &bare
					}
				}
			}
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store gives deliveries out of order", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, ahead: func(ctx context.Context, t event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
			q.Limit += 10
			list, err := s.Ahead(ctx, t, q)
			slices.Reverse(list) // newest first
			return list, err
		}}
	}},
	{name: "the store forgets how receivers fare", ofStore: func(s daemon.Store, _ *node) daemon.Store { return &forgetful{s} }},
	{name: "the store takes outcomes whatever a person did to the receiver", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			switch a.Entries[0].Events[0].Data.(type) {
			case *event.DeliveryAttemptFailed, *event.DeliveryDelivered:
				a.Require = slices.DeleteFunc(slices.Clone(a.Require), func(c eventlog.Condition) bool { return c.Table == derived.Targets })
			}
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store lets jobs replay whatever became of a delivery", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			if _, ok := a.Entries[0].Events[0].Data.(*event.JobAdvanced); ok {
				a.Require = nil
			}
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store forgets the replays of a job", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			if _, ok := a.Entries[0].Events[0].Data.(*event.JobAdvanced); ok {
				a.Entries = a.Entries[:1]
			}
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store forgets what is for the audit stream", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, append: func(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
			a.Entries = slices.DeleteFunc(slices.Clone(a.Entries), func(e eventlog.Entry) bool { return e.Stream == event.AuditStream })
			return s.Append(ctx, a)
		}}
	}},
	{name: "the store leaves events out", ofStore: func(s daemon.Store, _ *node) daemon.Store {
		return &broken{Store: s, readBounded: func(ctx context.Context, st event.Stream, after int64, limit int) ([]event.Event, error) {
			list, err := s.ReadBounded(ctx, st, after, limit)
			if err == nil && len(list) > 2 {
				list = slices.Delete(list, 1, 2)
			}
			return list, err
		}}
	}},
	{name: "a tool runs each call twice", always: true, ofTool: func(t tool.Tool, _ *node) tool.Tool { return &twofold{t} }},
	{name: "a sender changes the bytes", ofSender: func(s delivery.Sender, n *node) delivery.Sender {
		return func(ctx context.Context, m delivery.Message) delivery.Result {
			m.Body = append(slices.Clone(bytes.TrimSpace(m.Body)), n.name...)
			return s(ctx, m)
		}
	}},
	{name: "a sender sends twice", ofSender: func(s delivery.Sender, _ *node) delivery.Sender {
		return func(ctx context.Context, m delivery.Message) delivery.Result {
			s(ctx, m)
			return s(ctx, m)
		}
	}},
	{name: "a model is asked long after the check", ofModel: func(m llm.Model, _ *node) llm.Model { return slow{m} }},
	{name: "a model is asked twice", ofModel: func(m llm.Model, _ *node) llm.Model { return double{m} }},
}

type forgetful struct{ daemon.Store }

func (f *forgetful) TargetState(ctx context.Context, id event.TargetID) (eventlog.TargetState, error) {
	s, err := f.Store.TargetState(ctx, id)
	s.Circuit, s.Failures, s.HeldUntil = "", 0, ""
	return s, err
}

type twofold struct{ tool.Tool }

func (t *twofold) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	if _, err := t.Tool.Run(ctx, c); err != nil {
		return tool.Result{}, err
	}
	return t.Tool.Run(ctx, c)
}

type slow struct{ llm.Model }

func (s slow) Stream(_ context.Context, req *llm.Request, yield func(llm.Part) error) error {
	<-time.After(12 * time.Second) // in the bubble
	return s.Model.Stream(context.Background(), req, yield)
}

type double struct{ llm.Model }

func (d double) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	if err := d.Model.Stream(ctx, req, func(llm.Part) error { return nil }); err != nil {
		return err
	}
	return d.Model.Stream(ctx, req, yield)
}
