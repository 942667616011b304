package responsesstub

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

type object = map[string]any

// answer is a reply with the ids that it gets.
type answer struct {
	reply Reply
	n     int
	model string
	items []object // as they are when complete
}

// answer gives the n-th answer of a vendor.
func (r Reply) answer(n int, req Request) *answer {
	a := &answer{reply: r, n: n, model: req.Model}
	if r.Think || len(r.Thoughts) > 0 {
		summary := []any{}
		for _, t := range r.Thoughts {
			summary = append(summary, object{"type": "summary_text", "text": t})
		}
		it := object{"type": "reasoning", "id": fmt.Sprintf("rs_%d", n), "summary": summary}
		if slices.Contains(req.Include, "reasoning.encrypted_content") {
			sum := sha256.Sum256(fmt.Append(nil, n, r.Thoughts))
			it["encrypted_content"] = "gAAAAAB" + base64.URLEncoding.EncodeToString(sum[:])
		}
		a.items = append(a.items, it)
	}
	for _, raw := range r.Hosted {
		var it object
		if err := json.Unmarshal([]byte(raw), &it); err != nil {
			panic("a hosted item is no JSON object: " + raw)
		}
		a.items = append(a.items, it)
	}
	if r.Text != "" || r.Refusal != "" {
		content := []any{}
		if r.Text != "" {
			content = append(content, object{"type": "output_text", "text": r.Text, "annotations": []any{}, "logprobs": []any{}})
		}
		if r.Refusal != "" {
			content = append(content, object{"type": "refusal", "refusal": r.Refusal})
		}
		it := object{"type": "message", "id": fmt.Sprintf("msg_%d", n), "role": "assistant", "status": "completed", "content": content}
		if r.Phase != "" {
			it["phase"] = r.Phase
		}
		a.items = append(a.items, it)
	}
	for i, c := range r.Calls {
		id := c.ID
		if id == "" {
			id = fmt.Sprintf("call_%d_%d", n, i)
		}
		a.items = append(a.items, object{
			"type": "function_call", "id": fmt.Sprintf("fc_%d_%d", n, i), "call_id": id,
			"name": c.Name, "arguments": c.Arguments, "status": "completed",
		})
	}
	if r.Incomplete != "" && len(a.items) > 0 {
		if last := a.items[len(a.items)-1]; last["status"] != nil {
			last["status"] = "incomplete"
		}
	}
	return a
}

// Stream gives the bytes of a reply as the event stream of a first answer to a
// client that wants reasoning back.
func (r Reply) Stream() []byte {
	if r.Body != nil {
		return r.Body
	}
	return slices.Concat(r.answer(0, Request{Model: "stub", Include: []string{"reasoning.encrypted_content"}}).events()...)
}

func (a *answer) status() string {
	switch {
	case a.reply.Failed != nil:
		return "failed"
	case a.reply.Incomplete != "":
		return "incomplete"
	}
	return "completed"
}

// response gives the whole answer.
func (a *answer) response() object {
	r := a.head(a.status())
	list := []any{}
	for _, it := range a.items {
		list = append(list, it)
	}
	r["output"] = list
	if a.reply.Incomplete != "" {
		r["incomplete_details"] = object{"reason": a.reply.Incomplete}
	}
	if f := a.reply.Failed; f != nil {
		r["error"] = object{"code": f.Code, "message": f.Message}
	}
	if p := a.reply; p.Input+p.Output > 0 {
		r["usage"] = object{
			"input_tokens": p.Input, "input_tokens_details": object{"cached_tokens": p.Cached},
			"output_tokens": p.Output, "output_tokens_details": object{"reasoning_tokens": p.Reasoning},
			"total_tokens": p.Input + p.Output,
		}
	}
	return r
}

func (a *answer) head(status string) object {
	return object{
		"id": fmt.Sprintf("resp_%d", a.n), "object": "response", "created_at": 1, "model": a.model, "status": status,
		"background": false, "error": nil, "incomplete_details": nil, "output": []any{}, "usage": nil,
		"parallel_tool_calls": true, "store": false, "tool_choice": "auto", "tools": []any{}, "metadata": object{},
	}
}

// stream writes the events of an answer.
type stream struct {
	out  [][]byte
	seq  int
	size int // runes in a delta
	done bool
}

func (s *stream) add(typ string, v object) {
	v["type"], v["sequence_number"] = typ, s.seq
	s.seq++
	s.out = append(s.out, slices.Concat([]byte("event: "+typ+"\ndata: "), encode(v), []byte("\n\n")))
}

// deltas writes the deltas of one text and the event that repeats it.
func (s *stream) deltas(event, field, text string, at object) {
	if !s.done {
		for _, t := range chop(text, s.size) {
			s.add(event+".delta", with(at, "delta", t))
		}
	}
	s.add(event+".done", with(at, field, text))
}

func (a *answer) events() [][]byte {
	s := &stream{size: a.reply.Runes, done: a.reply.DoneOnly}
	s.add("response.created", object{"response": a.head("in_progress")})
	s.add("response.in_progress", object{"response": a.head("in_progress")})
	for i, it := range a.items {
		a.item(s, i, it)
	}
	if f := a.reply.Error; f != nil {
		body := object{"code": f.Code, "message": f.Message, "param": nil}
		if a.reply.Flat {
			s.add("error", body)
			return s.out
		}
		body["type"] = f.Code
		s.add("error", object{"error": body})
		return s.out
	}
	s.add("response."+a.status(), object{"response": a.response()})
	return s.out
}

// item writes the life of one item.
func (a *answer) item(s *stream, i int, it object) {
	begun := object{}
	for k, v := range it {
		begun[k] = v
	}
	at := object{"output_index": i, "item_id": it["id"]}
	kind, _ := it["type"].(string)
	switch kind {
	case "message":
		begun["content"], begun["status"] = []any{}, "in_progress"
	case "function_call":
		begun["arguments"], begun["status"] = "", "in_progress"
	case "reasoning":
		begun["summary"] = []any{}
	default:
		begun = object{"type": kind, "id": it["id"], "status": "in_progress"}
		for _, k := range []string{"name", "server_label"} {
			if v, ok := it[k]; ok {
				begun[k] = v
			}
		}
	}
	s.add("response.output_item.added", object{"output_index": i, "item": begun})
	switch kind {
	case "message":
		contentOf(s, it, at)
	case "function_call":
		text, _ := it["arguments"].(string)
		s.deltas("response.function_call_arguments", "arguments", text, at)
	case "reasoning":
		list, _ := it["summary"].([]any)
		for j, x := range list {
			part := x.(object)
			text, _ := part["text"].(string)
			here := with(at, "summary_index", j)
			s.add("response.reasoning_summary_part.added", with(here, "part", object{"type": "summary_text", "text": ""}))
			s.deltas("response.reasoning_summary_text", "text", text, here)
			s.add("response.reasoning_summary_part.done", with(here, "part", part))
		}
	default:
		hostedOf(s, kind, it, at)
	}
	s.add("response.output_item.done", object{"output_index": i, "item": it})
}

func contentOf(s *stream, it, at object) {
	list, _ := it["content"].([]any)
	for j, x := range list {
		part := x.(object)
		here := with(at, "content_index", j)
		if text, ok := part["refusal"].(string); ok {
			s.add("response.content_part.added", with(here, "part", object{"type": "refusal", "refusal": ""}))
			s.deltas("response.refusal", "refusal", text, here)
		} else {
			text, _ := part["text"].(string)
			s.add("response.content_part.added", with(here, "part", object{"type": "output_text", "text": "", "annotations": []any{}}))
			s.deltas("response.output_text", "text", text, with(here, "logprobs", []any{}))
		}
		s.add("response.content_part.done", with(here, "part", part))
	}
}

// hostedOf writes the events of a hosted call between its begin and its end.
func hostedOf(s *stream, kind string, it, at object) {
	s.add("response."+kind+".in_progress", with(at))
	switch kind {
	case "mcp_call":
		text, _ := it["arguments"].(string)
		s.deltas("response.mcp_call_arguments", "arguments", text, at)
	case "code_interpreter_call":
		text, _ := it["code"].(string)
		s.deltas("response.code_interpreter_call_code", "code", text, at)
		s.add("response.code_interpreter_call.interpreting", with(at))
	case "web_search_call", "file_search_call":
		s.add("response."+kind+".searching", with(at))
	case "image_generation_call":
		s.add("response.image_generation_call.generating", with(at))
		s.add("response.image_generation_call.partial_image", with(at, "partial_image_index", 0, "partial_image_b64", "aGVsbG8="))
	}
	if it["status"] == "completed" {
		s.add("response."+kind+".completed", with(at))
	}
}

// with gives a copy of at with more members, as names and values in turn.
func with(at object, more ...any) object {
	v := object{}
	for k, x := range at {
		v[k] = x
	}
	for i := 0; i+1 < len(more); i += 2 {
		v[more[i].(string)] = more[i+1]
	}
	return v
}

func encode(v any) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only maps of texts and numbers come here
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func chop(text string, size int) []string {
	if size <= 0 {
		size = 8
	}
	var out []string
	for part := range slices.Chunk([]rune(text), size) {
		out = append(out, string(part))
	}
	return out
}
