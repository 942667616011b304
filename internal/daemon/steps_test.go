package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Every request of every dialect says which session it is of, the same over a
// restart: in headers, and as the key or the marks of the vendor's cache where
// the vendor takes those. A route that is told not to says nothing of it.
func TestDialectsSession(t *testing.T) {
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) {
			c := newCast(t, "found")
			c.plays[v.name] = []said{calls("a"), {text: "one"}, {text: "two"}}
			s := c.session(&api.CreateSession{})
			for i := range 2 {
				if r := c.submit(s, &api.SubmitRun{Content: api.Text("go"), Route: v.name}); r.Status != api.RunCompleted {
					t.Fatalf("%s %+v", r.Status, r.Error)
				}
				if i == 0 {
					c.restart()
				}
			}
			bodies := c.requests[v.name]()
			if len(bodies) != 3 || len(c.headers[v.name]) != 3 {
				t.Fatalf("%d requests", len(bodies))
			}
			for i, h := range c.headers[v.name] {
				if h.Get("x-session-affinity") != s || h.Get("X-Session-Id") != s || h.Values("x-parent-session-id") != nil {
					t.Errorf("request %d: %v", i, h)
				}
				key := bytes.Contains(bodies[i], []byte(`"prompt_cache_key":"`+s+`"`))
				marks := bytes.Contains(bodies[i], []byte(`"cache_control":{"type":"ephemeral"}`))
				if key != (v.name == "openai") || marks != (v.name == "anthropic") || bytes.Contains(bodies[i], []byte("prompt_cache_key")) != key {
					t.Errorf("request %d: key %v, marks %v", i, key, marks)
				}
			}
		})
		t.Run(v.name+", nameless", func(t *testing.T) {
			c := newCastOf(t, "found", ", send_session_id: false")
			c.plays[v.name] = []said{calls("a"), {text: "one"}}
			s := c.session(&api.CreateSession{})
			if r := c.submit(s, &api.SubmitRun{Content: api.Text("go"), Route: v.name}); r.Status != api.RunCompleted {
				t.Fatalf("%s %+v", r.Status, r.Error)
			}
			var all bytes.Buffer
			for _, h := range c.headers[v.name] {
				_ = h.Write(&all)
			}
			for _, body := range c.requests[v.name]() {
				all.Write(body)
			}
			id := strings.TrimPrefix(s, "ses_")
			if text := strings.ToLower(all.String()); strings.Contains(text, id) || strings.Contains(text, "x-session") || strings.Contains(text, "prompt_cache_key") || id == "" {
				t.Errorf("the session's id goes out: %s", text)
			}
		})
	}
}

// C24, I-13, I-19, I-20: a stream that breaks in the middle of a text, and one
// that breaks in a call behind a text, are tried again. Every strict vendor
// takes the request that shows what had come; the answer is that of the attempt
// that was whole, and what broke is in no later request.
func TestDialectsCutStream(t *testing.T) {
	each(t, "found", func(t *testing.T, c *cast, route string) {
		begun := calls("b")
		begun.text = "I look once more, for I forgot"
		c.plays[route] = []said{calls("a"), begun, {text: "What I saw is a tree, and what I heard is a bird"}, {text: "A tree."}, {text: "A bird."}}
		c.cut = func(_ string, n int) string {
			switch n {
			case 1:
				return "forgot"
			case 2:
				return "bird"
			}
			return ""
		}
		s := c.session(&api.CreateSession{})
		r := c.submit(s, &api.SubmitRun{Content: api.Text("What is there?"), Route: route})
		if r.Status != api.RunCompleted || r.Outputs[0].Content != "A tree." || c.called.Load() != 1 {
			t.Fatalf("%s %+v %+v after %d calls", r.Status, r.Error, r.Outputs, c.called.Load())
		}
		c.restart()
		if r = c.submit(s, &api.SubmitRun{Content: api.Text("And?"), Route: route}); r.Status != api.RunCompleted || r.Outputs[0].Content != "A bird." {
			t.Fatalf("%s %+v %+v", r.Status, r.Error, r.Outputs)
		}
		note := strings.SplitAfter(session.NoteCut, ".")[0]
		shown := 0
		for i, body := range c.requests[route]() {
			has := bytes.Contains(body, []byte(note))
			if i != 2 && i != 3 && (has || bytes.Contains(body, []byte("once more")) || bytes.Contains(body, []byte("What I saw"))) {
				t.Errorf("request %d: %s", i, body)
			}
			if has {
				shown++
			}
		}
		if len(c.requests[route]()) != 5 || shown == 0 {
			t.Errorf("%d requests, %d of them with what had come", len(c.requests[route]()), shown)
		}
	})
}

// list gives the messages of a request in the vendor's words, and the rest of
// it. The marks of a cache move, and are not what a cache compares.
func list(t *testing.T, route string, body []byte) (messages []json.RawMessage, rest map[string]json.RawMessage) {
	t.Helper()
	body = bytes.ReplaceAll(body, []byte(`,"cache_control":{"type":"ephemeral"}`), nil)
	if err := json.Unmarshal(body, &rest); err != nil {
		t.Fatal(err)
	}
	name := map[string]string{"chat": "messages", "openai": "input", "anthropic": "messages", "gemini": "contents"}[route]
	if err := json.Unmarshal(rest[name], &messages); err != nil {
		t.Fatal(err)
	}
	delete(rest, name)
	return messages, rest
}

// The requests of a session extend each other, byte for byte, over turns, runs,
// retries and restarts: that is what vendors' caches hit on. Only what is said
// about a step stands behind that, and vanishes with it.
func TestDialectsStablePrefix(t *testing.T) {
	each(t, "found", func(t *testing.T, c *cast, route string) {
		think := calls("a", "b")
		think.think, think.text = true, "I look"
		var plays []said
		for range 6 {
			plays = append(plays, think, calls("c"))
		}
		whole := len(plays) // the first run ends here
		plays = append(plays, said{text: "a whole answer of the first run"}, think, said{text: "begun, but broken off"}, said{text: "whole"}, calls("d"), said{text: "last"})
		cut, last := whole+2, whole+5 // an attempt that breaks; the last step of a run
		c.plays[route] = plays
		c.cut = func(_ string, n int) string {
			if n == cut {
				return "off"
			}
			return ""
		}
		s := c.session(&api.CreateSession{Instructions: "Be brief."})
		for i, turns := range []int{0, 0, 2} {
			r := c.submit(s, &api.SubmitRun{Content: api.Text(fmt.Sprint("task ", i)), Route: route, MaxTurns: turns})
			if r.Status != api.RunCompleted {
				t.Fatalf("run %d: %s %+v", i, r.Status, r.Error)
			}
			c.restart()
		}
		bodies := c.requests[route]()
		if len(bodies) != len(plays) {
			t.Fatalf("%d requests, want %d", len(bodies), len(plays))
		}
		before, rest := list(t, route, bodies[0])
		for i, body := range bodies[1:] {
			i++
			now, nowRest := list(t, route, body)
			for name, value := range rest {
				if !bytes.Equal(value, nowRest[name]) && i != last {
					t.Errorf("request %d: %s was %s and is %s", i, name, value, nowRest[name])
				}
			}
			stable := len(before)
			if i == cut+2 { // the two messages about the broken attempt are gone
				stable -= 2
			}
			if len(now) <= stable || !slices.EqualFunc(before[:stable], now[:stable], func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("request %d:\n%s\nis not the beginning of request %d:\n%s", i-1, before, i, now)
			}
			if tail := bytes.Contains(now[len(now)-1], []byte("This is the last step")); tail != (i == last) {
				t.Errorf("request %d: the last step is told: %v", i, tail)
			}
			before = now
		}
	})
}
