package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// maxAccount is the most of a hosted result that its account for the record
// holds, in bytes. The whole stands in the state.
const maxAccount = 2 << 10

// hosted is a call of a tool that the vendor runs.
type hosted struct {
	name, wireID, args string
	given, ended       bool
}

// notHosted are tools that the caller would have to run.
var notHosted = []string{"function", "custom", "namespace", "computer", "computer_use_preview", "local_shell", "apply_patch", "programmatic_tool_calling"}

// forCaller are items that wait for something that we never send.
var forCaller = []string{"custom_tool_call", "computer_call", "local_shell_call", "apply_patch_call", "mcp_approval_request"}

func checkHosted(tools []canonjson.Value) error {
	for i, raw := range tools {
		var t struct {
			Type        string          `json:"type"`
			Approval    json.RawMessage `json:"require_approval"`
			Environment struct {
				Type string `json:"type"`
			} `json:"environment"`
		}
		if !parse(raw, &t) || t.Type == "" {
			return fmt.Errorf("hosted_tools[%d]: want an object with a type, as the Responses API documents it", i)
		}
		switch {
		case slices.Contains(notHosted, t.Type), t.Type == "shell" && t.Environment.Type == "local":
			return fmt.Errorf("hosted_tools[%d]: %q is a tool that the caller runs, not the vendor: leave it out", i, t.Type)
		case t.Type == "mcp" && string(t.Approval) != `"never"`:
			return fmt.Errorf(`hosted_tools[%d]: an mcp tool needs "require_approval":"never": the vendor has no way to ask for an approval here`, i)
		}
	}
	return nil
}

// searchesWeb: the vendor refuses the JSON mode beside these.
func searchesWeb(tools []canonjson.Value) bool {
	return slices.ContainsFunc(tools, func(raw canonjson.Value) bool {
		var t struct {
			Type string `json:"type"`
		}
		return parse(raw, &t) && strings.HasPrefix(t.Type, "web_search")
	})
}

// hostedOf gives the hosted call of an item, and notes a new one.
func (a *assembler) hostedOf(e *entry) (*hosted, error) {
	if e.hosted != nil {
		return e.hosted, a.bounded()
	}
	if a.runs++; a.runs > maxCalls {
		return nil, llm.Errorf(llm.Server, "the vendor's answer holds more than %d hosted calls", maxCalls)
	}
	a.any = true
	e.hosted = &hosted{name: hostedName(e.kind), wireID: cutWord(e.id)}
	taken := func(x *entry) bool { return x != e && x.hosted != nil && x.hosted.wireID == e.hosted.wireID }
	if e.hosted.wireID == "" || slices.ContainsFunc(a.track.all, taken) {
		e.hosted.wireID = fmt.Sprintf("hosted_%d", a.runs)
	}
	a.asked = append(a.asked, e)
	return e.hosted, nil
}

func hostedName(kind string) string { return cutWord(strings.TrimSuffix(kind, "_call")) }

// hostedBegins takes an item that is announced. Its call is given out when its
// arguments are known, at the latest when something else begins.
func (a *assembler) hostedBegins(e *entry, it *item) error {
	h, err := a.hostedOf(e)
	if err == nil {
		h.head(it)
	}
	return err
}

// asking takes the arguments of a call that runs.
func (a *assembler) asking(kind string, at place, args string) error {
	e := a.track.goesOn(kind, at)
	h, err := a.hostedOf(e)
	if err != nil {
		return err
	}
	if h.args == "" {
		h.args = args
	}
	return a.ask(e)
}

// hostedDone takes an item that is complete.
func (a *assembler) hostedDone(e *entry, it *item, raw json.RawMessage) error {
	h, err := a.hostedOf(e)
	if err != nil {
		return err
	}
	h.head(it)
	if args := it.args(); h.args == "" {
		h.args = args
	}
	if err := a.ask(e); err != nil || h.ended || !it.finished() {
		return err
	}
	h.ended = true
	res := llm.Part{Kind: llm.HostedResult, WireID: h.wireID, State: a.keep(raw), IsError: it.failed()}
	res.Text = canonjson.CutRunes(strings.ToValidUTF8(it.account(), "\uFFFD"), maxAccount)
	if err := a.count(len(res.State)); err != nil {
		return err
	}
	return a.alone(func() error { return a.stand(res) })
}

// ask gives a call out, once.
func (a *assembler) ask(e *entry) error {
	h := e.hosted
	if h.given {
		return nil
	}
	h.given = true
	a.asked = slices.DeleteFunc(a.asked, func(x *entry) bool { return x == e })
	if err := a.count(len(h.args)); err != nil {
		return err
	}
	p := llm.Part{Kind: llm.HostedCall, Name: h.name, WireID: h.wireID, Text: h.args}
	return a.alone(func() error { return a.stand(p) })
}

// askAll gives out the calls that run while something else begins.
func (a *assembler) askAll() error {
	for len(a.asked) > 0 {
		if err := a.ask(a.asked[0]); err != nil {
			return err
		}
	}
	return nil
}

// stand gives out a part that stands alone.
func (a *assembler) stand(p llm.Part) error {
	p.Index = a.parts
	a.parts++
	return a.yield(p)
}

func (h *hosted) head(it *item) {
	if it.Type == "mcp_call" && it.Name != "" {
		h.name = cutWord("mcp." + string(it.ServerLabel) + "." + string(it.Name))
	}
}

// finished says whether the vendor has come to an end with a call.
func (it *item) finished() bool {
	switch it.Status {
	case "in_progress", "searching", "interpreting", "generating", "calling", "queued", "incomplete":
		return false
	}
	return !slices.Contains(forCaller, it.Type)
}

func (it *item) failed() bool { return it.Status == "failed" || it.trouble() != "" }

// trouble gives the error that a call ended with, or "".
func (it *item) trouble() string {
	switch string(it.Error) {
	case "", "null", `""`, "{}":
		return ""
	}
	var t string
	if json.Unmarshal(it.Error, &t) == nil {
		return orElse(wire.Safe(t), "failed")
	}
	v, _ := wire.ParseVendorError(it.Error)
	return orElse(wire.Safe(v.Message), "failed")
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// args gives the arguments of a hosted call as JSON, "" when none are known.
func (it *item) args() string {
	switch {
	case it.Arguments != "":
		return string(it.Arguments)
	case present(it.Action):
		return string(it.Action)
	case present(it.Queries):
		return `{"queries":` + string(it.Queries) + `}`
	case it.Code != "":
		return object("code", string(it.Code))
	case it.Prompt != "":
		return object("prompt", string(it.Prompt))
	case it.ServerLabel != "":
		return object("server_label", string(it.ServerLabel))
	}
	return ""
}

// account says in a few words what came of a hosted call.
func (it *item) account() string {
	if t := it.trouble(); t != "" {
		return t
	}
	if it.Output != "" {
		return string(it.Output)
	}
	var logs strings.Builder
	for _, o := range it.Outputs {
		logs.WriteString(string(o.Logs))
	}
	if logs.Len() == 0 && it.Results != nil {
		return fmt.Sprintf("%d results", len(it.Results))
	}
	return logs.String()
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// object gives a JSON object with one member, or "" for no value.
func object(name, value string) string {
	if value == "" {
		return ""
	}
	out := append(canonjson.AppendString([]byte("{"), name), ':')
	return string(append(canonjson.AppendString(out, value), '}'))
}
