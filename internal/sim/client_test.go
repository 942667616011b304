package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// clients are the people and programs that use the nodes. What they know they
// know from answers; of what was refused they remember that it must not be there.
type clients struct {
	h *history

	mu       sync.Mutex
	made     int
	active   int
	sessions []*room
	keyed    []*keyed
	tasks    int
	refused  map[string]string // task → why it must not be in the log
	inLog    map[string]event.RunID
	follows  []*follower
	plans    []*bulk
	jobs     []string
}

// room is a session as clients know it.
type room struct {
	id string
}

// keyed is a submission under a key.
type keyed struct {
	s    *room
	key  string
	task string
	body []byte
	id   string // once acknowledged
}

// client is one of them, with one thing to do.
type client struct {
	h    *history
	name string
	r    *rand.Rand
}

func newClients(h *history) *clients {
	return &clients{h: h, refused: map[string]string{}, inLog: map[string]event.RunID{}}
}

// admitted is told of every run in the log.
func (cs *clients) admitted(id event.RunID, d *event.RunCreated) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	from := strings.Index(d.TextPreview, "task-")
	if from < 0 {
		return
	}
	task := d.TextPreview[from : from+strings.Index(d.TextPreview[from:], ".")+1]
	if why := cs.refused[task]; why != "" {
		cs.h.watch.note("I-07: the run %s is there although %s", id, why)
	}
	if other, ok := cs.inLog[task]; ok && d.Idempotency != nil {
		cs.h.watch.note("I-07: one key has the runs %s and %s", other, id)
	}
	cs.inLog[task] = id
}

// busy is how many are in the middle of something.
func (cs *clients) busy() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.active
}

// act lets one more client do what the seed says.
func (cs *clients) act(what func(*client)) {
	cs.mu.Lock()
	cs.made++
	cs.active++
	c := &client{h: cs.h, name: fmt.Sprintf("c%d", cs.made), r: rand.New(rand.NewPCG(cs.h.seed, uint64(cs.made)))}
	cs.mu.Unlock()
	cs.h.beside.Go(func() {
		what(c)
		cs.mu.Lock()
		defer cs.mu.Unlock()
		cs.active--
	})
}

// ask makes a request to some node. 0: the answer did not come.
func (c *client) ask(method, path, key string, body any) (int, []byte) {
	nodes := c.h.serving()
	if len(nodes) == 0 {
		return 0, nil
	}
	return c.askOf(nodes[c.r.IntN(len(nodes))], method, path, key, body)
}

func (c *client) askOf(n *node, method, path, key string, body any) (int, []byte) {
	raw, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			panic(err) // of our own types
		}
	}
	req := httptest.NewRequestWithContext(withLabel(context.Background(), c.name), method, path, bytes.NewReader(raw))
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	n.door.ServeHTTP(w, req)
	if n.gone() {
		return 0, nil
	}
	if w.Code >= 500 && w.Code != http.StatusServiceUnavailable && w.Code != http.StatusInsufficientStorage && !strings.Contains(w.Body.String(), "fault") && w.Code != http.StatusInternalServerError {
		c.h.watch.find("%s %s answers %d %s", method, path, w.Code, w.Body)
	}
	return w.Code, w.Body.Bytes()
}

func codeOf(body []byte) string {
	var p api.Problem
	_ = json.Unmarshal(body, &p)
	return p.Code
}

const (
	contractN = `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}`
	contractM = `{"type":"object","properties":{"m":{"type":"number"}},"required":["m"],"additionalProperties":false}`
	inputs    = `{"type":"object","properties":{"task":{"type":"string"}},"required":["task"],"additionalProperties":false}`
)

func (c *client) outputContract() *api.OutputContract {
	switch c.r.IntN(3) {
	case 0:
		return nil
	case 1:
		budget := c.r.IntN(6)
		return &api.OutputContract{Schema: api.Raw(contractN), MaxRepairAttempts: &budget}
	}
	return &api.OutputContract{Schema: api.Raw(contractM)}
}

func (c *client) createSession() {
	req := &api.CreateSession{OutputContract: c.outputContract(), MaxTurns: 1 + c.r.IntN(4), OnDoubt: []string{"", "continue"}[c.r.IntN(2)]}
	for i := range c.r.IntN(3) {
		req.ReplyTargets = append(req.ReplyTargets, api.ReplyTarget{Type: "webhook", URL: fmt.Sprintf("http://127.0.0.1:1/%d", i)})
	}
	if c.r.IntN(4) == 0 {
		req.InputContract = &api.InputContract{Schema: api.Raw(inputs)}
	}
	if c.r.IntN(3) == 0 {
		req.RoutePolicy = &api.RoutePolicy{Route: "other"}
	}
	status, body := c.ask("POST", "/v1/sessions", "", req)
	if status != http.StatusCreated {
		return
	}
	var s api.Session
	if err := json.Unmarshal(body, &s); err != nil {
		c.h.watch.find("create session: %v", err)
		return
	}
	cs := c.h.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.sessions = append(cs.sessions, &room{id: s.ID})
}

// some picks a session; nil while none is known.
func (c *client) some() *room {
	cs := c.h.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.sessions) == 0 {
		return nil
	}
	return cs.sessions[c.r.IntN(len(cs.sessions))]
}

// command is one thing that a client may do.
func (c *client) command() {
	s := c.some()
	if n := c.r.IntN(100); s == nil || n < 8 {
		c.createSession()
		return
	}
	at := "/v1/sessions/" + s.id
	switch n := c.r.IntN(100); {
	case n < 36:
		c.submit(s)
	case n < 50:
		c.h.clients.submitKeyed(c, s)
	case n < 58:
		c.h.clients.repeat(c)
	case n < 66:
		c.cancel()
	case n < 74:
		c.ask("POST", at+"/interrupt", "", api.StopRun{Reason: "stop"})
	case n < 82:
		c.resolve()
	case n < 87:
		if oc := c.outputContract(); oc == nil {
			c.ask("DELETE", at+"/output-contract", "", nil)
		} else {
			c.ask("PUT", at+"/output-contract", "", oc)
		}
	case n < 89:
		if c.r.IntN(2) == 0 {
			c.ask("DELETE", at+"/input-contract", "", nil)
		} else {
			c.ask("PUT", at+"/input-contract", "", api.InputContract{Schema: api.Raw(inputs)})
		}
	case n < 90:
		c.ask("DELETE", at, "", nil)
	case n < 91:
		c.ask("POST", at+"/close", "", map[string]string{"reason": "enough"})
	case n < 94:
		c.again()
	case n < 97:
		c.ask("POST", at+"/compact", "", nil)
	default:
		c.h.clients.follow(c, s)
	}
}

// request is a submission that no other equals; one that is not valid breaks
// the input contract, where there is one.
func (c *client) request(valid bool) (task string, body []byte) {
	cs := c.h.clients
	cs.mu.Lock()
	cs.tasks++
	task = fmt.Sprintf("task-%d.", cs.tasks)
	cs.mu.Unlock()
	text := fmt.Sprintf(`{"task":%q}`, task)
	if !valid {
		text = fmt.Sprintf(`{"task":%q,"more":1}`, task)
	}
	req := api.SubmitRun{Content: api.Text(text)}
	if c.r.IntN(6) == 0 {
		req.MaxTurns = 1 + c.r.IntN(3)
	}
	body, err := json.Marshal(&req)
	if err != nil {
		panic(err) // of our own types
	}
	return task, body
}

func (c *client) submit(s *room) {
	task, body := c.request(c.r.IntN(6) > 0)
	path := "/v1/sessions/" + s.id + "/runs"
	if c.r.IntN(6) == 0 {
		path += "?wait=5s"
	}
	status, answer := c.ask("POST", path, "", body)
	c.refusal(task, status, answer)
}

// refusal remembers what was refused: it leaves no run (I-07).
func (c *client) refusal(task string, status int, answer []byte) {
	// A run that was accepted may have ended, and its session may have been erased,
	// before it could be shown.
	if status < 400 || status >= 500 || codeOf(answer) == "session_erased" {
		return
	}
	c.h.count("refused " + codeOf(answer))
	cs := c.h.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.refused[task] = "it was refused: " + codeOf(answer)
	if id, ok := cs.inLog[task]; ok {
		c.h.watch.find("I-07: the run %s is there although it was refused: %s", id, answer)
	}
}

func (cs *clients) submitKeyed(c *client, s *room) {
	task, body := c.request(true)
	cs.mu.Lock()
	k := &keyed{s: s, key: fmt.Sprintf("key-%d", len(cs.keyed)), task: task, body: body}
	cs.keyed = append(cs.keyed, k)
	cs.mu.Unlock()
	if c.r.IntN(2) == 0 { // twice at once, on whatever nodes
		cs.act(func(c *client) { cs.send(c, k) })
	}
	cs.send(c, k)
}

// send submits under a key.
func (cs *clients) send(c *client, k *keyed) {
	status, answer := c.ask("POST", "/v1/sessions/"+k.s.id+"/runs", k.key, k.body)
	switch {
	case status == http.StatusOK, status == http.StatusAccepted:
		var run api.Run
		if err := json.Unmarshal(answer, &run); err != nil {
			c.h.watch.find("submit: %v", err)
			return
		}
		if status == http.StatusOK {
			c.h.count("known key")
		}
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if k.id != "" && k.id != run.ID {
			c.h.watch.find("I-07: the key %s has the runs %s and %s", k.key, k.id, run.ID)
		}
		k.id = run.ID
	case status == http.StatusConflict && codeOf(answer) == "idempotency_conflict":
		c.h.watch.find("I-07: an equal request under %s conflicts with itself: %s", k.key, answer)
	}
}

// repeat sends a submission under a key again, as it was or with other content.
func (cs *clients) repeat(c *client) {
	cs.mu.Lock()
	if len(cs.keyed) == 0 {
		cs.mu.Unlock()
		return
	}
	k := cs.keyed[c.r.IntN(len(cs.keyed))]
	known := k.id != ""
	cs.mu.Unlock()
	if !known || c.r.IntN(3) > 0 {
		cs.send(c, k)
		return
	}
	_, other := c.request(true)
	status, answer := c.ask("POST", "/v1/sessions/"+k.s.id+"/runs", k.key, other)
	switch {
	case status == http.StatusOK || status == http.StatusAccepted:
		c.h.watch.find("I-07: the key %s took another request: %s", k.key, answer)
	case status == http.StatusConflict:
		c.h.count("key conflict")
	}
}

// cancel ends a run that is not at its end, or one that is.
func (c *client) cancel() {
	w := c.h.watch
	w.mu.Lock()
	var open []string
	for id, r := range w.runs {
		if !r.ended {
			open = append(open, string(id))
		}
	}
	w.mu.Unlock()
	slices.Sort(open)
	if len(open) > 0 {
		c.ask("POST", "/v1/runs/"+open[c.r.IntN(len(open))]+"/cancel", "", api.StopRun{Reason: "enough"})
	}
}

// resolve gives a person's word on calls in doubt.
func (c *client) resolve() {
	doubts := c.h.watch.doubts()
	ids := make([]event.RunID, 0, len(doubts))
	for id := range doubts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		for _, call := range doubts[id] {
			c.ask("POST", "/v1/runs/"+string(id)+"/attention", "", api.ResolveAttention{
				CallID: string(call.CallID), Resolution: []string{"completed", "failed", "retry"}[c.r.IntN(3)],
				Output: strings.Repeat("seen ", 1+c.r.IntN(8)/7*4000), Reason: "I looked",
			})
		}
	}
}

// receiver pauses a target, resumes it or closes its circuit; in the end all are
// resumed.
func (c *client) receiver() {
	w := c.h.watch
	w.mu.Lock()
	var ids []string
	for s := range w.streams {
		if id, ok := s.Target(); ok && (!c.h.calm || w.paused[s]) {
			ids = append(ids, string(id))
		}
	}
	w.mu.Unlock()
	slices.Sort(ids)
	if len(ids) == 0 {
		return
	}
	what := []string{"pause", "resume", "resume", "reset"}[c.r.IntN(4)]
	if c.h.calm {
		what = "resume"
	}
	c.ask("POST", "/v1/targets/"+ids[c.r.IntN(len(ids))]+"/"+what, "", api.ChangeTarget{Reason: "I looked"})
}

// meddle is a person's word on a receiver that is being sent something: mostly it
// comes to the log before the outcome of that attempt.
func (c *client) meddle() {
	ids, _ := c.h.watch.flying()
	if len(ids) == 0 {
		return
	}
	what := []string{"pause", "reset", "reset"}[c.r.IntN(3)]
	c.h.count("meddled: " + what)
	c.ask("POST", "/v1/targets/"+string(ids[c.r.IntN(len(ids))])+"/"+what, "", api.ChangeTarget{Reason: "I looked"})
}

// again replays a delivery, or says that it is done with.
func (c *client) again() {
	w := c.h.watch
	w.mu.Lock()
	var ids []string
	for id := range w.lanes {
		ids = append(ids, string(id))
	}
	w.mu.Unlock()
	slices.Sort(ids)
	if len(ids) == 0 {
		return
	}
	at := "/v1/deliveries/" + ids[c.r.IntN(len(ids))]
	if c.r.IntN(3) == 0 {
		c.receiver()
		return
	}
	if c.r.IntN(3) == 0 {
		c.ask("POST", at+"/resolve", "", api.ResolveDelivery{Reason: "done with"})
		return
	}
	c.ask("POST", at+"/replay", "", api.ReplayDelivery{Force: c.r.IntN(2) == 0, Reason: "I looked"})
}

// follower reads a session's stream over the lives of nodes (I-17, I-18).
type follower struct {
	c      *client
	s      *room
	ctx    context.Context
	end    context.CancelFunc
	header http.Header
	buf    []byte

	mu     sync.Mutex
	last   int64
	synced int // in this connection
}

// maxFollowers bounds those of one history.
const maxFollowers = 2

func (cs *clients) follow(c *client, s *room) {
	cs.mu.Lock()
	// One of each session: which of two reads for both is chance.
	if len(cs.follows) == maxFollowers || slices.ContainsFunc(cs.follows, func(f *follower) bool { return f.s.id == s.id }) {
		cs.mu.Unlock()
		return
	}
	f := &follower{c: c, s: s}
	f.ctx, f.end = context.WithCancel(withLabel(context.Background(), c.name))
	cs.follows = append(cs.follows, f)
	cs.mu.Unlock()
	cs.h.beside.Go(f.run)
}

func (f *follower) run() {
	for f.ctx.Err() == nil {
		nodes := f.c.h.serving()
		if len(nodes) > 0 {
			n := nodes[f.c.r.IntN(len(nodes))]
			req := httptest.NewRequestWithContext(f.ctx, "GET", "/v1/sessions/"+f.s.id+"/stream", nil)
			f.mu.Lock()
			if f.last > 0 {
				req.Header.Set("Last-Event-ID", fmt.Sprint(f.last))
			}
			f.header, f.buf, f.synced = http.Header{}, nil, 0
			f.mu.Unlock()
			n.door.ServeHTTP(f, req)
		}
		select {
		case <-f.ctx.Done():
		case <-time.After(time.Duration(500+f.c.r.IntN(1000)) * time.Millisecond):
		}
	}
}

func (f *follower) Header() http.Header { return f.header }
func (f *follower) WriteHeader(int)     {}
func (f *follower) Flush()              {}

// Write takes a piece of the stream.
func (f *follower) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf, p...)
	for {
		frame, rest, ok := bytes.Cut(f.buf, []byte("\n\n"))
		if !ok {
			return len(p), nil
		}
		f.buf = rest
		f.frame(string(frame))
	}
}

func (f *follower) frame(text string) {
	var kind, id, data string
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			kind = value
		case "id":
			id = value
		case "data":
			data = value
		}
	}
	w := f.c.h.watch
	switch {
	case kind == "", kind == "problem":
	case id != "":
		f.last++
		if id != fmt.Sprint(f.last) {
			w.find("I-18: a follower of %s got event %s behind %d", f.s.id, id, f.last-1)
		}
		w.mu.Lock()
		st := w.streams[event.SessionID(f.s.id).Stream()]
		known := st != nil && int64(len(st.hashes)) >= f.last && st.hashes[f.last-1].String() != "" && strings.Contains(data, st.hashes[f.last-1].String())
		w.mu.Unlock()
		if !known {
			w.find("I-18: a follower of %s got an event %d that is not the log's: %.200s", f.s.id, f.last, data)
		}
		f.c.h.count("followed")
	case kind == "synced":
		if f.synced++; f.synced > 1 {
			w.find("I-18: a follower of %s got two synced markers", f.s.id)
		}
	case kind == "text.delta":
		var d api.Delta
		if err := json.Unmarshal([]byte(data), &d); err != nil {
			w.find("I-17: a delta reads %.200s", data)
			return
		}
		f.c.h.count("delta seen")
		world := f.c.h.world
		world.mu.Lock()
		why, known := world.deltas[d.Text]
		world.mu.Unlock()
		if !known {
			w.find("I-17: a delta that the model never gave: %.200s", data)
		}
		if why != "" && strings.Contains(d.Text, "answer") {
			w.find("I-11: a delta of %s was shown, although of its node %s", f.s.id, why)
		}
	}
}
