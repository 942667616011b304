package admission

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/replyto"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// targets gives where the run's answer goes (I-08): what the request names, an
// empty list included, else the session's own, else the daemon's fallback.
func (a *Admission) targets(ctx context.Context, user string, set *event.Settings, req *api.SubmitRun) ([]event.ReplyTarget, error) {
	switch {
	case req.ReplyTargets != nil:
		return a.replyTargets(ctx, user, *req.ReplyTargets)
	case len(set.ReplyTargets) > 0:
		return set.ReplyTargets, nil
	case a.cfg.Fallback == nil:
		return nil, nil
	}
	return a.cfg.Fallback(ctx)
}

// replyTargets reads and checks targets.
func (a *Admission) replyTargets(ctx context.Context, user string, list []api.ReplyTarget) ([]event.ReplyTarget, error) {
	out, err := a.readTargets(list)
	if err != nil {
		return nil, err
	}
	return a.resolveTargets(ctx, user, out)
}

// readTargets reads targets and checks their form.
func (a *Admission) readTargets(list []api.ReplyTarget) ([]event.ReplyTarget, error) {
	if len(list) > a.cfg.Limits.ReplyTargets {
		return nil, problem.New(problem.TooLarge, "too_many_reply_targets", "more than %d reply targets", a.cfg.Limits.ReplyTargets)
	}
	var out []event.ReplyTarget
	for i := range list {
		t := replyto.Of(&list[i])
		if err := replyto.Check(&t); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// resolveTargets checks whether targets of good form may be used by a user, pins
// what is pinned of them, and drops repeated ones: one output goes to a receiver
// once.
func (a *Admission) resolveTargets(ctx context.Context, user string, list []event.ReplyTarget) ([]event.ReplyTarget, error) {
	var out []event.ReplyTarget
	seen := map[event.TargetID]bool{}
	for _, t := range list {
		t, err := a.resolveTarget(ctx, user, t)
		if err != nil {
			return nil, err
		}
		if id := t.ID(user); !seen[id] {
			seen[id] = true
			out = append(out, t)
		}
	}
	if raw, err := json.Marshal(out); err != nil || len(raw) > event.InlineLimit {
		return nil, problem.New(problem.TooLarge, "reply_targets_too_large", "the reply targets hold more than %d bytes together", event.InlineLimit).Because(err)
	}
	return out, nil
}

func (a *Admission) resolveTarget(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error) {
	if t.Type != event.TargetSession {
		return a.cfg.CheckTarget(ctx, user, t)
	}
	row, err := a.Find(ctx, Caller{UserID: user}, string(t.Session), user) // I-34
	if err != nil {
		return t, err
	}
	if row.Status != session.Open {
		return t, problem.New(problem.Conflict, "session_closed", "the session that the answer is to go to is closed")
	}
	t.Session = row.ID
	return t, nil
}

// Answer submits what a run said to another session of its user, once for each
// delivery: the id of the delivery is the idempotency key. The session's input
// contract applies. hops are those of the run that said it.
func (a *Admission) Answer(ctx context.Context, user string, id event.SessionID, delivery event.DeliveryID, text string, hops int) (event.RunID, error) {
	c := Caller{Actor: string(delivery), UserID: user}
	row, err := a.Find(ctx, c, string(id), user)
	if err != nil {
		return "", err
	}
	out, err := a.SubmitWork(ctx, c, row, &Submission{
		Request: &api.SubmitRun{InputItems: []api.InputItem{{Type: "text", Text: text}}}, Key: string(delivery), Source: "session", Hops: hops + 1,
	})
	return out.ID, err
}

// Tried is what came of a test.
type Tried struct {
	Delivered bool
	Code      string
	Status    int
	Detail    string
	Excerpt   []byte
}

// maxTests bounds the test deliveries that are in flight at once.
const maxTests = 4

var errTests = problem.New(problem.Limited, "too_many_tests", "%d test deliveries are in flight; try again when one is over", maxTests)

// testText is what a receiver is told.
const testText = "A test of this target. No run stands behind it."

// TestTarget sends a test to a target of a user: the checks, the attempt and its
// signature are those of a delivery. What was sent and what came of it stands in
// the target's stream. A session is checked and sent nothing: it would begin a run.
func (a *Admission) TestTarget(ctx context.Context, c Caller, user string, req *api.ReplyTarget) (*api.TargetTest, error) {
	if a.stopped.Load() {
		return nil, errStopping
	}
	user, err := c.User(user)
	if err != nil {
		return nil, err
	}
	list, err := a.replyTargets(ctx, user, []api.ReplyTarget{*req})
	if err != nil {
		return nil, err
	}
	t := &list[0]
	select {
	case a.tests <- struct{}{}:
		defer func() { <-a.tests }()
	default:
		return nil, errTests
	}
	var random [16]byte
	if _, err := io.ReadFull(a.cfg.Random, random[:]); err != nil {
		return nil, err
	}
	id := event.DeliveryIDFor(event.RunID(random[:]), t.ID(user), 0)
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	body := outbox.Message{DeliveryID: id, OutputKind: "test", Text: testText}.Bytes(t, now)
	record := func(ctx context.Context, d event.Data) error {
		return a.append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: t.ID(user).Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: user, Data: d}}}}})
	}
	if err := record(ctx, &event.TargetTestStarted{Actor: c.Actor, DeliveryID: id, Type: t.Type}); err != nil {
		return nil, err
	}
	began := time.Now()
	tried := Tried{Code: "not_sent", Detail: "the session takes work; nothing is submitted to it, since that would begin a run"}
	if t.Type != event.TargetSession {
		tried = a.cfg.TryTarget(ctx, user, id, *t, body)
	}
	took := time.Since(began).Milliseconds()
	ended := &event.TargetTestEnded{Code: tried.Code, DeliveryID: id, DurationMS: took, Status: tried.Status}
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // what happened is told, whoever waits
	defer cancel()
	if err := record(wctx, ended); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return &api.TargetTest{
		TargetID: string(t.ID(user)), DeliveryID: string(id), Delivered: tried.Delivered, Status: tried.Status, Code: tried.Code, Detail: tried.Detail,
		Excerpt: string(tried.Excerpt), DurationMS: took,
	}, nil
}
