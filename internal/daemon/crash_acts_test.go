package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// act is something that is played beside the story, or instead of it, in
// sessions of its own. The orders of its runs lie between number*100 and the
// next hundred; their last two digits below 90.
type act interface {
	number() int
	// answer is the model: a function of the request.
	answer(order, step int, req chatstub.Request) chatstub.Reply
	// play is the side of the clients. It adds its parts to the round.
	play(ctx context.Context, r *round) error
	// after is what a client sees when all is over, over one more restart.
	after(ctx context.Context, r *round)
	// check looks at the log and at the world.
	check(r *round, h *history)
}

// acts are all there are. Each round has new ones.
func acts() []act {
	return []act{&levelsAct{}, &repairsAct{}, &largeAct{}, &filesAct{}, &stopsAct{}, &eraseAct{}, &editsAct{}}
}

func nameOf(a act) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", a), "*daemon_test."), "Act")
}

// plain is an act of which only the log is checked.
type plain struct{}

func (plain) after(context.Context, *round) {}
func (plain) check(*round, *history)        {}

// done is the answer of a model that has nothing else to say.
func done(order int) chatstub.Reply {
	return chatstub.Reply{Text: fmt.Sprintf("done %d", order), Input: 3, Output: 1}
}

// answer finds who answers an order.
func (r *round) answer(order, step int, req chatstub.Request) chatstub.Reply {
	if order < 100 {
		return storyAnswer(order, step, req)
	}
	if order%100 < 90 {
		for _, a := range r.acts {
			if a.number() == order/100 {
				return a.answer(order, step, req)
			}
		}
	}
	if order/100 == (*repairsAct)(nil).number() {
		return chatstub.Reply{Text: structuredAnswer(order)}
	}
	return done(order)
}

// count counts something for the report.
func (r *round) count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.met[what] += n
}

// open makes a session with one receiver of its own and follows its stream.
func (r *round) open(ctx context.Context, s api.CreateSession) error {
	if s.ReplyTargets == nil {
		s.ReplyTargets = []api.ReplyTarget{{Type: "webhook", URL: r.w.hookSrv.URL + "/" + s.ID}}
	}
	if err := r.c.createSession(ctx, s); err != nil {
		return err
	}
	r.follow(s.ID, "")
	return nil
}

func (r *round) follow(session, run string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.followers = append(r.followers, r.c.follow(r.following, session, run, len(r.followers)%3 == 2))
}

// add makes parts those of the round.
func (r *round) add(parts ...*part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parts = append(r.parts, parts...)
}

// submit sends a part twice at once under its key, which is one run (I-07),
// and follows the run.
func (r *round) submit(ctx context.Context, p *part) error {
	var runs [2]api.Run
	var made [2]bool
	var errs [2]error
	var wg sync.WaitGroup
	twice := 1 + p.order%2
	for i := range twice {
		wg.Go(func() { runs[i], made[i], errs[i] = r.c.send(ctx, p.session, p.key(), p.request()) })
	}
	wg.Wait()
	for i := range twice {
		if errs[i] != nil {
			return errs[i]
		}
		if runs[i].ID != runs[0].ID || made[0] && made[1] {
			r.t.Errorf("I-07: order %d is run %s (made: %t) and %s (made: %t)", p.order, runs[0].ID, made[0], runs[i].ID, made[i])
		}
	}
	p.run = runs[0]
	if !p.erased && (*crashDeaths > 0 || p.order%3 == 0) { // in the short set not each
		r.follow(p.session, p.run.ID)
	}
	return nil
}

// finish waits for the ends of parts, in their order.
func (r *round) finish(ctx context.Context, parts ...*part) (err error) {
	for _, p := range parts {
		if p.run, err = r.c.finish(ctx, p.run.ID, r.decide); err != nil {
			return fmt.Errorf("order %d: %w", p.order, err)
		}
	}
	return nil
}

// whole submits all parts of a session, so that they queue, and waits for them.
func (r *round) whole(ctx context.Context, s api.CreateSession, parts ...*part) error {
	r.add(parts...)
	if err := r.open(ctx, s); err != nil {
		return err
	}
	for _, p := range parts {
		if err := r.submit(ctx, p); err != nil {
			return err
		}
	}
	return r.finish(ctx, parts...)
}

// toDoubt gives a session's choice by the seed.
func (r *round) toDoubt() string {
	if r.seed%2 == 0 {
		return "continue"
	}
	return "ask"
}

// levelsAct: calls of every level of effect, in one turn, two runs of which one waits.
type levelsAct struct{ plain }

func (*levelsAct) number() int { return 1 }

func (*levelsAct) calls(order int) (calls []chatstub.Call, what []string) {
	for _, name := range []string{"think", "lookup", "note", "charge", "book", "wipe"} {
		calls = append(calls, chatstub.Call{Name: name, Arguments: fmt.Sprintf(`{"order": %d}`, order)})
		what = append(what, fmt.Sprintf(`%s {"order":%d}`, name, order))
	}
	return calls, what
}

func (a *levelsAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	if step == 0 {
		calls, _ := a.calls(order)
		return chatstub.Reply{Calls: calls, Runes: 64}
	}
	return done(order)
}

func (a *levelsAct) play(ctx context.Context, r *round) error {
	var parts []*part
	for _, order := range []int{101, 102} {
		_, what := a.calls(order)
		parts = append(parts, &part{order: order, session: "levels", status: api.RunCompleted, content: done(order).Text, steps: 2, calls: what})
	}
	return r.whole(ctx, api.CreateSession{ID: "levels", OnDoubt: r.toDoubt()}, parts...)
}

// repairsAct: a queue under a contract: two repairs, none that helps, and one
// behind a tool.
type repairsAct struct{ plain }

func (*repairsAct) number() int { return 2 }

func (*repairsAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	switch {
	case order == 203 && step == 0:
		return chatstub.Reply{Calls: []chatstub.Call{{Name: "note", Arguments: `{"order":203}`}}}
	case order == 201 && step < 2, order == 202, order == 203 && step == 1:
		return chatstub.Reply{Text: fmt.Sprintf(`{"category":"billing","order":%d}`, order), Input: 10, Output: 5}
	}
	return chatstub.Reply{Text: structuredAnswer(order), Input: 10, Output: 5}
}

func (*repairsAct) play(ctx context.Context, r *round) error {
	s := api.CreateSession{ID: "repairs", OnDoubt: r.toDoubt(), OutputContract: &api.OutputContract{Schema: outputSchema}}
	return r.whole(ctx, s,
		&part{order: 201, session: s.ID, typed: true, status: api.RunCompleted, content: structuredAnswer(201), steps: 3, repairs: 2},
		&part{order: 202, session: s.ID, typed: true, status: api.RunFailed, steps: 4, repairs: 3},
		&part{order: 203, session: s.ID, typed: true, status: api.RunCompleted, content: structuredAnswer(203), steps: 3, repairs: 1,
			calls: []string{`note {"order":203}`}})
}

// largeAct: texts that stand outside the log by their size: an input, a tool's
// result, an answer, a message to a receiver.
type largeAct struct{ plain }

func (*largeAct) number() int { return 3 }

func largeOf(order, n int) string {
	return fmt.Sprintf("large %d: ", order) + strings.Repeat("a line of a large text\n", n)
}

func (*largeAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	if step == 0 {
		return chatstub.Reply{Calls: []chatstub.Call{{Name: "fetch", Arguments: fmt.Sprintf(`{"order":%d}`, order)}}}
	}
	return chatstub.Reply{Text: largeOf(order, 3000), Runes: 4096, Input: 10, Output: 5}
}

func (*largeAct) play(ctx context.Context, r *round) error {
	var parts []*part
	for _, order := range []int{301, 302} {
		parts = append(parts, &part{order: order, session: "large", status: api.RunCompleted, content: largeOf(order, 3000), steps: 2,
			calls: []string{fmt.Sprintf(`fetch {"order":%d}`, order)}, text: fmt.Sprintf("order %d\n", order) + largeOf(order, 2000)})
	}
	return r.whole(ctx, api.CreateSession{ID: "large"}, parts...)
}

func (*largeAct) check(r *round, _ *history) {
	for _, req := range r.w.model.Requests() {
		order, _ := placeOf(req)
		if order/100 != 3 || order%100 >= 90 {
			continue
		}
		if text := string(req.Body); !strings.Contains(text, string(bytes.Trim(quoted(largeOf(order, 2000)), `"`))) {
			r.t.Errorf("order %d: the model was not shown the whole input", order)
		}
	}
}

// stopsAct: a queue whose runs are cancelled and interrupted while they wait,
// run, and end.
type stopsAct struct{ asked []stopAsked }

type stopAsked struct {
	p      *part
	status int
}

func (*stopsAct) number() int { return 5 }

func (*stopsAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	if step == 0 {
		return chatstub.Reply{Calls: []chatstub.Call{{Name: "note", Arguments: fmt.Sprintf(`{"order":%d}`, order)}}, Delay: 20 * time.Millisecond}
	}
	reply := done(order)
	reply.Delay = 10 * time.Millisecond
	return reply
}

func (a *stopsAct) play(ctx context.Context, r *round) error {
	var parts []*part
	for i := range 6 {
		parts = append(parts, &part{order: 501 + i, session: "stops", free: true})
	}
	r.add(parts...)
	if err := r.open(ctx, api.CreateSession{ID: "stops", OnDoubt: r.toDoubt()}); err != nil {
		return err
	}
	for _, p := range parts {
		if err := r.submit(ctx, p); err != nil {
			return err
		}
	}
	for _, step := range []int{4, 0, -1, 5, 3, -1} {
		r.w.pause(r.chance(40))
		path := "/v1/sessions/stops/interrupt"
		if step >= 0 {
			path = "/v1/runs/" + parts[step].run.ID + "/cancel"
		}
		got, err := r.c.do(ctx, http.MethodPost, path, api.StopRun{Reason: "changed my mind"})
		if err != nil {
			return err
		}
		if got.status/100 != 2 && (step < 0 || got.problem().Code != "run_state_conflict") {
			return fmt.Errorf("POST %s: %d %s", path, got.status, got.body)
		}
		if step >= 0 {
			a.asked = append(a.asked, stopAsked{parts[step], got.status})
		}
	}
	if err := r.finish(ctx, parts...); err != nil {
		return err
	}
	for _, p := range parts {
		if p.status = p.run.Status; p.status == api.RunCompleted {
			p.content = done(p.order).Text
		}
	}
	return nil
}

func (*stopsAct) after(context.Context, *round) {}

// check: who was told that the end was asked for sees it (C48).
func (a *stopsAct) check(r *round, h *history) {
	for _, asked := range a.asked {
		run := h.runByID(asked.p.run.ID)
		if run == nil {
			continue // reported already
		}
		if asked.status/100 == 2 && run.status != "cancelled" && run.status != "interrupted" {
			r.t.Errorf("C48: order %d: the cancel was accepted (%d) and the run is %s", asked.p.order, asked.status, run.status)
		}
		if asked.status == http.StatusConflict && run.status == "cancelled" && !slices.Contains(run.types, "run.cancel.requested") {
			r.t.Errorf("C48: order %d is cancelled, and nobody asked", asked.p.order)
		}
	}
}

// request is what is submitted.
func (p *part) request() api.SubmitRun {
	if p.submit != nil {
		return *p.submit
	}
	return api.SubmitRun{Content: quoted(p.input())}
}
