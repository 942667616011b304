package scripted

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

const demo = `
rules:                        # first match answers
  - when: {contains: "disk full", turn: 1}
    reply: {tool_calls: [{name: read_file, arguments: {path: runbook.md, n: 9007199254740993, f: 1.50, l: [true, null, "1"]}}]}
  - when: {tool_result: "step 3", attempt: 1}
    reply: {error: {class: rate_limit, message: slow down, retry_after: 7s}}
  - when: {tool_result: "step 3"}
    reply: {text: "half", error: {class: transport, after_output: true}}
  - when: {turn: 2, repair: 0}
    reply: {text: '{"category":"storage"}', delay: 200ms, chunk: 5}
  - when: {system: "only a word"}
    reply: {text: word, finish: length}
  - when: {contains: raw}
    reply: {text: calling, tool_calls: [{name: a, arguments: '{"cut'}, {name: b}, {name: c, arguments: }]}
  - when: {repair: 2}
    reply:
      text: |
        two
        lines
  - when: {repair: 1}
    reply: {text: '{"category":"storage","severity":3}', usage: {input: 40, output: 20}}
`

func user(s string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: s}}}
}

func tool(s string) llm.Message {
	return llm.Message{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, Text: "other"}, {Kind: llm.ToolResult, Text: s}}}
}

// play gives the parts of an answer, one word each.
func play(m *Model, req *llm.Request) (string, error) {
	var words []string
	err := m.Stream(context.Background(), req, func(p llm.Part) error {
		w := fmt.Sprintf("%s#%d", p.Kind, p.Index)
		if p.Name != "" {
			w += ":" + p.Name
		}
		if p.Text != "" {
			w += fmt.Sprintf("(%s)", p.Text)
		}
		if p.Usage != nil {
			w += fmt.Sprint(*p.Usage)
		}
		words = append(words, w+string(p.Reason))
		return nil
	})
	return strings.Join(words, " "), err
}

func TestRules(t *testing.T) {
	m, err := Parse("demo.yaml", []byte(demo))
	if err != nil {
		t.Fatal(err)
	}
	args := `{"f":1.5,"l":[true,null,"1"],"n":9007199254740993,"path":"runbook.md"}`
	tests := []struct {
		name string
		req  llm.Request
		want string
		err  string
	}{
		{"contains and turn", llm.Request{Turn: 1, Messages: []llm.Message{user("the disk full alarm")}},
			"tool_input_start#0:read_file tool_input_delta#0(" + args + ") tool_call#0:read_file(" + args + ") finish#0tool_calls", ""},
		{"first match: the turn is another", llm.Request{Turn: 2, Messages: []llm.Message{user("disk full")}},
			`text_start#0 text_delta#0({"cat) text_delta#0(egory) text_delta#0(":"st) text_delta#0(orage) text_delta#0("}) text_end#0 finish#0stop`, ""},
		{"an error on the first attempt", llm.Request{Turn: 3, Attempt: 1, Messages: []llm.Message{user("x"), tool("see step 3")}}, "", "rate_limit: slow down 7s"},
		{"an error after output", llm.Request{Turn: 3, Attempt: 2, Messages: []llm.Message{user("x"), tool("see step 3")}}, "text_start#0 text_delta#0(half)", "transport: the script says so 0s"},
		{"an old result is not the last", llm.Request{Turn: 3, Attempt: 1, System: "only a word", Messages: []llm.Message{user("x"), tool("step 3"), tool("no")}}, "text_start#0 text_delta#0(word) text_end#0 finish#0length", ""},
		{"a result of an earlier task", llm.Request{Turn: 1, Attempt: 1, System: "only a word", Messages: []llm.Message{user("y"), tool("step 3"), user("x")}}, "text_start#0 text_delta#0(word) text_end#0 finish#0length", ""},
		{"raw and empty arguments", llm.Request{Turn: 3, Messages: []llm.Message{user("raw")}},
			`text_start#0 text_delta#0(calling) text_end#0 tool_input_start#1:a tool_input_delta#1({"cut) tool_call#1:a({"cut) ` +
				`tool_input_start#2:b tool_input_delta#2({}) tool_call#2:b({}) tool_input_start#3:c tool_input_delta#3({}) tool_call#3:c({}) finish#3tool_calls`, ""},
		{"repair, with usage", llm.Request{Turn: 3, Repair: 1, Messages: []llm.Message{user("x"), user("repair: raw")}},
			`text_start#0 text_delta#0({"category":"sto) text_delta#0(rage","severity") text_delta#0(:3}) text_end#0 usage#0{0 0 40 20 0} finish#0stop`, ""},
		{"the task behind two repairs", llm.Request{Turn: 1, Repair: 2, Messages: []llm.Message{user("disk full"), user("r1"), user("r2")}},
			"tool_input_start#0:read_file tool_input_delta#0(" + args + ") tool_call#0:read_file(" + args + ") finish#0tool_calls", ""},
		{"fewer messages than repairs", llm.Request{Turn: 1, Repair: 2, Messages: []llm.Message{user("disk full")}}, "text_start#0 text_delta#0(two\nlines\n) text_end#0 finish#0stop", ""},
		{"no rule", llm.Request{Turn: 9, Attempt: 3, Messages: []llm.Message{user("x")}}, "", "invalid_request: no rule of the script answers turn 9 (attempt 3, repair 0) 0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // a function of the request
				got, err := play(m, &tt.req)
				said := ""
				if err != nil {
					said = fmt.Sprint(err, " ", llm.AsError(err).RetryAfter)
				}
				if got != tt.want || said != tt.err {
					t.Errorf("got  %s, %s\nwant %s, %s", got, said, tt.want, tt.err)
				}
			}
		})
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := Parse("x", []byte("rules: [{reply: {text: a, delay: 200ms}}]"))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if got, err := play(m, &llm.Request{}); err != nil || got == "" || time.Since(start) != 200*time.Millisecond {
			t.Error(got, err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start = time.Now()
		err = m.Stream(ctx, &llm.Request{}, func(llm.Part) error { t.Error("a part"); return nil })
		if llm.AsError(err).Class != llm.Aborted || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 50*time.Millisecond {
			t.Error(err, time.Since(start))
		}
		stop := errors.New("enough")
		if err := m.Stream(t.Context(), &llm.Request{}, func(llm.Part) error { return stop }); err != stop {
			t.Error(err)
		}
	})
}

// Errors say where.
func TestParseErrors(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"empty", "", "s:1:1: want one YAML document"},
		{"two documents", "rules: [{reply: {text: a}}]\n---\nrules: []\n", "s:1:1: want one YAML document"},
		{"no rules", "rules: []\n", "s:1:8: want 1 to 1000 rules"},
		{"unknown key", "rules:\n  - whn: {turn: 1}\n", `s:2:5: unknown field "whn"`},
		{"unknown condition", "rules:\n  - when: {trun: 1}\n    reply: {text: a}\n", `s:2:12: unknown field "trun"`},
		{"repeated key", "rules:\n  - reply: {text: a}\n    reply: {text: b}\n", "s:3:5: mapping key"},
		{"wrong type", "rules:\n  - when: {turn: x}\n", "s:2:18: cannot unmarshal string"},
		{"broken", "rules:\n  - reply: {text: [}\n", "s:2:"},
		{"turn 0", "rules:\n  - when: {turn: 0}\n    reply: {text: a}\n", "s:2:18: turn counts from 1"},
		{"repair -1", "rules:\n  - when: {repair: -1}\n    reply: {text: a}\n", "s:2:20: repair counts from 0"},
		{"no reply", "rules:\n  - when: {turn: 1}\n", "s:2:9: a reply holds text"},
		{"bad delay", "rules:\n  - reply: {text: a, delay: soon}\n", "s:2:29: want a duration"},
		{"long delay", "rules:\n  - reply: {text: a, delay: 2h}\n", "s:2:29: want a duration"},
		{"bad class", "rules:\n  - reply: {error: {class: boom}}\n", "s:2:28: class is one of"},
		{"our own class", "rules:\n  - reply: {error: {class: aborted}}\n", "s:2:28: class is one of"},
		{"text with an error", "rules:\n  - reply: {text: a, error: {class: auth}}\n", "s:2:29: after_output"},
		{"calls with an error", "rules:\n  - reply: {error: {class: auth}, tool_calls: [{name: a}]}\n", "s:2:20: an error goes with"},
		{"bad retry_after", "rules:\n  - reply: {error: {class: auth, retry_after: -1s}}\n", "s:2:47: want a duration"},
		{"bad finish", "rules:\n  - reply: {text: a, finish: done}\n", "s:2:30: finish is one of"},
		{"negative chunk", "rules:\n  - reply: {text: a, chunk: -1}\n", "s:2:29: chunk is"},
		{"negative usage", "rules:\n  - reply: {text: a, usage: {input: -1}}\n", "s:2:29: a count is not negative"},
		{"a call without a name", "rules:\n  - reply: {tool_calls: [{arguments: {}}]}\n", "s:2:26: a tool call needs a name"},
		{"arguments without a form", "rules:\n  - reply: {tool_calls: [{name: a, arguments: {x: .inf}}]}\n", "s:2:51: this value has no form in JSON"},
		{"aliases", "a: &x [1]\nrules: *x\n", "s:1:4: anchors"},
		{"deep", "rules: " + strings.Repeat("[", 100_000), "s:1:72: nested too deep"},
		{"deep lists", strings.Repeat("- ", 100_000), "s:1:257: nested too deep"},
		{"large", "#" + strings.Repeat("x", MaxScript), "s: a script has at most"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse("s", []byte(tt.body)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(path, []byte(demo), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := Load(path); err != nil || len(m.rules) != 8 {
		t.Fatal(m, err)
	}
	if err := os.WriteFile(path, []byte("rules: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{path, filepath.Dir(path), path + ".none"} {
		if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(demo), "disk full")
	f.Add([]byte(`{"rules": [{"reply": {"text": "x", "tool_calls": [{"name": "a", "arguments": {"b": [1.5, {}]}}]}}]}`), "")
	f.Add([]byte("rules:\n- ? a\n  : b\n- !!x y\n"), "")
	f.Fuzz(func(t *testing.T, body []byte, task string) {
		m, err := Parse("s", body)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "s:") {
				t.Fatal(err)
			}
			return
		}
		for i := range m.rules {
			m.rules[i].reply.delay = 0
		}
		_, err = play(m, &llm.Request{Turn: 1, Attempt: 1, Messages: []llm.Message{user(task)}})
		if e := llm.AsError(err); err != nil && e.Message == "" {
			t.Fatalf("%+v", e)
		}
	})
}
