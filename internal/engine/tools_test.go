package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Results stand in call order, whatever order they came in (I-13).
func TestParallelToolsInCallOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newFake("slow", tool.Read, waits(3*time.Second, "slow"))
		mid := newFake("mid", tool.Read, waits(2*time.Second, "mid"))
		quick := newFake("quick", tool.Read, waits(time.Second, "quick"))
		h, p := staged(t, []step{call("slow", "{}", "mid", "{}", "quick", "{}"), say("done")}, slow, mid, quick)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		began := time.Now()
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("three calls at once took %v", took)
		}
		if got := p.results(1); !slices.Equal(got, []string{"slow", "mid", "quick"}) {
			t.Errorf("results %v", got)
		}
		var order []string
		for _, d := range all[*event.ToolCompleted](h, s.ID) {
			order = append(order, d.Output.Text)
		}
		if !slices.Equal(order, []string{"quick", "mid", "slow"}) {
			t.Errorf("the log tells them as they came: %v", order)
		}
		h.verify()
	})
}

// No more calls of one turn are at work at once than allowed; the others follow.
func TestParallelToolsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("look", tool.Read, waits(time.Second, "seen"))
		var pairs []string
		for range 20 {
			pairs = append(pairs, "look", "{}")
		}
		h, p := staged(t, []step{call(pairs...), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		began := time.Now()
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if took := time.Since(began); took != 3*time.Second || len(p.results(1)) != 20 { // 8 + 8 + 4
			t.Errorf("20 calls took %v, %d results", took, len(p.results(1)))
		}
	})
}

func TestToolOutcomes(t *testing.T) {
	never := func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}
	lost := func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{}, fmt.Errorf("post: %w", tool.ErrOutcomeUnknown)
	}
	panics := func(context.Context, tool.Call) (tool.Result, error) { panic("secret words of the tool") }
	refuses := func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{}, tool.NewError("no such file", nil)
	}
	breaks := func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{}, fmt.Errorf("secret words of the tool")
	}
	const internal = "Tool execution failed: the tool reported an internal error"
	for _, row := range []struct {
		name       string
		level      tool.Level
		idempotent bool
		run        func(context.Context, tool.Call) (tool.Result, error)
		status     string
		runs       int
		result     string // what the model reads
	}{
		{"read times out", tool.Read, false, never, "completed", 1, "The tool did not answer in time."},
		{"write times out", tool.Write, false, never, "needs_attention", 1, ""},
		{"idempotent times out", tool.ExternalEffect, true, never, "needs_attention", session.MaxToolAttempts, ""},
		{"read is lost", tool.Read, false, lost, "completed", 1, internal},
		{"none is lost", tool.None, false, lost, "completed", 1, internal},
		{"write is lost", tool.Write, false, lost, "needs_attention", 1, ""},
		{"irreversible is lost", tool.Irreversible, false, lost, "needs_attention", 1, ""},
		{"idempotent is lost", tool.ExternalEffect, true, lost, "needs_attention", session.MaxToolAttempts, ""},
		{"read panics", tool.Read, false, panics, "completed", 1, internal},
		{"write panics", tool.Write, false, panics, "needs_attention", 1, ""},
		{"write refuses", tool.Write, false, refuses, "completed", 1, "Tool execution failed: no such file"},
		{"write breaks", tool.Write, false, breaks, "completed", 1, internal},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("act", row.level, row.run)
				f.def.Idempotent = row.idempotent
				h, p := staged(t, []step{call("act", "{}"), say("done")}, f)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.eng, s.ID)
				h.status(id, row.status)
				if f.runs() != row.runs || len(slices.Compact(slices.Clone(f.ids))) != 1 {
					t.Errorf("ran %v, want %d times under one id", f.ids, row.runs)
				}
				if row.result != "" && !slices.Equal(p.results(1), []string{row.result}) {
					t.Errorf("the model reads %q", p.results(1))
				}
				for _, e := range h.events(s.ID.Stream()) { // I-33
					if strings.Contains(string(e.Raw), "secret words") {
						t.Errorf("%s holds the private cause: %s", e.Type, e.Raw)
					}
				}
				h.verify()
			})
		})
	}
}

// An idempotent call whose outcome is not known is tried again and may heal.
func TestIdempotentHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		f := newFake("pay", tool.ExternalEffect, func(context.Context, tool.Call) (tool.Result, error) {
			if n++; n < 3 {
				return tool.Result{}, tool.ErrOutcomeUnknown
			}
			return tool.Result{Output: "paid"}, nil
		})
		f.def.Idempotent = true
		h, p := staged(t, []step{call("pay", "{}"), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if got := p.results(1); n != 3 || got[0] != "paid" || len(all[*event.ToolStarted](h, s.ID)) != 1 {
			t.Errorf("%d attempts, result %v", n, got)
		}
	})
}

// What breaks the tool's schema, or is no JSON object, does not run, and the
// model is told.
func TestInvalidInputIsRejected(t *testing.T) {
	for args, want := range map[string]string{
		`{"n":"x"}`: "$.n: expected number, got string", `{}`: "missing n", `[1]`: "not an object", `{"n":`: "not one strict JSON value",
		"\xff": "not one strict JSON value",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("act", tool.Write, gives("done"))
			f.def.InputSchema = canonjson.Value(`{"properties":{"n":{"type":"number"}},"required":["n"],"type":"object"}`)
			h, p := staged(t, []step{call("act", args, "unheard_of", "{}"), say("sorry")}, f)
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "go")
			h.drive(h.eng, s.ID)
			h.status(id, "completed")
			got := p.results(1)
			if f.runs() != 0 || !strings.HasPrefix(got[0], "The call did not run.") || !strings.Contains(got[0], want) || got[1] != "Unknown tool: unheard_of" {
				t.Errorf("%s: ran %d times, the model reads %q", args, f.runs(), got)
			}
		})
	}
}

// The output schema is checked where the tool says that it gives JSON.
func TestOutputSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("look", tool.Read, func(context.Context, tool.Call) (tool.Result, error) {
			return tool.Result{Output: `{"n":"x"}`, JSON: true}, nil
		})
		f.def.OutputSchema = canonjson.Value(`{"properties":{"n":{"type":"number"}},"type":"object"}`)
		h, p := staged(t, []step{call("look", "{}"), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		h.submit(s, "go")
		h.drive(h.eng, s.ID)
		if got := p.results(1); !strings.Contains(got[0], "does not meet the tool's schema: $.n: expected number, got string") {
			t.Errorf("the model reads %q", got)
		}
	})
}

// A large result is cut for the model; the whole of it is a blob.
func TestOutputIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := strings.Repeat("ö", 40<<10) // 80 KiB, cut between runes
		h, p := staged(t, []step{call("look", "{}", "look", "{}"), say("done")}, newFake("look", tool.Read, gives(whole)))
		defer h.close()
		s := h.session(&api.CreateSession{})
		h.submit(s, "go")
		h.drive(h.eng, s.ID)
		d := all[*event.ToolCompleted](h, s.ID)[1]
		blob, kind, err := h.store.Blob(t.Context(), s.ID, d.OutputPaths[0])
		if err != nil || string(blob) != whole || kind != event.BlobContent || d.TotalBytes != len(whole) || d.Output.Ref == "" {
			t.Errorf("%v %d bytes of %s, event %+v", err, len(blob), kind, d)
		}
		got := p.results(1)[0]
		if want := fmt.Sprintf("[cut here: %d of %d bytes shown]", 32<<10, len(whole)); !strings.HasSuffix(got, want) || len(got) > 33<<10 || strings.Contains(got, "\ufffd") {
			t.Errorf("the model reads %d bytes that end with %q", len(got), got[len(got)-60:])
		}
		h.verify()
	})
}

// A run was shown certain tools; one that is another now does not run.
func TestChangedAndRemovedTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		change, gone := newFake("change", tool.Write, gives("done")), newFake("gone", tool.Write, gives("done"))
		h, p := staged(t, []step{call("change", "{}", "gone", "{}"), say("done")}, change, gone)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		other := newFake("change", tool.Write, gives("done"))
		other.def.Description = "does something else"
		h.drive(h.other("gen_2", other), s.ID)
		h.status(id, "completed")
		for i, text := range p.results(1) {
			if !strings.Contains(text, "was changed or removed after the run was submitted") {
				t.Errorf("result %d is %q", i, text)
			}
		}
		if other.runs()+change.runs()+gone.runs() != 0 {
			t.Error("a tool ran that the run was not shown")
		}
		if got := p.reqs[1].Tools; len(got) != 2 || got[0].Description != "" {
			t.Errorf("the run is shown %+v", got) // I-08
		}
	})
}

// A person's word settles a call in doubt, each way (I-14).
func TestAttention(t *testing.T) {
	for _, row := range []struct {
		resolution, output, reason, result string
		runs                               int
	}{
		{"completed", "it is there", "", "it is there", 1},
		{"failed", "", "I looked", "Tool execution failed: I looked", 1},
		{"retry", "", "", "second time", 2},
	} {
		t.Run(row.resolution, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				f := newFake("charge", tool.ExternalEffect, func(context.Context, tool.Call) (tool.Result, error) {
					if n++; n == 1 {
						return tool.Result{}, tool.ErrOutcomeUnknown
					}
					return tool.Result{Output: "second time"}, nil
				})
				look := newFake("look", tool.Read, gives("seen"))
				h, p := staged(t, []step{call("look", "{}", "charge", `{"b":1,"a":2}`), say("done")}, f, look)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.eng, s.ID)
				h.status(id, "needs_attention")
				waiting, err := ptr(h.run(id)).Waiting()
				if err != nil || len(waiting) != 1 || string(waiting[0].CallID) != f.ids[0] {
					t.Fatalf("waits on %v (%v), ran %v", waiting, err, f.ids)
				}
				h.drive(h.other("gen_2", f, look), s.ID) // a restart does not ask again
				if err := h.adm.Attention(t.Context(), admission.Caller{}, h.run(id), &api.ResolveAttention{
					CallID: f.ids[0], Resolution: row.resolution, Output: row.output, Reason: row.reason,
				}); err != nil {
					t.Fatal(err)
				}
				h.drive(h.other("gen_3", f, look), s.ID)
				h.status(id, "completed")
				if got := p.results(1); f.runs() != row.runs || look.runs() != 1 || !slices.Equal(got, []string{"seen", row.result}) {
					t.Errorf("ran %v, the model reads %q", f.ids, got)
				}
				if row.runs == 2 && f.ids[0] == f.ids[1] {
					t.Error("a retry runs under a new id") // I-13
				}
				h.verify()
			})
		})
	}
}

// Where the session says so, a run goes on with an effect in doubt.
func TestOnDoubtContinue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("charge", tool.ExternalEffect, func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, tool.ErrOutcomeUnknown })
		h, p := staged(t, []step{call("charge", "{}"), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{OnDoubt: "continue"})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if got := p.results(1); f.runs() != 1 || got[0] != interrupted {
			t.Errorf("ran %d times, the model reads %q", f.runs(), got)
		}
	})
}

func ptr[T any](v T) *T { return &v }

// interrupted is what the model reads of a call whose effect nobody knows.
const interrupted = "Tool execution interrupted; outcome unknown: it may have taken effect"

// Arguments past the inline limit reach the tool whole, also those that a
// former owner left to be started (I-13).
func TestLargeArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		args := `{"text":"` + strings.Repeat("lang ", 5000) + `"}`
		var got []string
		f := newFake("act", tool.Read, func(ctx context.Context, c tool.Call) (tool.Result, error) {
			got = append(got, string(c.Input))
			return waits(50*time.Second, "done")(ctx, c)
		})
		h, p := staged(t, []step{call("act", args), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		l.kill() // in the tool: the next owner starts it again, from the log alone
		h.drive(h.other("gen_2", f), s.ID)
		h.status(id, "completed")
		if !slices.Equal(got, []string{args, args}) {
			t.Errorf("the tool was given %d calls, the first of %d bytes", len(got), len(got[0]))
		}
		for _, e := range h.events(s.ID.Stream()) {
			if len(e.Raw) > event.InlineLimit {
				t.Errorf("%s stores %d bytes in place", e.Type, len(e.Raw))
			}
		}
		if shown := p.reqs[1].Messages[1].Parts[0].Text; shown != args {
			t.Errorf("the model is shown %d bytes of its call", len(shown))
		}
		h.verify()
	})
}

// What took effect and answers something else than its schema is no failure: a
// failure would have the model do it again.
func TestEffectWithOddAnswer(t *testing.T) {
	for level, want := range map[tool.Level]string{
		tool.ExternalEffect: "{\"n\":1}\n[the result does not meet the tool's schema: $: missing ok]",
		tool.Read:           "Tool execution failed: the result does not meet the tool's schema: $: missing ok",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("act", level, func(context.Context, tool.Call) (tool.Result, error) {
				return tool.Result{Output: `{"n":1}`, JSON: true}, nil
			})
			f.def.OutputSchema = canonjson.Value(`{"required":["ok"],"type":"object"}`)
			h, p := staged(t, []step{call("act", "{}"), say("done")}, f)
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "go")
			h.drive(h.eng, s.ID)
			h.status(id, "completed")
			if got := p.results(1); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: the model reads %q", level, got)
			}
		})
	}
}

// An adapter that panics on an answer fails the attempt, not the daemon.
func TestModelPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := staged(t, []step{func(context.Context, *llm.Request, func(llm.Part) error) error { panic("odd answer") }})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "failed")
	})
}

// fastLog is a store whose clock is ahead of this machine's.
type fastLog struct {
	engine.Log
	ahead time.Duration
}

func (l fastLog) Now(ctx context.Context) (time.Time, error) {
	now, err := l.Log.Now(ctx)
	return now.Add(l.ahead), err
}

// The time at which a call is made again is the store's, however far this
// machine's clock is off: it is not made earlier, or much later. // I-16
func TestToolRetryByTheStoresClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("act", tool.Write, func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, tool.ErrOutcomeUnknown })
			f.def.Idempotent = true
			h, _ := staged(t, []step{call("act", "{}"), say("done")}, f)
			defer h.close()
			s := h.session(&api.CreateSession{})
			h.submit(s, "1")
			set, err := tool.NewSet(f)
			if err != nil {
				t.Fatal(err)
			}
			eng := engine.New(engine.Config{
				Log: fastLog{h.store, ahead}, Hub: &h.hub, Tools: set, Node: "gen_1", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
				Model: func(event.Route) (llm.Model, error) { return strict{t, h.model}, nil },
			})
			began := time.Now().Add(ahead)
			l := h.begin(eng, s.ID)
			synctest.Wait()
			retries := all[*event.ToolRetrying](h, s.ID)
			if len(retries) == 0 {
				t.Fatal("it is not made again")
			}
			at, err := event.ParseTime(retries[0].At)
			if wait := at.Sub(began); err != nil || wait <= 0 || wait > time.Minute {
				t.Errorf("made again %v after the first time, by the store's clock", wait)
			}
			l.kill()
		})
	}
}
