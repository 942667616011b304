package daemon_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// world is what outlives the daemon: the model, the services behind the tools,
// the receiver of answers.
type world struct {
	model                  *chatstub.Stub
	models, tools, hookSrv *httptest.Server

	// answer gives the model's answer to the step of the run with that order.
	// It runs on the vendor's side and may block.
	answer func(order, step int, req chatstub.Request) chatstub.Reply
	// effect, when set, is told of a tool call after its effect and before its
	// answer; it may block.
	effect func(tool, body string)
	// wrote, when set, is told of each part of an answer that the model has sent,
	// from 1; it may block.
	wrote func(req *http.Request, n int)
	// hook says how the receiver answers attempt n of a delivery, from 1:
	// a status, 0: it breaks the connection, -1: it never answers.
	hook func(path, id string, n int) int

	mu      sync.Mutex
	asked   map[int]int                // requests of each order
	effects map[string]int             // by tool and arguments
	keys    map[string]map[string]bool // idempotency keys seen, by tool and arguments
	done    map[string]bool            // keys whose effect happened
	hits    []hit
	faults  []string
	hung    chan struct{} // closed at the end: lets go of who was held
}

// hit is one message as the receiver saw it.
type hit struct {
	path, id string
	body     []byte
	answered int
}

func newWorld(t *testing.T) *world {
	w := &world{
		asked: map[int]int{}, effects: map[string]int{}, keys: map[string]map[string]bool{}, done: map[string]bool{},
		hung: make(chan struct{}),
	}
	w.model = chatstub.New(func(_ int, req chatstub.Request) chatstub.Reply {
		order, step := placeOf(req)
		w.mu.Lock()
		w.asked[order]++
		w.mu.Unlock()
		return w.answer(order, step, req)
	})
	w.models = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.model.ServeHTTP(&counted{ResponseWriter: rw, r: r, w: w}, r)
	}))
	w.tools = httptest.NewServer(http.HandlerFunc(w.serveTool))
	w.hookSrv = httptest.NewServer(http.HandlerFunc(w.serveHook))
	t.Cleanup(func() {
		close(w.hung)
		for _, s := range []*httptest.Server{w.models, w.tools, w.hookSrv} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	return w
}

// counted tells the world of each part that was sent.
type counted struct {
	http.ResponseWriter
	r *http.Request
	w *world
	n int
}

func (c *counted) FlushError() error {
	err := http.NewResponseController(c.ResponseWriter).Flush()
	c.n++
	if c.w.wrote != nil {
		c.w.wrote(c.r, c.n)
	}
	return err
}

func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

var orderForm = regexp.MustCompile(`order[": ]+(\d+)`)

// placeOf reads from a request alone whose turn it is: the last order that a
// user named, and how many answers stand behind it.
func placeOf(req chatstub.Request) (order, step int) {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		m := req.Messages[i]
		switch m.Role {
		case "assistant":
			step++
		case "user":
			if found := orderForm.FindAllStringSubmatch(m.Text(), -1); found != nil {
				order, _ = strconv.Atoi(found[len(found)-1][1])
				return order, step
			}
		}
	}
	return 0, step
}

// serveTool does a call: each one has its effect, save a repetition of a key.
func (w *world) serveTool(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller died while it sent
	}
	tool := path.Base(r.URL.Path)
	call, key := tool+" "+string(body), r.Header.Get("Idempotency-Key")
	w.mu.Lock()
	if key == "" || !w.done[key] {
		w.effects[call]++
	}
	if key != "" {
		w.done[key] = true
		if w.keys[call] == nil {
			w.keys[call] = map[string]bool{}
		}
		w.keys[call][key] = true
	}
	w.mu.Unlock()
	if w.effect != nil {
		w.effect(tool, string(body))
	}
	rw.Header().Set("Content-Type", "application/json")
	if tool == "fetch" { // more than the log holds in line
		fmt.Fprintf(rw, `{"ok":true,"text":%q,"tool":%q}`, largeOf(0, 1000), tool)
		return
	}
	fmt.Fprintf(rw, `{"ok":true,"tool":%q}`, tool)
}

// serveHook takes a message: it checks the signature over the raw bytes.
func (w *world) serveHook(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	secret, err := webhook.ParseSecret(crashSecret)
	if err == nil {
		err = webhook.Verify(r.Header, body, secret, time.Now(), 0)
	}
	id := r.Header.Get(webhook.HeaderID)
	w.mu.Lock()
	if err != nil {
		w.faults = append(w.faults, "delivery "+id+": "+err.Error())
	}
	n := 1
	for _, h := range w.hits {
		if h.id == id {
			n++
		}
	}
	status := http.StatusOK
	if w.hook != nil {
		status = w.hook(r.URL.Path, id, n)
	}
	w.hits = append(w.hits, hit{path: r.URL.Path, id: id, body: body, answered: status})
	w.mu.Unlock()
	switch status {
	case 0:
		panic(http.ErrAbortHandler)
	case -1:
		select {
		case <-r.Context().Done():
		case <-w.hung:
		}
	default:
		rw.WriteHeader(status)
	}
}

func (w *world) received() []hit {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]hit(nil), w.hits...)
}

func (w *world) askedFor(order int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[order]
}

// pause waits a short time on the side of the world, so that a kill at a
// random instant has something to fall into.
func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.hung:
	}
}

// config is the configuration of a daemon in this world.
func (w *world) config(change func(map[string]any)) map[string]any {
	schema := map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"order"},
		"properties": map[string]any{"order": map[string]any{"type": "number"}, "cents": map[string]any{"type": "number"}},
	}
	tool := func(name, level string, more map[string]any) map[string]any {
		m := map[string]any{
			"type": "http", "url": w.tools.URL + "/" + name, "side_effect": level, "input_schema": schema, "description": name,
		}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	c := map[string]any{
		"listen": "127.0.0.1:0", "data_dir": "data",
		"routes": map[string]any{"main": map[string]any{"provider": "openai_compatible", "model": "stub-1", "base_url": w.models.URL + "/v1",
			"capabilities": map[string]any{"images": true}}},
		"secrets": map[string]any{"hook": map[string]any{"env": envSecret}},
		"targets": map[string]any{"signing_secret": "hook", "allow_private": []string{"127.0.0.0/8"}},
		"tools": map[string]any{
			"think":  tool("think", "none", nil),
			"fetch":  tool("fetch", "read", nil),
			"wipe":   tool("wipe", "irreversible", map[string]any{"policy": "allow"}),
			"desk":   map[string]any{"type": "workspace", "root": "work", "allow": []string{"read_file", "write_file", "edit_file"}},
			"lookup": tool("lookup", "read", nil),
			"note":   tool("note", "write", map[string]any{"policy": "allow"}),
			"charge": tool("charge", "external_effect", map[string]any{"policy": "allow"}),
			"book":   tool("book", "external_effect", map[string]any{"policy": "allow", "idempotency_header": "Idempotency-Key"}),
		},
		"delivery": map[string]any{"initial_backoff": "10ms", "max_backoff": "50ms", "timeout": "5s", "max_attempts": 50, "circuit": map[string]any{"cooldown": "20ms", "max_cooldown": "100ms"}},
		"store":    map[string]any{"sync": "normal"}, // a killed process loses nothing that it wrote
		"shutdown": map[string]any{"drain": "5s"},
	}
	if change != nil {
		change(c)
	}
	return c
}

// quoted gives a text as JSON.
func quoted(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only what the tests wrote themselves comes here
	}
	return b
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }
