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
// at the same time: tools, an answer that its provider breaks off, a plain one.
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
	calls   []string       // tool calls that the model asks for
	typed   bool           // its session has an output contract
	free    bool           // what comes of it is for its act to say
	erased  bool           // with its session
	text    string         // what is submitted, unless it is input's
	target  string         // path of its receiver, unless it is its session's
	submit  *api.SubmitRun // what is submitted, unless it is a text

	run api.Run // filled by the player
}

func (p *part) key() string { return fmt.Sprintf("key-%d", p.order) }

// input is what is submitted: JSON for the session with a contract.
func (p *part) input() any {
	if p.text != "" {
		return p.text
	}
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
		{order: orderMain, session: "main", typed: true, status: api.RunCompleted, content: structuredAnswer(orderMain), steps: 3, repairs: 1,
			calls: []string{`lookup {"order":1}`, `charge {"cents":100,"order":1}`}},
		{order: orderBook, session: "main", typed: true, status: api.RunCompleted, content: structuredAnswer(orderBook), steps: 2,
			calls: []string{`book {"order":2}`, `note {"order":2}`}},
		{order: orderPlain, session: "main", typed: true, status: api.RunCompleted, content: structuredAnswer(orderPlain), steps: 1},
		{order: orderText, session: "text", status: api.RunCompleted, content: "done 11", steps: 2,
			calls: []string{`charge {"cents":7,"order":11}`, `lookup {"order":11}`}},
		{order: orderCut, session: "text", status: api.RunFailed, steps: 1},
		{order: orderLast, session: "text", status: api.RunCompleted, content: "done 13", steps: 1},
	}
}

func afterParts() []*part {
	return []*part{
		{order: orderAfter, session: "main", typed: true, status: api.RunCompleted, content: structuredAnswer(orderAfter), steps: 1},
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
		return chatstub.Reply{Text: strings.Repeat("a draft that nobody may be sent ", 8), Finish: "content_filter"} // a cut one would be tried again, for seconds
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
	story bool           // the story is played
	acts  []act          // and these
	met   map[string]int // what the log tells of deaths

	mu        sync.Mutex // over parts that are added, met, and followers
	following context.Context
	followers []*follower

	rndMu sync.Mutex
}

func newRound(t *testing.T, seed uint64, story bool, acts ...act) *round {
	r := &round{t: t, seed: seed, rnd: seeded(seed), story: story, acts: acts, met: map[string]int{}}
	if story {
		r.parts = storyParts()
	}
	r.w = newWorld(t)
	r.w.answer = r.answer
	var unfollow context.CancelFunc
	r.following, unfollow = context.WithCancel(context.Background())
	t.Cleanup(func() {
		unfollow()
		for _, f := range r.followers {
			<-f.done
		}
	})
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
	t.Cleanup(func() { r.keep() })
	return r
}

// chance gives a time of less than n milliseconds.
func (r *round) chance(n int) time.Duration {
	r.rndMu.Lock()
	defer r.rndMu.Unlock()
	return time.Duration(r.rnd.IntN(n)) * time.Millisecond
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

// play plays the client's side of all sessions to the end.
func (r *round) play(ctx context.Context) error {
	errs := make([]error, 2+len(r.acts))
	var wg sync.WaitGroup
	if r.story {
		for i, session := range []string{"main", "text"} {
			wg.Go(func() { errs[i] = r.playSession(ctx, session) })
		}
	}
	for i, a := range r.acts {
		wg.Go(func() {
			if err := a.play(ctx, r); err != nil {
				errs[2+i] = fmt.Errorf("%s: %w", nameOf(a), err)
			}
		})
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
	if err := r.open(ctx, s); err != nil {
		return err
	}
	var mine []*part
	r.mu.Lock()
	for _, p := range r.parts {
		if p.session == session {
			mine = append(mine, p)
		}
	}
	r.mu.Unlock()
	for _, p := range mine {
		if err := r.submit(ctx, p); err != nil {
			return err
		}
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
	return r.finish(ctx, mine...)
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
	if _, err := r.c.deliveries(ctx, len(r.received())); err != nil {
		r.t.Fatal(err)
	}
}

// perform plays the story while kills end the daemon, one for each life that
// kill gives something to die of, and gives what the first life told.
func (r *round) perform(first *killAt) *life {
	r.t.Helper()
	ctx := within(r.t, *patience)
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

// death is how a life ends: at an instant after it listened, or after its
// start, unless it killed itself before at an append.
type death struct {
	after time.Duration
	early bool // after its start
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
	ctx := within(r.t, *patience)
	l := r.k.start(deaths[0].at)
	over := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for i, d := range deaths {
			if !d.early {
				r.k.listens(l, over)
			}
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
	ctx := within(r.t, *patience)
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
	after := r.afterParts()
	for _, p := range after {
		if p.run, _, err = r.c.send(ctx, p.session, p.key(), p.request()); err == nil {
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
	for _, a := range r.acts {
		a.after(ctx, r)
	}
	logs := map[string][]api.Event{}
	for _, f := range r.followers { // I-18
		if logs[f.session] == nil {
			if logs[f.session], err = r.c.sessionEvents(ctx, f.session); err != nil {
				r.t.Fatal(err)
			}
		}
		f.wants(ctx, r.t, logs[f.session])
		f.mu.Lock()
		events, conns := len(f.seen), f.conns
		f.mu.Unlock()
		r.count("streams followed", 1)
		r.count("events followed", events)
		r.count("streams resumed", max(0, conns-1))
	}
	r.k.stop(l)
	r.check(feed, logs)
	r.outside()
}

// outside counts what the world saw.
func (r *round) outside() {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for _, n := range r.w.asked {
		r.count("model calls", n)
	}
	for _, n := range r.w.effects {
		r.count("effects", n)
	}
	for _, h := range r.w.hits {
		r.count("messages received", 1)
		if h.answered/100 != 2 {
			r.count("messages refused", 1)
		}
	}
	r.count("runs", len(r.parts))
	r.count("requests repeated over a death", r.c.repeated())
}

// afterParts is one more run in each session.
func (r *round) afterParts() (after []*part) {
	if r.story {
		after = afterParts()
	}
	seen := map[string]bool{"main": true, "text": true}
	for _, p := range r.parts {
		if !seen[p.session] && !p.erased {
			seen[p.session] = true
			order := p.order/100*100 + 90
			q := &part{order: order, session: p.session, typed: p.typed, target: p.target, status: api.RunCompleted, content: done(order).Text, steps: 1}
			if p.typed {
				q.content = structuredAnswer(order)
			}
			after = append(after, q)
		}
	}
	return after
}

// received gives the parts that deliver something and are still there.
func (r *round) received() []*part {
	var out []*part
	for _, p := range r.parts {
		if p.content != "" && !p.erased {
			out = append(out, p)
		}
	}
	return out
}

// sameKeys sends every submission once more: it is the same run (I-07).
func (r *round) sameKeys(ctx context.Context) {
	r.t.Helper()
	for _, p := range r.parts {
		if p.erased {
			continue // its key went with it
		}
		again, created, err := r.c.send(ctx, p.session, p.key(), p.request())
		if err != nil {
			r.t.Fatal(err)
		}
		if created || again.ID != p.run.ID {
			r.t.Errorf("order %d: the key gives run %s (created: %t), want %s", p.order, again.ID, created, p.run.ID)
		}
	}
	if !r.story {
		return
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
