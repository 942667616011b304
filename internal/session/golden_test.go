package session_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// audit writes the log of a session append by append, as it is on the wire,
// without what would be the same in every line or is a digest.
type audit struct {
	*world
	out bytes.Buffer
	n   int
}

func (a *audit) note(what string, events []event.Event) {
	a.n++
	fmt.Fprintf(&a.out, "append %d: %s\n", a.n, what)
	for i := range events {
		node, err := canonjson.Parse(events[i].AppendWire(nil), canonjson.Limits{})
		if err != nil {
			a.t.Fatal(err)
		}
		var members []canonjson.Node
		for j := range node.Len() {
			switch node.At(j).Name() {
			case "id", "hash", "data_digest", "session_id", "stream", "time", "user_id":
			default:
				members = append(members, node.At(j))
			}
		}
		fmt.Fprintf(&a.out, "  %s\n", node.With(members).Append(nil))
	}
}

func (a *audit) decide() []session.Action {
	return a.world.decide(func(_ time.Duration, events []event.Event) { a.note("decided", events) })
}

func (a *audit) answer(parts ...session.OutputPart) {
	finish := llm.FinishStop
	for i := range parts {
		parts[i].Index = i
		if parts[i].Kind == llm.ToolCallWhole {
			finish = llm.FinishTools
		}
	}
	a.note("the model answered", a.append(session.Answered(a.s, &session.Answer{
		Parts: parts, Finish: finish, RawFinish: string(finish), Usage: &llm.Usage{Input: 120, Output: 30},
		Duration: 2100 * time.Millisecond, FirstOutput: 400 * time.Millisecond,
	})...))
}

func text(s string) session.OutputPart { return session.OutputPart{Kind: llm.TextEnd, Text: s} }

func call(name, args string) session.OutputPart {
	return session.OutputPart{Kind: llm.ToolCallWhole, Name: name, Text: args}
}

func (a *audit) compare(path string) {
	a.t.Helper()
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(path, a.out.Bytes(), 0o644); err != nil {
			a.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		a.t.Fatal(err)
	}
	w, g := strings.Split(string(want), "\n"), strings.Split(a.out.String(), "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			a.t.Fatalf("%s, line %d:\nwant %s\n got %s", path, i+1, w[i], g[i])
		}
	}
	if len(w) != len(g) {
		a.t.Fatalf("%s has %d lines, the rules give %d", path, len(w), len(g))
	}
}

// The events of a run of one step, as the people who audit them read them.
func TestGoldenOneStep(t *testing.T) {
	a := &audit{world: newWorld(t)}
	a.note("session made", a.create(event.Settings{}))
	a.note("run submitted", a.submit("run_1", "Say hello.", func(d *event.RunCreated) {
		d.Tools = nil
		d.ReplyTargets = []event.ReplyTarget{{Type: "webhook", URL: "https://ann.example/hook", Secret: "hook"}}
	}))
	a.decide()
	a.answer(text("Hello."))
	if a.decide() != nil {
		t.Fatal("the run is not at its end")
	}
	a.compare("testdata/golden_one_step.txt")
}

// The events of a run with a tool and a repair.
func TestGoldenToolAndRepair(t *testing.T) {
	schema, issues := contract.ParseSchema([]byte(`{"type":"object","properties":{"severity":{"type":"number"}},"required":["severity"],"additionalProperties":false}`))
	if issues != nil {
		t.Fatal(issues)
	}
	a := &audit{world: newWorld(t)}
	a.note("session made", a.create(event.Settings{OutputContract: &event.OutputContract{Schema: schema.Render()}}))
	a.note("run submitted", a.submit("run_1", "How bad is it?", func(d *event.RunCreated) {
		d.Tools = tools[1:2]
		d.Toolset = event.RefOf([]byte("toolset"))
		d.ReplyTargets = []event.ReplyTarget{{Type: "webhook", URL: "https://ann.example/hook"}}
		d.Idempotency = &event.IdempotencyKey{Fingerprint: "v1:" + event.RefOf(nil), KeyHash: event.RefOf(nil), Operation: "submit"}
	}))
	a.decide()
	a.answer(text("I look first."), call("look", `{"path":"log.txt"}`))
	acts := a.decide()
	run, ok := acts[0].(session.RunTool)
	if !ok {
		t.Fatalf("asked for %#v", acts)
	}
	a.note("the tool ended", a.append(session.ToolEnded(a.s, run.Call, &session.ToolOutcome{
		Output: event.TextContent("disk full"), Duration: 30 * time.Millisecond,
	}, clockOfTests, 0)...))
	a.decide()
	a.answer(text(`{"severity":"high"}`))
	a.decide()
	a.answer(text(`{"severity":3}`))
	if a.decide() != nil {
		t.Fatal("the run is not at its end")
	}
	a.compare("testdata/golden_tool_repair.txt")
}
