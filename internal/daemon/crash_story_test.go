package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// The story that is played in every round. A session with contracts on both
// ends has three runs: one with a read and an external effect in one turn, a
// wrong answer and its repair, whose delivery fails at first; one with two more
// levels of effect; and a plain one. A second session without contracts plays
// at the same time: tools, an answer that breaks off, a plain one.
const (
	orderMain  = 1
	orderBook  = 2
	orderPlain = 3
	orderText  = 11
	orderCut   = 12
	orderLast  = 13
	orderAfter = 4  // submitted when all is over
	orderThen  = 14 // and in the other session
)

var (
	inputSchema  = []byte(`{"type":"object","properties":{"order":{"type":"number"}},"required":["order"],"additionalProperties":false}`)
	outputSchema = []byte(`{"type":"object","properties":{"category":{"type":"string"},"order":{"type":"number"},"severity":{"type":"number"}},` +
		`"required":["category","order","severity"],"additionalProperties":false}`)
)

// part is one run of the story and what must come of it.
type part struct {
	order   int
	session string // alias
	status  string
	content string // of its output: what is delivered; empty: nothing
	steps   int
	repairs int
	calls   []string // tool calls that the model asks for

	run api.Run // filled by the player
}

func (p *part) key() string { return fmt.Sprintf("key-%d", p.order) }

// input is what is submitted: JSON for the session with a contract.
func (p *part) input() any {
	if p.session == "main" {
		return map[string]any{"order": p.order}
	}
	return fmt.Sprintf("order %d", p.order)
}

func structuredAnswer(order int) string {
	return fmt.Sprintf(`{"category":"billing","order":%d,"severity":2}`, order)
}

func storyParts() []*part {
	return []*part{
		{order: orderMain, session: "main", status: api.RunCompleted, content: structuredAnswer(orderMain), steps: 3, repairs: 1,
			calls: []string{`lookup {"order":1}`, `charge {"cents":100,"order":1}`}},
		{order: orderBook, session: "main", status: api.RunCompleted, content: structuredAnswer(orderBook), steps: 2,
			calls: []string{`book {"order":2}`, `note {"order":2}`}},
		{order: orderPlain, session: "main", status: api.RunCompleted, content: structuredAnswer(orderPlain), steps: 1},
		{order: orderText, session: "text", status: api.RunCompleted, content: "done 11", steps: 2,
			calls: []string{`charge {"cents":7,"order":11}`, `lookup {"order":11}`}},
		{order: orderCut, session: "text", status: api.RunFailed, steps: 1},
		{order: orderLast, session: "text", status: api.RunCompleted, content: "done 13", steps: 1},
	}
}

func afterParts() []*part {
	return []*part{
		{order: orderAfter, session: "main", status: api.RunCompleted, content: structuredAnswer(orderAfter), steps: 1},
		{order: orderThen, session: "text", status: api.RunCompleted, content: "done 14", steps: 1},
	}
}

// storyAnswer is the model: a function of the request.
func storyAnswer(order, step int, _ chatstub.Request) chatstub.Reply {
	loose := chatstub.Reply{Text: fmt.Sprintf("```json\n{ \"severity\": 2.0,\n  \"order\": %d, \"category\": \"billing\" }\n```", order), Input: 10, Output: 5}
	switch {
	case order == orderMain && step == 0:
		return chatstub.Reply{Input: 10, Output: 5, Calls: []chatstub.Call{
			{Name: "lookup", Arguments: `{ "order": 1 }`}, {Name: "charge", Arguments: `{"order":1,"cents":100}`}}}
	case order == orderMain && step == 1:
		return chatstub.Reply{Text: `{"category":"billing","order":1}`, Input: 10, Output: 5}
	case order == orderBook && step == 0:
		return chatstub.Reply{Text: "let me see", Calls: []chatstub.Call{
			{Name: "book", Arguments: `{"order":2}`}, {Name: "note", Arguments: `{"order":2}`}}}
	case order == orderText && step == 0:
		return chatstub.Reply{Calls: []chatstub.Call{
			{Name: "charge", Arguments: `{"order":11,"cents":7}`}, {Name: "lookup", Arguments: `{"order":11}`}}}
	case order == orderCut:
		return chatstub.Reply{Text: strings.Repeat("a draft that nobody may be sent ", 8), CutAfter: 1000}
	case order < 10:
		return loose
	}
	return chatstub.Reply{Text: fmt.Sprintf("done %d", order), Input: 3, Output: 1}
}

// round is one playing of the story.
type round struct {
	t     *testing.T
	seed  uint64
	rnd   *rand.Rand // of the player; the world's own chance has another
	w     *world
	k     *keeper
	c     *caller
	parts []*part
	met   map[string]int // what the log tells of deaths

	rndMu sync.Mutex
}

func newRound(t *testing.T, seed uint64) *round {
	r := &round{t: t, seed: seed, rnd: seeded(seed), parts: storyParts()}
	r.w = newWorld(t)
	r.w.answer = storyAnswer
	main := ""
	r.w.hook = func(path, id string, n int) int { // the first message to main fails once
		if path == "/main" && main == "" {
			main = id
		}
		if id == main && n == 1 {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
	r.k = newKeeper(t, r.w.config(func(c map[string]any) {
		if seed%2 == 0 {
			c["store"] = map[string]any{"sync": "full"}
		}
	}))
	r.c = newCaller(t, r.k)
	return r
}

// decide is a person of chance.
func (r *round) decide(doubt api.Attention) api.ResolveAttention {
	r.rndMu.Lock()
	defer r.rndMu.Unlock()
	a := api.ResolveAttention{CallID: doubt.CallID, Reason: "looked it up"}
	switch r.rnd.IntN(3) {
	case 0:
		a.Resolution, a.Output = "completed", `{"ok":true,"by":"a person"}`
	case 1:
		a.Resolution = "failed"
	default:
		a.Resolution = "retry"
	}
	return a
}

// play plays the client's side of both sessions to the end.
func (r *round) play(ctx context.Context) error {
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, session := range []string{"main", "text"} {
		wg.Go(func() { errs[i] = r.playSession(ctx, session) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *round) playSession(ctx context.Context, session string) error {
	s := api.CreateSession{ID: session, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: r.w.hookSrv.URL + "/" + session}}}
	if session == "main" {
		s.InputContract = &api.InputContract{Schema: inputSchema}
		s.OutputContract = &api.OutputContract{Schema: outputSchema}
	} else {
		s.OnDoubt = "continue"
	}
	if err := r.c.createSession(ctx, s); err != nil {
		return err
	}
	var mine []*part
	for _, p := range r.parts {
		if p.session == session {
			mine = append(mine, p)
		}
	}
	for _, p := range mine {
		run, _, err := r.c.submit(ctx, session, p.key(), p.input())
		if err != nil {
			return err
		}
		p.run = run
	}
	if session == "main" { // breaks the contract: no run, no event (I-07)
		a, err := r.c.do(ctx, http.MethodPost, "/v1/sessions/main/runs", api.SubmitRun{Content: api.Raw(`{"order":"one"}`)}, "Idempotency-Key", "key-bad")
		if err != nil {
			return err
		}
		if code := a.problem().Code; a.status != http.StatusBadRequest || code != "input_contract_violated" {
			return fmt.Errorf("a submission that breaks the contract: %d %s", a.status, code)
		}
	}
	// The runs keep the targets that they were submitted with (I-08).
	a, err := r.c.do(ctx, http.MethodPut, "/v1/sessions/"+session+"/reply-targets",
		api.ReplyTargets{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: r.w.hookSrv.URL + "/" + session + "-later"}}})
	if err != nil || a.status != http.StatusOK {
		return fmt.Errorf("change of the reply targets: %d %s %w", a.status, a.body, err)
	}
	for _, p := range mine {
		if p.run, err = r.c.finish(ctx, p.run.ID, r.decide); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until the player is through and every answer is delivered.
func (r *round) rest(ctx context.Context, played <-chan error) {
	r.t.Helper()
	select {
	case err := <-played:
		if err != nil {
			r.t.Fatal(err)
		}
	case <-ctx.Done():
		r.t.Fatal("the story does not come to its end")
	}
	want := 0
	for _, p := range r.parts {
		if p.content != "" {
			want++
		}
	}
	if _, err := r.c.deliveries(ctx, want); err != nil {
		r.t.Fatal(err)
	}
}

// perform plays the story while kills end the daemon, one for each life that
// kill gives something to die of, and gives what the first life told.
func (r *round) perform(first *killAt) *life {
	r.t.Helper()
	ctx := within(r.t, patience)
	l := r.k.start(first)
	played := make(chan error, 1)
	go func() { played <- r.play(ctx) }()
	if first != nil {
		rested := make(chan struct{})
		defer func() { <-rested }()
		done := make(chan struct{})
		go func() { // the next life begins as soon as this one is over
			defer close(rested)
			select {
			case <-l.gone:
			case <-done:
				// It may be dying at this instant, behind its very last append.
				r.k.kill(l)
			}
			r.k.restart(nil)
		}()
		defer close(done)
	}
	r.rest(ctx, played)
	return l
}

// death is how a life ends: at an instant after its start, unless it killed
// itself before at an append.
type death struct {
	after time.Duration
	at    *killAt
}

func (d death) String() string {
	if d.at == nil {
		return d.after.String()
	}
	return fmt.Sprintf("%s or %s", d.after, d.at)
}

// performKilled plays the story while the daemon dies those deaths, one a life.
func (r *round) performKilled(deaths []death) {
	r.t.Helper()
	ctx := within(r.t, patience)
	l := r.k.start(deaths[0].at)
	over := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for i, d := range deaths {
			timer := time.NewTimer(d.after)
			select {
			case <-timer.C:
				r.k.kill(l)
			case <-l.gone:
			case <-over:
			}
			timer.Stop()
			select {
			case <-l.gone:
			default:
				return
			}
			var next *killAt
			if i+1 < len(deaths) {
				next = deaths[i+1].at
			}
			if l = r.k.restart(next); l == nil {
				return
			}
		}
	})
	played := make(chan error, 1)
	go func() { played <- r.play(ctx) }()
	defer killer.Wait()
	defer close(over)
	r.rest(ctx, played)
}

// aftermath restarts once more, looks for anything that a restart may not do,
// and gives the session something new to do.
func (r *round) aftermath() {
	r.t.Helper()
	ctx := within(r.t, patience)
	r.sameKeys(ctx)
	before, err := r.c.feed(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	r.k.kill(r.k.life())
	l := r.k.start(nil)
	var health api.Health
	if err := r.c.get(ctx, "/readyz", &health); err != nil {
		r.t.Fatal(err)
	}
	wantFrom := len(r.received())
	after := afterParts()
	for _, p := range after {
		if p.run, _, err = r.c.submit(ctx, p.session, p.key(), p.input()); err == nil {
			p.run, err = r.c.finish(ctx, p.run.ID, nil) // the session's slot is free
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := r.c.deliveries(ctx, wantFrom+len(after)); err != nil {
		r.t.Fatal(err)
	}
	feed, err := r.c.feed(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	r.unchanged(before, feed, after)
	r.parts = append(r.parts, after...)
	session, err := r.c.sessionEvents(ctx, "main")
	if err != nil {
		r.t.Fatal(err)
	}
	r.k.stop(l, 10*time.Second)
	r.check(feed, session)
}

// received gives the parts that deliver something.
func (r *round) received() []*part {
	var out []*part
	for _, p := range r.parts {
		if p.content != "" {
			out = append(out, p)
		}
	}
	return out
}

// sameKeys sends every submission once more: it is the same run (I-07).
func (r *round) sameKeys(ctx context.Context) {
	r.t.Helper()
	for _, p := range r.parts {
		again, created, err := r.c.submit(ctx, p.session, p.key(), p.input())
		if err != nil {
			r.t.Fatal(err)
		}
		if created || again.ID != p.run.ID {
			r.t.Errorf("order %d: the key gives run %s (created: %t), want %s", p.order, again.ID, created, p.run.ID)
		}
	}
	a, err := r.c.do(ctx, http.MethodPost, "/v1/sessions/text/runs", api.SubmitRun{Content: api.Text("order 99")}, "Idempotency-Key", "key-11")
	if err != nil {
		r.t.Fatal(err)
	}
	if a.status != http.StatusConflict || a.problem().Code != "idempotency_conflict" {
		r.t.Errorf("a key with another request: %d %s", a.status, a.body)
	}
}

// unchanged compares the log over a restart: what was read stays (I-01), and
// what came is of the new runs and of taking the sessions over.
func (r *round) unchanged(before, feed []api.Event, after []*part) {
	r.t.Helper()
	if len(feed) < len(before) {
		r.t.Fatalf("the log had %d events and has %d", len(before), len(feed))
	}
	for i := range before {
		if before[i].Hash != feed[i].Hash {
			r.t.Fatalf("event %d of the log was %s and is %s", i, before[i].Type, feed[i].Type)
		}
	}
	fresh := map[string]bool{}
	for _, p := range after {
		fresh[p.run.ID] = true
	}
	for _, e := range feed[len(before):] {
		if !fresh[e.RunID] && e.Type != "session.owner.claimed" {
			r.t.Errorf("a restart at rest appended %s#%d %s (run %s)", e.Stream, e.Seq, e.Type, e.RunID)
		}
	}
}
