package messagesstub

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Block is one content block of a reply: its members, as the vendor has them.
type Block map[string]any

// Text is a block of text.
func Text(s string) Block { return Block{"type": "text", "text": s} }

// Cited is a block of text with one citation of a web page.
func Cited(s, url string) Block {
	return Block{"type": "text", "text": s, "citations": []any{Block{
		"type": "web_search_result_location", "url": url, "title": "T", "encrypted_index": "ix", "cited_text": s,
	}}}
}

// Thinking is a block of thinking with its signature.
func Thinking(s string) Block { return Block{"type": "thinking", "thinking": s, "signature": Sign(s)} }

// Hidden is a block of thinking whose text is not shown: it has a signature only.
func Hidden(seed string) Block {
	return Block{"type": "thinking", "thinking": "", "signature": "hidden." + seed + "." + digest("hidden"+seed)}
}

// Redacted is a block of thinking that is encrypted.
func Redacted(seed string) Block {
	return Block{"type": "redacted_thinking", "data": "red." + seed + "." + digest("red"+seed)}
}

// Sign gives the signature of a thinking text.
func Sign(thinking string) string { return "sig." + digest("sig"+thinking) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

// signed says whether a signature is of this text, and whole.
func signed(thinking, signature string) bool {
	if rest, ok := strings.CutPrefix(signature, "hidden."); ok {
		return thinking == "" && sealed("hidden", rest)
	}
	return signature == Sign(thinking)
}

func sealed(kind, rest string) bool {
	i := strings.LastIndexByte(rest, '.')
	return i >= 0 && digest(kind+rest[:i]) == rest[i+1:]
}

// ToolUse is a call. Arguments are sent as they are, in fragments.
func ToolUse(id, name, arguments string) Block {
	return Block{"type": "tool_use", "id": id, "name": name, "input": fragments(arguments)}
}

// CodeUse is a call that code made which runs under the given hosted call.
func CodeUse(id, name, arguments, tool string) Block {
	b := ToolUse(id, name, arguments)
	b["caller"] = Block{"type": "code_execution_20260120", "tool_id": tool}
	return b
}

// fragments is an input that may be no whole JSON.
type fragments string

// MarshalJSON gives the input as a value, {} when it is none.
func (f fragments) MarshalJSON() ([]byte, error) {
	if !json.Valid([]byte(f)) {
		return []byte("{}"), nil
	}
	return []byte(f), nil
}

// Hosted is a call of a tool that the vendor runs.
func Hosted(id, name, arguments string) Block {
	return Block{"type": "server_tool_use", "id": id, "name": name, "input": fragments(arguments)}
}

// Found is the result of a hosted web search.
func Found(id string, urls ...string) Block {
	list := []any{}
	for _, u := range urls {
		list = append(list, Block{"type": "web_search_result", "url": u, "title": "T", "encrypted_content": digest(u), "page_age": nil})
	}
	return Block{"type": "web_search_tool_result", "tool_use_id": id, "content": list}
}

// Ran is the result of hosted code.
func Ran(id, stdout string) Block {
	return Block{"type": "code_execution_tool_result", "tool_use_id": id, "content": Block{
		"type": "code_execution_result", "stdout": stdout, "stderr": "", "return_code": 0, "content": []any{},
	}}
}

// HostedFailed is the result of a hosted tool that failed.
func HostedFailed(id, kind, code string) Block {
	return Block{"type": kind + "_tool_result", "tool_use_id": id, "content": Block{"type": kind + "_tool_result_error", "error_code": code}}
}

// JSON gives the block as the vendor's plain answer holds it.
func (b Block) JSON() json.RawMessage { return encode(map[string]any(b)) }

func (b Block) kind() string {
	s, _ := b["type"].(string)
	return s
}

func (b Block) text(name string) string {
	s, _ := b[name].(string)
	return s
}

// with gives a copy with members set, for the start of a block.
func (b Block) with(pairs ...any) Block {
	c := Block{}
	for k, v := range b {
		c[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		c[pairs[i].(string)] = pairs[i+1]
	}
	return c
}

// Stream gives the bytes of a reply as an event stream.
func (r Reply) Stream() []byte { return slices.Concat(r.events("stub")...) }

func (r Reply) events(model string) [][]byte {
	var out [][]byte
	add := func(kind string, members Block) {
		out = append(out, slices.Concat([]byte("event: "+kind+"\ndata: "), encode(map[string]any(members.with("type", kind))), []byte("\n\n")))
	}
	start := r.message(model, nil, nil)
	if u := r.usage(); u != nil {
		u["output_tokens"] = min(1, r.Output)
		start["usage"] = u
	}
	add("message_start", Block{"message": start})
	add("ping", Block{})
	for i, b := range r.Blocks {
		r.block(add, i, b)
	}
	d := Block{"stop_reason": r.stop(), "stop_sequence": nil}
	if r.Refusal != "" {
		d["stop_details"] = Block{"type": "refusal", "category": nil, "explanation": r.Refusal}
	}
	if r.Container != "" {
		d["container"] = r.container()
	}
	last := Block{"delta": d}
	if u := r.usage(); u != nil {
		last["usage"] = u
	}
	add("message_delta", last)
	add("message_stop", Block{})
	return out
}

func (r Reply) block(add func(string, Block), i int, b Block) {
	delta := func(kind string, members Block) {
		add("content_block_delta", Block{"index": i, "delta": members.with("type", kind)})
	}
	begin := func(start Block) { add("content_block_start", Block{"index": i, "content_block": start}) }
	switch kind := b.kind(); {
	case kind == "text":
		start := b.with("text", "")
		cited, _ := b["citations"].([]any)
		if cited != nil {
			start["citations"] = []any{}
		}
		begin(start)
		for _, t := range chop(b.text("text"), r.Runes) {
			delta("text_delta", Block{"text": t})
		}
		for _, c := range cited {
			delta("citations_delta", Block{"citation": c})
		}
	case kind == "thinking":
		begin(b.with("thinking", "", "signature", ""))
		for _, t := range chop(b.text("thinking"), r.Runes) {
			delta("thinking_delta", Block{"thinking": t})
		}
		if s := b.text("signature"); s != "" {
			delta("signature_delta", Block{"signature": s})
		}
	case strings.HasSuffix(kind, "tool_use"):
		begin(b.with("input", Block{}))
		delta("input_json_delta", Block{"partial_json": ""})
		args, isText := b["input"].(fragments)
		if !isText {
			args = fragments(encode(b["input"]))
		}
		for _, t := range chop(string(args), r.Runes) {
			delta("input_json_delta", Block{"partial_json": t})
		}
	default:
		begin(b)
	}
	add("content_block_stop", Block{"index": i})
}

// Plain gives the bytes of a reply as one JSON answer.
func (r Reply) Plain(model string) []byte {
	content := []any{}
	for _, b := range r.Blocks {
		content = append(content, b.JSON())
	}
	return encode(map[string]any(r.message(model, content, r.stop())))
}

func (r Reply) message(model string, content []any, stop any) Block {
	m := Block{"id": "msg_stub", "type": "message", "role": "assistant", "model": model,
		"content": content, "stop_reason": stop, "stop_sequence": nil, "usage": r.usage()}
	if content == nil {
		m["content"] = []any{}
	} else {
		if r.Refusal != "" {
			m["stop_details"] = Block{"type": "refusal", "category": nil, "explanation": r.Refusal}
		}
		if r.Container != "" {
			m["container"] = r.container()
		}
	}
	return m
}

func (r Reply) container() Block {
	return Block{"id": r.Container, "expires_at": "2999-01-01T00:00:00Z"}
}

func (r Reply) stop() any {
	switch {
	case r.Stop == "-":
		return nil
	case r.Stop != "":
		return r.Stop
	}
	for _, b := range r.Blocks {
		if b.kind() == "tool_use" {
			return "tool_use"
		}
	}
	return "end_turn"
}

func (r Reply) usage() Block {
	if r.Input+r.Output+r.CacheRead+r.CacheWrite == 0 {
		return nil
	}
	u := Block{"input_tokens": r.Input, "output_tokens": r.Output,
		"cache_creation_input_tokens": r.CacheWrite, "cache_read_input_tokens": r.CacheRead}
	if r.Thought > 0 {
		u["output_tokens_details"] = Block{"thinking_tokens": r.Thought}
	}
	return u
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

func hostedCall(kind string) bool   { return strings.HasSuffix(kind, "_tool_use") }
func hostedResult(kind string) bool { return strings.HasSuffix(kind, "_tool_result") }

func at(i, j int) string { return fmt.Sprintf("messages.%d.content.%d", i, j) }
