package engine_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/anthropic"
	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// C24: where a stream ends decides whether it was an answer. What was cut is
// tried again, and nothing of it is the answer.
func TestC24(t *testing.T) {
	var c struct {
		Input struct {
			Variants []struct{ Name, Body, Expect string }
		}
	}
	fieldCase(t, "C24", &c)
	for _, v := range c.Input.Variants {
		t.Run(v.Name, func(t *testing.T) {
			first := stream(v.Body)
			first.hold = v.Name == "open_socket_after_done"
			before(t, "openai_compatible", func(f *field) {
				f.status(f.id, "completed")
				if strings.HasPrefix(v.Expect, "complete") {
					if f.answer() != "Hello" || f.v.asked() != 1 || f.took > 2*time.Second {
						t.Errorf("%q after %d requests and %s", f.answer(), f.v.asked(), f.took)
					}
					return
				}
				if f.answer() != "whole" || f.v.asked() != 2 || fmt.Sprint(f.failures()) != "[truncated]" || f.read.runs() != 0 {
					t.Errorf("%q after %d requests, failures %v, %d calls", f.answer(), f.v.asked(), f.failures(), f.read.runs())
				}
				texts := all[*event.TextEnded](f.house, f.s)
				said := strings.Contains(v.Body, "Hel")
				if shown := bytes.Contains(f.v.bodies[1], []byte("Your message broke off here")); shown != said || said != (len(texts) == 2 && texts[0].Partial) {
					t.Errorf("the next attempt is shown what had come: %v; texts %+v", shown, texts)
				}
			}, first, stream(whole["openai_compatible"]))
		})
	}
}

// C27: an error inside a stream of status 200 is an error: its words are kept,
// its class decides, and "Part" is nobody's answer.
func TestC27(t *testing.T) {
	var c struct {
		Input struct {
			Variants []struct{ Name, Dialect, Body string }
		}
		Expected struct{ Class map[string]string }
	}
	fieldCase(t, "C27", &c)
	classes := map[string]llm.Class{"server_transient": llm.Server, "provider_error": llm.UnknownClass, "rate_limited": llm.RateLimit, "overloaded": llm.Overloaded}
	for _, v := range c.Input.Variants {
		t.Run(v.Name, func(t *testing.T) {
			want := classes[c.Expected.Class[v.Name]]
			before(t, v.Dialect, func(f *field) { // for ever
				row := f.run(f.id)
				if row.Status != "failed" || row.ErrorCode != "model_"+string(want) || f.v.asked() != 5 || f.answer() != "" || len(row.ErrorMessage) < 5 {
					t.Errorf("%s %s (%s) after %d requests", row.Status, row.ErrorCode, row.ErrorMessage, f.v.asked())
				}
				if len(all[*event.StepEnded](f.house, f.s)) != 0 {
					t.Error("the step has ended well")
				}
			}, stream(v.Body))
			before(t, v.Dialect, func(f *field) { // once
				f.status(f.id, "completed")
				if f.answer() != "whole" || f.v.asked() != 2 {
					t.Errorf("%q after %d requests", f.answer(), f.v.asked())
				}
			}, stream(v.Body), wholeOf(v.Dialect))
		})
	}
}

// C28: what gateways answer instead of a model. No page gets into the log.
func TestC28(t *testing.T) {
	page := "<!doctype html><title>Sign in</title>" + strings.Repeat("<p>secret page</p>", 1000)
	good := `{"choices":[{"index":0,"message":{"role":"assistant","content":"fine"},"finish_reason":"stop"}]}`
	for name, row := range map[string]struct {
		status      int
		media, body string
		asked       int
		code        string // of the run; "": it completes
	}{
		"an error in a 200": {200, "application/json", `{"error":{"message":"limit reached","code":502}}`, 2, ""},
		"a sign-in page":    {200, "text/html", page, 1, "model_invalid_request"},
		"a gateway's page":  {502, "text/html", "<html><body>502 nginx</body></html>", 2, ""},
		"nothing":           {200, "application/json", "", 2, ""},
		"JSON as text":      {200, "text/plain", good, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			first := reply{status: row.status, media: row.media, body: func() io.Reader { return strings.NewReader(row.body) }}
			before(t, "openai_compatible", func(f *field) {
				if got := f.run(f.id); f.v.asked() != row.asked || got.ErrorCode != row.code || (row.code == "") != (got.Status == "completed") {
					t.Errorf("%s %s (%s) after %d requests", got.Status, got.ErrorCode, got.ErrorMessage, f.v.asked())
				}
				if name == "a sign-in page" && !strings.Contains(f.run(f.id).ErrorMessage, "text/html") {
					t.Errorf("the message does not name the content type: %q", f.run(f.id).ErrorMessage)
				}
				for _, e := range f.events(f.s.Stream()) {
					if bytes.Contains(e.Raw, []byte("<p>")) || bytes.Contains(e.Raw, []byte("<html")) || len(e.Raw) > 4<<10 {
						t.Errorf("%s of %d bytes holds the page", e.Type, len(e.Raw))
					}
				}
			}, first, stream(whole["openai_compatible"]))
		})
	}
}

// C29: comments and events without data are signs of life and no content.
func TestC29(t *testing.T) {
	noise := strings.Repeat(": PROCESSING\n\n", 3) + "id: 7\nretry: 1000\n\n"
	before(t, "openai_compatible", func(f *field) {
		f.status(f.id, "completed")
		if f.answer() != "hello" || f.v.asked() != 1 || len(all[*event.TextEnded](f.house, f.s)) != 1 {
			t.Errorf("%q after %d requests", f.answer(), f.v.asked())
		}
	}, stream(noise+"data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hel\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
	before(t, "openai_compatible", func(f *field) {
		if d := all[*event.ModelCallFailed](f.house, f.s); f.answer() != "whole" || len(d) != 1 || d[0].Code != "empty_reply" || d[0].Output {
			t.Errorf("%q, %+v", f.answer(), d)
		}
	}, stream(noise), stream(whole["openai_compatible"]))
	// Comments for an hour, each within the idle limit: the whole attempt has a limit too.
	alive := reply{media: "text/event-stream", body: func() io.Reader { return beats{} }}
	before(t, "openai_compatible", func(f *field) {
		if f.answer() != "whole" || fmt.Sprint(f.failures()) != "[transport]" || f.took < 10*time.Minute || f.took > 12*time.Minute {
			t.Errorf("%q, %v after %s", f.answer(), f.failures(), f.took)
		}
	}, alive, stream(whole["openai_compatible"]))
}

// beats is a stream of comments, one a minute.
type beats struct{}

func (beats) Read(p []byte) (int, error) {
	<-time.After(time.Minute)
	return copy(p, ": alive\n\n"), nil
}

// C30: line ends of any kind, however the network cuts them: one text.
func TestC30(t *testing.T) {
	var c struct {
		Input struct {
			Variants []struct{ Name, Body string }
			Cuts     []int `json:"cut_points_crlf"`
		}
		Expected struct {
			All struct {
				Text string `json:"final_text"`
			}
		}
	}
	fieldCase(t, "C30", &c)
	for _, v := range c.Input.Variants {
		for how, src := range map[string]func() io.Reader{
			"whole": func() io.Reader { return pieces.Reader([]byte(v.Body)) },
			"bytes": func() io.Reader { return pieces.Bytes([]byte(v.Body)) },
			"cut":   func() io.Reader { return pieces.Reader([]byte(v.Body), c.Input.Cuts...) },
		} {
			t.Run(v.Name+" "+how, func(t *testing.T) {
				before(t, "openai_compatible", func(f *field) {
					f.status(f.id, "completed")
					if f.answer() != c.Expected.All.Text || f.v.asked() != 1 {
						t.Errorf("%q after %d requests", f.answer(), f.v.asked())
					}
				}, reply{media: "text/event-stream", body: src})
			})
		}
	}
}

// C32: one long line is read whole, up to the stated limit; one without an end
// is an error that says so, with bounded memory.
func TestC32(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		text := strings.Repeat("x", size)
		before(t, "openai_compatible", func(f *field) {
			f.status(f.id, "completed")
			if out := all[*event.OutputEmitted](f.house, f.s)[0].Content; out.Bytes != size || f.v.asked() != 1 {
				t.Errorf("%d bytes of text came, %d are kept", size, out.Bytes)
			}
		}, stream(`data: {"choices":[{"index":0,"delta":{"content":"`+text+`"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n"))
		args := `{\"a\":\"` + strings.Repeat("x", size) + `\"}`
		call := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"` + args + `"}}]},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
		before(t, "openai_compatible", func(f *field) {
			f.status(f.id, "completed")
			d, runs := all[*event.ToolRequested](f.house, f.s)[0], 1
			kept := d.Large.Bytes
			if size > 1<<20 { // read whole, and then more than a tool may be given: the model is told
				runs, kept = 0, d.Raw.Bytes
				if !strings.Contains(d.Malformed, "larger than 1048576 bytes") || !bytes.Contains(f.v.bodies[1], []byte("larger than 1048576 bytes")) {
					t.Errorf("%d bytes: refused with %q", size, d.Malformed)
				}
			}
			if f.answer() != "whole" || f.read.runs() != runs || f.v.asked() != 2 || kept != size+8 {
				t.Errorf("%d bytes: %q, %d calls, %d requests, %d bytes are kept", size, f.answer(), f.read.runs(), f.v.asked(), kept)
			}
		}, stream(call), stream(whole["openai_compatible"]))
	}
	endless := reply{media: "text/event-stream", body: func() io.Reader { return io.MultiReader(strings.NewReader("data: "), endlessLine{}) }}
	before(t, "openai_compatible", func(f *field) {
		if d := all[*event.ModelCallFailed](f.house, f.s); len(d) != 1 || d[0].Class != "server" || !strings.Contains(d[0].Message, "larger than the limit of") {
			t.Errorf("%+v", d)
		}
	}, endless, stream(whole["openai_compatible"]))
}

type endlessLine struct{}

func (endlessLine) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// C42: what a vendor asks to wait is honoured up to the cap; what cannot be read
// is the usual backoff. The planned time stands over a restart.
func TestC42(t *testing.T) {
	var c struct {
		Input struct {
			Variants []struct {
				After string `json:"retry_after"`
				Wait  any    `json:"wait_s"`
			}
		}
	}
	fieldCase(t, "C42", &c)
	for _, v := range c.Input.Variants {
		t.Run(v.After, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				<-time.After(time.Until(time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)))
				refused := reply{status: 429, media: "application/json", header: http.Header{"Retry-After": {v.After}}, body: func() io.Reader {
					return strings.NewReader(`{"error":{"message":"slow down"}}`)
				}}
				vendor := &vendor{replies: []reply{refused, wholeOf("openai_compatible")}}
				h := newHouse(t, `rules: [{reply: {text: "unused"}}]`)
				defer h.close()
				h.model = adapter(t, "openai_compatible", vendor)
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				began := time.Now()
				l := h.begin(h.eng, s.ID)
				synctest.Wait()
				l.kill() // and another life keeps the time
				plan := all[*event.RetryScheduled](h, s.ID)
				if len(plan) != 1 || plan[0].Attempt != 2 {
					t.Fatalf("%+v", plan)
				}
				at, err := event.ParseTime(plan[0].At)
				if err != nil {
					t.Fatal(err)
				}
				h.drive(h.other("gen_2"), s.ID)
				h.status(id, "completed")
				wait := at.Sub(began)
				low, high := time.Second, 1500*time.Millisecond // the backoff of the first failure
				switch w := v.Wait.(type) {
				case float64:
					low, high = time.Duration(w)*time.Second, time.Duration(w)*time.Second
				case string:
					if w == "cap" {
						low, high = session.DefaultMaxBackoff, session.DefaultMaxBackoff
					} else if w != "backoff" {
						high = 2 * time.Second
					}
				}
				if took := time.Since(began); wait < low || wait > high || took < wait || took > wait+time.Second || vendor.asked() != 2 {
					t.Errorf("planned after %s, done after %s in %d requests, want %s to %s", wait, took, vendor.asked(), low, high)
				}
			})
		})
	}
}

// C43: each real reply has its class and its action: tried again or not. Only
// an overflow of the context is one.
func TestC43(t *testing.T) {
	var c struct {
		Input struct {
			Rows []struct {
				Dialect string
				Status  int
				Body    string
				Media   string `json:"content_type"`
			}
		}
		Expected struct {
			Rows []struct{ Class, Action string }
		}
	}
	fieldCase(t, "C43", &c)
	classes := map[string]llm.Class{
		"context_overflow": llm.ContextOverflow, "rate_limited": llm.RateLimit, "rate_limited_or_quota": llm.RateLimit,
		"billing": llm.Billing, "overloaded": llm.Overloaded, "payload_too_large": llm.InvalidRequest,
		"invalid_request": llm.InvalidRequest, "server_transient": llm.Server, "auth": llm.Auth, "config": llm.InvalidRequest,
	}
	for i, r := range c.Input.Rows {
		want := c.Expected.Rows[i]
		t.Run(fmt.Sprintf("%d %s %s", i, r.Dialect, want.Class), func(t *testing.T) {
			class := classes[want.Class]
			bad := reply{status: r.Status, media: r.Media, body: func() io.Reader { return strings.NewReader(r.Body) }}
			before(t, r.Dialect, func(f *field) {
				got := f.failures()
				if len(got) == 0 || got[0] != string(class) {
					t.Fatalf("failures %v, want %s (%s)", got, class, want.Action)
				}
				retried := len(all[*event.RetryScheduled](f.house, f.s))
				switch {
				case class == llm.ContextOverflow: // what follows is the business of compaction
					if retried != 0 {
						t.Error("an overflow is asked again as it was")
					}
				case class.Retryable():
					if retried != 1 || f.v.asked() != 2 || f.answer() != "whole" {
						t.Errorf("%q after %d requests", f.answer(), f.v.asked())
					}
				default:
					if row := f.run(f.id); retried != 0 || f.v.asked() != 1 || row.ErrorCode != "model_"+string(class) {
						t.Errorf("%s after %d requests", row.ErrorCode, f.v.asked())
					}
				}
				if class != llm.ContextOverflow {
					for _, typ := range f.types(f.s) {
						if strings.HasPrefix(typ, "context.compact") {
							t.Errorf("%s for %s", typ, class)
						}
					}
				}
			}, bad, wholeOf(r.Dialect))
		})
	}
}

// C40: a pause with a hosted call open goes back unchanged and the next answer
// ends it; a pause for ever ends at a cap; after a kill, and after an error of
// the vendor's, the open call is settled before anything else is committed.
func TestC40(t *testing.T) {
	paused := messagesstub.Reply{Stop: "pause_turn", Input: 1, Output: 1, Blocks: []messagesstub.Block{
		messagesstub.Text("I search."), messagesstub.Hosted("srvtoolu_1", "web_search", `{"query":"x"}`)}}
	found := messagesstub.Reply{Input: 1, Output: 1, Blocks: []messagesstub.Block{messagesstub.Found("srvtoolu_1", "https://x.test/"), messagesstub.Text("It is cold.")}}
	next := messagesstub.Reply{Input: 1, Output: 1, Blocks: []messagesstub.Block{messagesstub.Text("You are welcome.")}}
	broken := messagesstub.Reply{Status: 500}
	refused := messagesstub.Reply{Status: 401}
	hold := found
	hold.Delay = time.Hour
	for name, row := range map[string]struct {
		play   []messagesstub.Reply
		kill   bool
		status string
		code   string
		asked  int
	}{
		"two answers":                 {[]messagesstub.Reply{paused, found, next}, false, "completed", "", 2},
		"an error that passes":        {[]messagesstub.Reply{paused, broken, found, next}, false, "completed", "", 3},
		"an error that does not pass": {[]messagesstub.Reply{paused, refused, next}, false, "failed", "model_auth", 2},
		"a kill between":              {[]messagesstub.Reply{paused, hold, found, next}, true, "completed", "", 3},
		"a pause for ever":            {[]messagesstub.Reply{paused}, false, "failed", "model_paused", session.MaxPauses + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stub := messagesstub.New(func(n int, _ *messagesstub.Request) messagesstub.Reply {
					r := row.play[min(n, len(row.play)-1)]
					if len(row.play) == 1 && n > 0 { // each pause with a call of its own
						r.Blocks = []messagesstub.Block{messagesstub.Found(fmt.Sprintf("srvtoolu_%d", n), "https://x.test/"),
							messagesstub.Hosted(fmt.Sprintf("srvtoolu_%d", n+1), "web_search", `{"query":"x"}`)}
					}
					return r
				})
				h := newHouse(t, `rules: [{reply: {text: "unused"}}]`)
				defer h.close()
				h.model = searching(t, stub)
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "Is it cold?")
				eng := h.eng
				if row.kill {
					l := h.begin(eng, s.ID)
					<-time.After(time.Second)
					l.kill()
					eng = h.other("gen_2")
				}
				h.drive(eng, s.ID)
				if got := h.run(id); got.Status != row.status || got.ErrorCode != row.code || len(stub.Requests()) != row.asked {
					t.Errorf("%s %s (%s) after %d requests", got.Status, got.ErrorCode, got.ErrorMessage, len(stub.Requests()))
				}
				events := h.events(s.ID.Stream())
				settled(t, events)
				if row.status == "completed" {
					if out := all[*event.OutputEmitted](h, s.ID)[0].Content.Text; out != "I search.\n\nIt is cold." {
						t.Errorf("the answer is %q", out)
					}
				} else if last := all[*event.ToolFailed](h, s.ID); len(last) != 1 || last[0].Message.Text != session.TextNoHostedResult {
					t.Errorf("the open call ended as %+v", last)
				}
				if len(row.play) > 1 { // and the session goes on
					h.drive(eng, s.ID)
					then := h.submit(s, "Thanks.")
					h.drive(eng, s.ID)
					h.status(then, "completed")
				}
				for _, bad := range stub.Violations() {
					t.Errorf("the vendor refuses: %s", bad)
				}
				h.verify()
			})
		})
	}
}

// searching is a model that runs a search of its own.
func searching(t *testing.T, stub http.Handler) llm.Model {
	t.Helper()
	m, err := anthropic.New(anthropic.Config{
		Name: "scripted", Model: "scripted", HTTP: &http.Client{Transport: over{stub}},
		HostedTools: []canonjson.Value{canonjson.Value(`{"name":"web_search","type":"web_search_20250305"}`)},
		APIKey:      func() (string, error) { return "test-key", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
