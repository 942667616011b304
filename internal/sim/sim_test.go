package sim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

var (
	seedFlag = flag.Int64("seed", 0, "first seed of the histories; 0: the short set")
	runsFlag = flag.Int("runs", 1, "how many histories, with ascending seeds")
)

// once are seeds whose history broke an invariant once, each with what it found.
var once = map[int64]string{}

// TestHistories plays histories of the whole house: commands, faults, crashes
// at any append and behind it, restarts; then the world calms down and every
// run and delivery must come to its end, with all invariants held on the way.
//
// `go test ./internal/sim -seed=N -runs=M` plays others.
func TestHistories(t *testing.T) {
	var seeds []int64
	if *seedFlag != 0 {
		for i := range *runsFlag {
			seeds = append(seeds, *seedFlag+int64(i))
		}
	} else {
		for i := range int64(16) {
			seeds = append(seeds, i+1)
		}
		for seed := range once {
			seeds = append(seeds, seed)
		}
	}
	total := tally{}
	for _, seed := range seeds {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, seed, total) })
		})
		if !ok {
			t.Errorf("failing seed: %d", seed)
		}
	}
	t.Logf("%d histories: %v", len(seeds), total)
	for _, what := range []string{"run completed", "run failed", "run cancelled", "run interrupted", "needs attention", "crash before commit",
		"crash behind commit", "stop in order", "delivered", "dead-lettered", "refused", "known key", "key conflict", "repair", "tool retried", "snapshot saved", "snapshot loaded"} {
		if *seedFlag == 0 && total[what] == 0 {
			t.Errorf("no history had: %s", what) // a world in which nothing happens proves nothing
		}
	}
}

// tally counts what happened, over all histories.
type tally map[string]int

// history is one seeded life of a house and its world.
type history struct {
	t      *testing.T
	w      *world
	r      *rand.Rand
	dir    string
	chance *chance
	life   *life
	lives  int
	seen   tally

	sessions []*room
	keyed    []*keyed
	tags     int
	refused  map[string]string // task → why it must not be in the log
}

// room is a session and who owns it.
type room struct {
	id    event.SessionID
	user  string
	typed bool // has an input contract, as far as the client knows
}

// keyed is a submission under a key.
type keyed struct {
	s   *room
	key string
	req *api.SubmitRun
	id  event.RunID // once acknowledged
}

func play(t *testing.T, seed int64, seen tally) {
	h := &history{
		t: t, w: newWorld(seed), r: rand.New(rand.NewPCG(uint64(seed), 7)), dir: t.TempDir(), seen: seen, refused: map[string]string{},
		chance: &chance{src: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})},
	}
	h.begin()
	for range 2 + h.r.IntN(3) {
		h.createSession()
	}
	for range 25 + h.r.IntN(40) {
		select {
		case <-time.After(time.Duration(h.r.IntN(2500)) * time.Millisecond):
			if h.r.IntN(40) == 0 {
				h.stopInOrder()
			} else {
				h.command()
			}
		case <-h.life.faults.crashed:
			h.crash()
		}
	}
	h.settle()
	h.check(true)
	h.erase()
	h.life.stop(t, context.Background())
	for _, f := range h.w.found {
		t.Errorf("seed %d: %s", seed, f)
	}
}

// fatal is how many lives of a history may end in a crash.
const fatal = 6

// begin opens the next life, with its own fate.
func (h *history) begin() {
	h.lives++
	h.tallySnapshots()
	crashAt := 0
	if h.lives <= fatal {
		crashAt = 1 + h.r.IntN(60)
	}
	rate := []int{0, 0, 5, 40}[h.r.IntN(4)]
	h.life = open(h.t, h.w, h.dir, fmt.Sprintf("life_%d", h.lives), h.chance, h.r.Uint64(), crashAt, rate, h.r.IntN(2) == 0)
	h.life.start(h.t)
}

// tallySnapshots counts the snapshots of the life that ended.
func (h *history) tallySnapshots() {
	if h.life == nil {
		return
	}
	h.life.faults.mu.Lock()
	defer h.life.faults.mu.Unlock()
	h.seen["snapshot saved"] += h.life.faults.saved
	h.seen["snapshot loaded"] += h.life.faults.loaded
}

func (h *history) crash() {
	if h.life.faults.behind {
		h.seen["crash behind commit"]++
	} else {
		h.seen["crash before commit"]++
	}
	h.life.kill(h.t)
	h.again()
}

func (h *history) stopInOrder() {
	h.seen["stop in order"]++
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(h.r.IntN(8))*time.Second)
	defer cancel()
	h.life.stop(h.t, ctx)
	h.again()
}

// again opens the next life behind one that ended, and looks at the log as it is.
func (h *history) again() {
	h.begin()
	h.check(false)
	for _, k := range h.keyed { // clients that got no answer ask again
		if k.id == "" && h.r.IntN(2) == 0 {
			h.submitKeyed(k)
		}
	}
}

func (h *history) caller(s *room) admission.Caller {
	return admission.Caller{Actor: "sim", UserID: s.user}
}

// took says whether a command was done; a refusal must be one that clients
// know, or a fault that was put in.
func (h *history) took(what string, err error) bool {
	var p *problem.Error
	switch {
	case err == nil:
		return true
	case errors.As(err, &p), errors.Is(err, errFault), errors.Is(err, eventlog.ErrClosed), errors.Is(err, context.DeadlineExceeded):
	default:
		h.w.find("%s: %v", what, err)
	}
	return false
}

const (
	contractN = `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}`
	contractM = `{"type":"object","properties":{"m":{"type":"number"}},"required":["m"],"additionalProperties":false}`
	inputs    = `{"type":"object","properties":{"task":{"type":"string"}},"required":["task"],"additionalProperties":false}`
)

func (h *history) outputContract() *api.OutputContract {
	switch h.r.IntN(3) {
	case 0:
		return nil
	case 1:
		budget := h.r.IntN(7)
		return &api.OutputContract{Schema: api.Raw(contractN), MaxRepairAttempts: &budget}
	}
	return &api.OutputContract{Schema: api.Raw(contractM)}
}

func (h *history) createSession() {
	s := &room{user: []string{"ann", "bob"}[h.r.IntN(2)]}
	req := &api.CreateSession{OutputContract: h.outputContract(), MaxTurns: 1 + h.r.IntN(4), OnDoubt: []string{"", "continue"}[h.r.IntN(2)]}
	for i := range h.r.IntN(3) {
		req.ReplyTargets = append(req.ReplyTargets, api.ReplyTarget{Type: "webhook", URL: fmt.Sprintf("http://%d.test/", i)})
	}
	if s.typed = h.r.IntN(3) == 0; s.typed {
		req.InputContract = &api.InputContract{Schema: api.Raw(inputs)}
	}
	id, err := h.life.adm.CreateSession(h.t.Context(), h.caller(s), req)
	if h.took("create session", err) {
		s.id = id
		h.sessions = append(h.sessions, s)
	}
}

// command does one thing that a client may do.
func (h *history) command() {
	if len(h.sessions) == 0 {
		h.createSession()
		return
	}
	s := h.sessions[h.r.IntN(len(h.sessions))]
	ctx := h.t.Context()
	switch n := h.r.IntN(100); {
	case n < 40:
		h.submit(s)
	case n < 52:
		k := &keyed{s: s, key: fmt.Sprintf("key-%d", len(h.keyed)), req: h.request(s, true)}
		h.keyed = append(h.keyed, k)
		h.submitKeyed(k)
	case n < 60 && len(h.keyed) > 0:
		h.repeat(h.keyed[h.r.IntN(len(h.keyed))])
	case n < 68:
		h.cancel(s)
	case n < 76:
		if row, err := h.life.adm.Find(ctx, h.caller(s), string(s.id), ""); h.took("find", err) {
			_, err = h.life.adm.Interrupt(ctx, h.caller(s), row, "stop")
			h.took("interrupt", err)
		}
	case n < 86:
		h.resolve(false)
	case n < 91:
		if change, err := h.life.adm.SetOutputContract(h.outputContract()); h.took("contract", err) {
			h.took("update", h.life.adm.Update(ctx, h.caller(s), s.id, change))
		}
	case n < 94:
		h.inputContract(s)
	case n < 95:
		if row, err := h.life.adm.Find(ctx, h.caller(s), string(s.id), ""); h.took("find", err) {
			h.took("close", h.life.adm.Close(ctx, h.caller(s), row, "enough"))
		}
	default:
		h.replay()
	}
}

func (h *history) inputContract(s *room) {
	var req *api.InputContract
	if !s.typed {
		req = &api.InputContract{Schema: api.Raw(inputs)}
	}
	change, err := h.life.adm.SetInputContract(req)
	if h.took("contract", err) && h.took("update", h.life.adm.Update(h.t.Context(), h.caller(s), s.id, change)) {
		s.typed = req != nil
	}
}

// request is a submission that no other equals.
func (h *history) request(s *room, valid bool) *api.SubmitRun {
	h.tags++
	req := &api.SubmitRun{Content: api.Text(fmt.Sprintf(`{"task":"task-%d."}`, h.tags))}
	if !valid {
		req.Content = api.Text(fmt.Sprintf(`{"task":"task-%d.","more":1}`, h.tags))
	}
	if h.r.IntN(6) == 0 {
		req.MaxTurns = 1 + h.r.IntN(3)
	}
	return req
}

func (h *history) submit(s *room) {
	row, err := h.life.adm.Find(h.t.Context(), h.caller(s), string(s.id), "")
	if !h.took("find", err) {
		return
	}
	valid := h.r.IntN(6) > 0
	tag := fmt.Sprintf("task-%d.", h.tags+1)
	_, _, err = h.life.adm.Submit(h.t.Context(), h.caller(s), row, h.request(s, valid), "")
	h.took("submit", err)
	switch {
	case problem.Is(err, admission.CodeInputContract): // I-07
		h.seen["refused"]++
		h.refused[tag] = "it broke the input contract"
	case problem.Is(err, "session_closed"):
		h.refused[tag] = "the session was closed"
	case err == nil && !valid && row.InputContract != "":
		if now, ferr := h.life.adm.Find(h.t.Context(), h.caller(s), string(s.id), ""); ferr == nil && now.SettingsVersion == row.SettingsVersion {
			h.w.find("I-07: %s breaks the input contract and was admitted", tag)
		}
	}
}

func (h *history) submitKeyed(k *keyed) {
	row, err := h.life.adm.Find(h.t.Context(), h.caller(k.s), string(k.s.id), "")
	if !h.took("find", err) {
		return
	}
	id, created, err := h.life.adm.Submit(h.t.Context(), h.caller(k.s), row, k.req, k.key)
	if !h.took("submit", err) {
		if k.id != "" && problem.Is(err, "idempotency_conflict") {
			h.w.find("I-07: an equal request conflicts with itself: %v", err)
		}
		return
	}
	if k.id != "" && (id != k.id || created) {
		h.w.find("I-07: the key %s has the runs %s and %s (created %v)", k.key, k.id, id, created)
	}
	if !created {
		h.seen["known key"]++
	}
	k.id = id
}

// repeat sends a submission again, as it was or with another content.
func (h *history) repeat(k *keyed) {
	if h.r.IntN(3) > 0 || k.id == "" {
		h.submitKeyed(k)
		return
	}
	row, err := h.life.adm.Find(h.t.Context(), h.caller(k.s), string(k.s.id), "")
	if !h.took("find", err) {
		return
	}
	_, _, err = h.life.adm.Submit(h.t.Context(), h.caller(k.s), row, h.request(k.s, true), k.key)
	if h.took("submit", err) {
		h.w.find("I-07: the key %s took another request", k.key)
	}
	if problem.Is(err, "idempotency_conflict") {
		h.seen["key conflict"]++
	}
}

func (h *history) runsOf(s *room, status string) []eventlog.RunRow {
	rows, _, err := h.life.store.Runs(h.t.Context(), eventlog.RunFilter{SessionID: s.id, Status: status}, eventlog.Page{Limit: 500})
	if err != nil {
		h.t.Fatal(err)
	}
	return rows
}

func (h *history) cancel(s *room) {
	rows := h.runsOf(s, []string{"", session.StatusRunning, session.StatusNeedsAttention}[h.r.IntN(3)])
	if len(rows) == 0 {
		return
	}
	row := rows[h.r.IntN(min(4, len(rows)))]
	h.took("cancel", h.life.adm.Cancel(h.t.Context(), h.caller(s), row, "enough"))
}

// resolve gives a person's word on calls in doubt: on one, or on all.
func (h *history) resolve(all bool) {
	for _, s := range h.sessions {
		for _, row := range h.runsOf(s, session.StatusNeedsAttention) {
			h.seen["needs attention"]++
			waiting, err := row.Waiting()
			if err != nil { // empty: every word is said, and the owner has not heard it yet
				h.w.find("the run %s waits on %q: %v", row.ID, row.WaitingOn, err)
			}
			for _, w := range waiting {
				id := w.CallID
				res := []string{"completed", "failed", "retry"}[h.r.IntN(3)]
				h.took("resolve", h.life.adm.Attention(h.t.Context(), h.caller(s), row, &api.ResolveAttention{
					CallID: string(id), Resolution: res, Output: strings.Repeat("seen ", 1+h.r.IntN(2)*4000), Reason: "I looked",
				}))
				if !all && h.r.IntN(2) == 0 {
					break
				}
			}
		}
	}
}

func (h *history) replay() {
	rows, _, err := h.life.store.Deliveries(h.t.Context(), eventlog.DeliveryFilter{}, eventlog.Page{Limit: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	if len(rows) > 0 {
		h.took("replay", h.life.adm.Replay(h.t.Context(), admission.Caller{}, rows[h.r.IntN(len(rows))], &api.ReplayDelivery{Force: h.r.IntN(2) == 0}))
	}
}

// settle calms the world and waits until nothing is left to do.
func (h *history) settle() {
	h.life.faults.calm()
	synctest.Wait() // the last crash may just happen
	select {
	case <-h.life.faults.crashed:
		h.lives = max(h.lives, fatal) // the next life has no such fate
		h.crash()
		h.life.faults.calm()
	default:
	}
	h.w.mu.Lock()
	h.w.calm = true
	h.w.mu.Unlock()
	ctx := h.t.Context()
	for _, s := range h.sessions { // a last word to each, behind which nothing wakes it
		h.submit(s)
		<-time.After(time.Duration(h.r.IntN(9000)) * time.Millisecond)
		if row, err := h.life.adm.Find(ctx, h.caller(s), string(s.id), ""); h.took("find", err) {
			_, err = h.life.adm.Interrupt(ctx, h.caller(s), row, "the last word")
			h.took("interrupt", err)
		}
	}
	for range 300 {
		synctest.Wait()
		sessions, err := h.life.store.Unfinished(ctx)
		targets, terr := h.life.store.PendingTargets(ctx)
		if err := errors.Join(err, terr); err != nil {
			h.t.Fatal(err)
		}
		if len(sessions)+len(targets) == 0 {
			return
		}
		h.resolve(true)
		<-time.After(time.Minute)
	}
	for _, s := range h.sessions {
		for _, row := range h.runsOf(s, "") {
			if !session.Terminal(row.Status) {
				h.w.find("the run %s is stuck: %s %s", row.ID, row.Status, row.WaitingOn)
			}
		}
	}
	h.w.find("something is stuck; the last words of the rooms were\n%s", h.w.log.tail())
}
