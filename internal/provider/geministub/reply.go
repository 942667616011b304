package geministub

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// Reply is one answer of the stub. The zero Reply is an answer with an empty
// text that ends with STOP.
type Reply struct {
	Parts         []Part
	Finish        string // default "STOP"; "-" for none
	FinishMessage string
	Block         string // promptFeedback.blockReason, without candidates
	Grounding     json.RawMessage
	Input         int // usage; with all of these 0 none is sent
	Output        int
	Thoughts      int
	Cached        int
	Runes         int  // runes in each piece of a text; default 8
	Plain         bool // one JSON object instead of a stream
	List          bool // a JSON list instead of an event stream

	// After is written behind the answer as it is: the error of a stream that
	// fails, which the vendor's servers write without the form of an event.
	After []byte

	// Body, when it is not nil, is sent as it is instead of all of the above.
	Body        []byte
	Status      int // default 200
	ContentType string
	Header      http.Header

	CutAfter int           // > 0: the connection breaks after so many bytes of the body
	Hold     bool          // the connection stays open after the body until the client leaves
	Delay    time.Duration // before the head of the answer
	Pause    time.Duration // before each event of a stream
}

// Part is one part of an answer. A text comes in pieces, the last of which has
// the signature; everything else comes whole.
type Part struct {
	Text      string
	Thought   bool
	Call      *Call
	Raw       json.RawMessage // any other part, as it is
	Signature string
}

// Call is a function call. Args is the JSON of its arguments, left out when "".
type Call struct{ ID, Name, Args string }

// Text makes a part of text.
func Text(text string) Part { return Part{Text: text} }

// Thought makes a part of thinking.
func Thought(text string) Part { return Part{Text: text, Thought: true} }

// Calls makes a part with a function call.
func Calls(id, name, args string) Part { return Part{Call: &Call{id, name, args}} }

// Signed gives the part with a signature.
func (p Part) Signed(signature string) Part {
	p.Signature = signature
	return p
}

// Stream gives the bytes of a reply as an event stream.
func (r Reply) Stream() []byte { return slices.Concat(r.events()...) }

// pieces gives the parts as they are sent, each in a chunk of its own.
func (r Reply) pieces() []map[string]any {
	var out []map[string]any
	add := func(p map[string]any, signature string) {
		if signature != "" {
			p["thoughtSignature"] = signature
		}
		out = append(out, p)
	}
	for _, p := range r.Parts {
		switch {
		case p.Raw != nil:
			var o map[string]any
			if err := json.Unmarshal(p.Raw, &o); err != nil {
				panic("geministub: a raw part is no object: " + err.Error())
			}
			add(o, p.Signature)
		case p.Call != nil:
			add(map[string]any{"functionCall": p.Call.object()}, p.Signature)
		default:
			list := []string{p.Text}
			if !r.Plain && p.Text != "" {
				list = chop(p.Text, r.Runes)
			}
			for i, text := range list {
				o := map[string]any{"text": text}
				if p.Thought {
					o["thought"] = true
				}
				if i == len(list)-1 {
					add(o, p.Signature)
				} else {
					add(o, "")
				}
			}
		}
	}
	return out
}

func (c *Call) object() map[string]any {
	o := map[string]any{"name": c.Name}
	if c.ID != "" {
		o["id"] = c.ID
	}
	if c.Args != "" {
		o["args"] = json.RawMessage(c.Args)
	}
	return o
}

// events gives the body in the pieces in which it is sent.
func (r Reply) events() [][]byte {
	if r.Body != nil {
		return [][]byte{r.Body}
	}
	chunks := r.chunks()
	var out [][]byte
	for i, c := range chunks {
		raw := encode(c)
		switch {
		case r.Plain:
		case r.List && i == 0:
			raw = slices.Concat([]byte("["), raw)
		case r.List:
			raw = slices.Concat([]byte("\n,\r\n"), raw)
		default:
			raw = slices.Concat([]byte("data: "), raw, []byte("\r\n\r\n"))
		}
		out = append(out, raw)
	}
	if r.List && r.After == nil {
		out = append(out, []byte("\n]\n"))
	}
	if r.After != nil {
		out = append(out, r.After)
	}
	return out
}

// chunks gives the objects of the answer, the last with the finish reason. The
// usage runs along.
func (r Reply) chunks() []map[string]any {
	if r.Block != "" {
		c := r.envelope(nil)
		c["promptFeedback"] = map[string]any{"blockReason": r.Block}
		r.usage(c, true)
		return []map[string]any{c}
	}
	pieces := r.pieces()
	if len(pieces) == 0 {
		pieces = []map[string]any{{"text": ""}}
	}
	if r.Plain {
		c := r.envelope(pieces)
		r.end(c)
		return []map[string]any{c}
	}
	var out []map[string]any
	for _, p := range pieces {
		c := r.envelope([]map[string]any{p})
		r.usage(c, false)
		out = append(out, c)
	}
	r.end(out[len(out)-1])
	return out
}

func (r Reply) envelope(parts []map[string]any) map[string]any {
	c := map[string]any{"modelVersion": "stub", "responseId": "r1"}
	if parts != nil {
		c["candidates"] = []any{map[string]any{"content": map[string]any{"parts": parts, "role": "model"}, "index": 0}}
	}
	return c
}

func (r Reply) end(c map[string]any) {
	r.usage(c, true)
	first := c["candidates"].([]any)[0].(map[string]any)
	if r.Grounding != nil {
		first["groundingMetadata"] = r.Grounding
	}
	if r.FinishMessage != "" {
		first["finishMessage"] = r.FinishMessage
	}
	switch r.Finish {
	case "-":
	case "":
		first["finishReason"] = "STOP"
	default:
		first["finishReason"] = r.Finish
	}
}

func (r Reply) usage(c map[string]any, last bool) {
	if r.Input+r.Output+r.Thoughts+r.Cached == 0 {
		return
	}
	u := map[string]any{"promptTokenCount": r.Input, "totalTokenCount": r.Input + r.Thoughts}
	if r.Cached > 0 {
		u["cachedContentTokenCount"] = r.Cached
	}
	if r.Thoughts > 0 {
		u["thoughtsTokenCount"] = r.Thoughts
	}
	if last && r.Output > 0 {
		u["candidatesTokenCount"] = r.Output
		u["totalTokenCount"] = r.Input + r.Thoughts + r.Output
	}
	c["usageMetadata"] = u
}

// chop cuts text into pieces of runes.
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
