package openaicompat

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"pgregory.net/rapid"
)

// turn gives the messages of one tool turn as the engine would keep them.
func turn(maker string, n string, got answer) []llm.Message {
	var parts []llm.Content
	for _, s := range got.States {
		parts = append(parts, llm.Content{Kind: llm.Reasoning, State: []byte(s), Maker: maker})
	}
	parts = append(parts, called("call_"+n, "lookup", "{}"))
	return []llm.Message{{Role: llm.Assistant, Parts: parts}, {Role: llm.Tool, Parts: []llm.Content{result("call_"+n, "found")}}}
}

// C41 (1): two tool turns on a vendor that demands its reasoning back.
func TestReasoningIsDemanded(t *testing.T) {
	for _, plain := range []bool{false, true} {
		stub := chatstub.NewVendor(chatstub.Rules{Reasoning: chatstub.ReasoningDemanded}, chatstub.Replies(
			chatstub.Reply{Reasoning: "first <thought>\n", Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}, Plain: plain},
			chatstub.Reply{Reasoning: "second", Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}, Plain: plain},
			chatstub.Reply{Text: "done", Plain: plain}))
		m := model(t, Config{HTTP: over(t, stub), Model: "deepseek-v4-pro"})
		req := &llm.Request{Messages: []llm.Message{task("hello")}}
		for _, n := range []string{"1", "2"} {
			got := ask(t, t.Context(), m, req)
			if got.Err != nil || len(got.Calls) != 1 {
				t.Fatal(got, stub.Violations())
			}
			// Also after a restart: only what is in the log goes into the next request.
			req = &llm.Request{Messages: append(req.Messages, turn("openai_compatible/deepseek-v4-pro", n, got)...)}
		}
		if got := ask(t, t.Context(), m, req); got.Err != nil || got.Text != "done" {
			t.Fatal(got, stub.Violations())
		}
		last := stub.Requests()[2].Messages
		if one, two := last[1].ReasoningContent, last[3].ReasoningContent; one == nil || *one != "first <thought>\n" || two == nil || *two != "second" {
			t.Errorf("%s", stub.Requests()[2].Body)
		}
	}
}

// C41 (2) and (3): calls of another vendor get a neutral text where it is
// demanded; the field is never sent to a vendor that did not make it.
func TestForeignReasoning(t *testing.T) {
	req := &llm.Request{Messages: append([]llm.Message{task("hello")}, turn("anthropic/claude", "1", answer{States: []string{`{"reasoning_content":"secret thought"}`}})...)}
	demands := chatstub.NewVendor(chatstub.Rules{Reasoning: chatstub.ReasoningDemanded}, chatstub.Replies(chatstub.Reply{Text: "ok"}))
	refuses := chatstub.NewVendor(chatstub.Rules{Reasoning: chatstub.ReasoningRefused}, chatstub.Replies(chatstub.Reply{Text: "ok"}))
	for name, tt := range map[string]struct {
		stub *chatstub.Stub
		cfg  Config
		want string
	}{
		"by the family": {demands, Config{Model: "deepseek-reasoner"}, noReasoning},
		"by the quirk":  {demands, Config{Quirks: Quirks{ReasoningContent: true}}, noReasoning},
		"not sent":      {refuses, Config{Model: "gpt-4o"}, ""},
	} {
		tt.cfg.HTTP = over(t, tt.stub)
		if got := ask(t, t.Context(), model(t, tt.cfg), req); got.Err != nil {
			t.Errorf("%s: %v %v", name, got, tt.stub.Violations())
		}
		for _, r := range tt.stub.Requests() {
			if bytes.Contains(r.Body, []byte("secret thought")) || strings.Contains(string(r.Body), noReasoning) != (tt.want != "") {
				t.Errorf("%s: %s", name, r.Body)
			}
		}
	}
}

// A router's details go back as a whole answer holds them, whatever pieces a
// stream sent them in: the signed text with its signature, the encrypted ones
// untouched, in order.
func TestReasoningDetails(t *testing.T) {
	details := []string{
		`{"type":"reasoning.text","text":"I think & so on","signature":"c2ln+/==","format":"anthropic-claude-v1","index":0,"id":"r1"}`,
		`{"type":"reasoning.encrypted","data":"AAAA<>","format":"openai-responses-v1","index":1,"id":"rs_1"}`,
		`{"type":"reasoning.summary","summary":"In short","format":"openai-responses-v1","index":2,"big":12345678901234567890}`,
	}
	for _, plain := range []bool{false, true} {
		stub := chatstub.New(chatstub.Replies(
			chatstub.Reply{Details: details, Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}, Runes: 3, Plain: plain}, chatstub.Reply{Text: "done"}))
		m := model(t, Config{HTTP: over(t, stub)})
		got := ask(t, t.Context(), m, hello)
		if got.Err != nil || got.Reasoning != "I think & so onIn short" {
			t.Fatal(got)
		}
		req := &llm.Request{Messages: append([]llm.Message{task("hello")}, turn("openai_compatible/m", "1", got)...)}
		if got := ask(t, t.Context(), m, req); got.Err != nil || got.Text != "done" {
			t.Fatal(got, stub.Violations())
		}
		back := stub.Requests()[1].Messages[1]
		if len(back.ReasoningDetails) != len(details) || back.ReasoningContent != nil {
			t.Errorf("%s", stub.Requests()[1].Body)
		}
		if plain && string(back.ReasoningDetails[1]) != details[1] {
			t.Errorf("%s", back.ReasoningDetails[1])
		}
		// To another maker nothing of it goes.
		other, err := model(t, Config{Name: "other"}).encode(req)
		if err != nil || bytes.Contains(other, []byte("reasoning")) {
			t.Errorf("%s %v", other, err)
		}
	}
}

// Details behind the text, alone, or beside the same words in another field.
func TestDetailsAnywhere(t *testing.T) {
	for name, tt := range map[string]struct {
		deltas                []string
		text, thought, states string
	}{
		"beside reasoning": {[]string{`{"reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}`, `{"content":"x"}`},
			"x", "a", `{"reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}`},
		"a signature behind the text": {[]string{`{"reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}`, `{"content":"x"}`,
			`{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}`, `{"content":"y"}`},
			"xy", "a", `{"reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}`},
		"encrypted alone":      {[]string{`{"content":"x","reasoning_details":[{"type":"reasoning.encrypted","data":"q"}]}`}, "x", "", `{"reasoning_details":[{"type":"reasoning.encrypted","data":"q"}]}`},
		"no objects":           {[]string{`{"content":"x","reasoning_details":[1,"a",null,[]]}`}, "x", "", `{"reasoning_details":[1,"a",null,[]]}`},
		"of another type":      {[]string{`{"content":"x","reasoning_details":"none"}`}, "x", "", ""},
		"an empty list":        {[]string{`{"content":"x","reasoning_details":[]}`}, "x", "", ""},
		"the field, and again": {[]string{`{"reasoning_content":"a","reasoning":"a"}`, `{"content":"x"}`}, "x", "a", `{"reasoning_content":"a"}`},
	} {
		got := everyWay(t, chunks("stop", tt.deltas...))
		if got.Err != nil || got.Text != tt.text || got.Reasoning != tt.thought || got.State != tt.states {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Details that nothing shows to be pieces of one stay apart, byte for byte.
func TestDetailsApart(t *testing.T) {
	for _, list := range []string{
		`{"type":"reasoning.text","text":"a"}|{"type":"reasoning.text","text":"b"}`,
		`{"type":"reasoning.text","text":"a","index":0}|{"type":"reasoning.text","text":"b","index":1}`,
		`{"type":"reasoning.text","text":"a","index":0}|{"type":"reasoning.summary","summary":"b","index":0}`,
		`{"type":"reasoning.text","text":"a","index":0,"id":"x"}|{"type":"reasoning.text","text":"b","index":0,"id":"y"}`,
		`{"type":"reasoning.encrypted","data":"a","index":0}|{"type":"reasoning.encrypted","data":"b","index":0}`,
		`1|{"b":2,"a":1.0}|null`,
	} {
		var r returned
		r.add([]byte(`{"reasoning_details":[` + strings.ReplaceAll(list, "|", ",") + `]}`))
		var got []string
		for _, d := range r.list() {
			got = append(got, string(d))
		}
		if strings.Join(got, "|") != list {
			t.Errorf("%q from %s", got, list)
		}
	}
}

// Whatever pieces a detail comes in, it goes back whole.
func TestPiecesOfDetailsJoin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r returned
		var want []string
		for i := range rapid.IntRange(1, 3).Draw(t, "details") {
			whole := ""
			for j := range rapid.IntRange(1, 4).Draw(t, "pieces") {
				piece := rapid.StringMatching(`[a-z<&é"]{0,4}`).Draw(t, "text")
				whole += piece
				d := map[string]any{"type": "reasoning.text", "index": i, "text": piece}
				if j == 0 {
					d["format"] = "f"
				}
				raw, _ := marshal(d)
				s, err := state{Details: []json.RawMessage{raw}}.encode()
				if err != nil {
					t.Fatal(err)
				}
				r.add(s)
			}
			raw, _ := marshal(map[string]any{"type": "reasoning.text", "index": i, "text": whole, "format": "f"})
			want = append(want, string(raw))
		}
		var got []string
		for _, d := range r.list() {
			got = append(got, string(d))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%q\nwant %q", got, want)
		}
	})
}
