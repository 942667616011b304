package geministub

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Request is one request as the vendor saw it. Node fields are the zero Node
// where the request does not have them.
type Request struct {
	Model  string
	Method string // "generateContent" or "streamGenerateContent"
	Header http.Header
	Body   []byte

	Root      canonjson.Node
	Contents  []Content
	Functions []string // the names declared
	Hosted    []string // the hosted tools offered
	Mode      string   // of function calling
}

// Content is one content of a request.
type Content struct {
	Role  string
	Parts []canonjson.Node
}

var limits = canonjson.Limits{Bytes: maxBody, Tokens: 10_000_000}

// checker checks one request by the rules for one model.
type checker struct {
	stub   *Stub
	model  string
	older  bool // a generation before Gemini 3
	broken []string
}

// check reads a request and gives every rule that it breaks.
func (s *Stub) check(body []byte, model string) (Request, []string) {
	root, err := canonjson.Parse(body, limits)
	if err != nil || root.Kind() != canonjson.Object {
		return Request{}, []string{"the body is not a strict JSON object"}
	}
	c := checker{stub: s, model: model, older: strings.HasPrefix(model, "gemini-1") || strings.HasPrefix(model, "gemini-2")}
	req := Request{Root: root}
	c.fields(root, "", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings")
	if sys, ok := root.Get("systemInstruction"); ok {
		c.system(sys)
	}
	c.tools(&req)
	c.generation(root, len(req.Functions)+len(req.Hosted) > 0)
	list, _ := root.Get("contents")
	for i := range list.Len() {
		req.Contents = append(req.Contents, c.content(list.At(i), i))
	}
	c.turns(req.Contents)
	return req, c.broken
}

func (c *checker) want(ok bool, format string, args ...any) {
	if !ok {
		c.broken = append(c.broken, fmt.Sprintf(format, args...))
	}
}

// fields refuses every name that is not known.
func (c *checker) fields(n canonjson.Node, at string, known ...string) {
	c.want(n.Kind() == canonjson.Object, "%s is no object", at)
	for i := range n.Len() {
		name := n.At(i).Name()
		c.want(slices.Contains(known, name), "Invalid JSON payload received. Unknown name %q at '%s': Cannot find field.", name, at)
	}
}

func text(n canonjson.Node, name string) string {
	v, _ := n.Get(name)
	return v.Text()
}

func (c *checker) isObject(n canonjson.Node, name, at string) {
	v, ok := n.Get(name)
	c.want(ok && v.Kind() == canonjson.Object, "%s.%s: want an object", at, name)
}

func (c *checker) system(sys canonjson.Node) {
	c.fields(sys, "system_instruction", "parts", "role")
	parts, _ := sys.Get("parts")
	c.want(parts.Len() > 0, "system_instruction.parts must not be empty")
	for i := range parts.Len() {
		c.fields(parts.At(i), "system_instruction.parts", "text")
		c.want(text(parts.At(i), "text") != "", "system_instruction: an empty text")
	}
}

func (c *checker) content(n canonjson.Node, i int) Content {
	at := fmt.Sprintf("contents[%d]", i)
	c.fields(n, at, "role", "parts")
	out := Content{Role: text(n, "role")}
	c.want(out.Role == "user" || out.Role == "model", "%s: Please use a valid role: user, model.", at)
	parts, _ := n.Get("parts")
	c.want(parts.Len() > 0, "%s.parts must not be empty", at)
	for j := range parts.Len() {
		p := parts.At(j)
		out.Parts = append(out.Parts, p)
		c.part(p, out.Role, fmt.Sprintf("%s.parts[%d]", at, j))
	}
	c.hosted(out.Parts, at)
	return out
}

var data = []string{"text", "inlineData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult", "toolCall", "toolResponse"}

// kind gives the one data field of a part.
func kind(p canonjson.Node) string {
	found := ""
	for _, name := range data {
		if _, ok := p.Get(name); ok {
			if found != "" {
				return "several"
			}
			found = name
		}
	}
	return found
}

func (c *checker) part(p canonjson.Node, role, at string) {
	c.fields(p, at, append([]string{"thought", "thoughtSignature"}, data...)...)
	k := kind(p)
	c.want(k != "" && k != "several", "%s: required oneof field 'data' must have one initialized field", at)
	v, _ := p.Get(k)
	signature := text(p, "thoughtSignature")
	switch k {
	case "text":
		c.want(v.Kind() == canonjson.String, "%s.text: want a text", at)
		c.want(v.Text() != "" || signature != "", "%s: Unable to submit request because it must have a text parameter", at)
	case "inlineData":
		c.want(role == "user", "%s: media of the model", at)
		c.media(v, at)
	case "functionCall":
		c.want(role == "model", "%s: a function call of the user", at)
		c.fields(v, at+".function_call", "id", "name", "args")
		c.want(functionName.MatchString(text(v, "name")), "%s: Invalid function name", at)
		c.isObject(v, "args", at)
	case "functionResponse":
		c.want(role == "user", "%s: a function response of the model", at)
		c.fields(v, at+".function_response", "id", "name", "response", "parts")
		c.isObject(v, "response", at)
	default:
		c.want(role == "model", "%s: a hosted tool of the user", at)
	}
	c.signature(p, k, signature, at)
}

var mediaTypes = []string{"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf", "text/plain"}

func (c *checker) media(v canonjson.Node, at string) {
	c.fields(v, at+".inline_data", "mimeType", "data")
	c.want(slices.Contains(mediaTypes, text(v, "mimeType")), "%s: Unsupported MIME type: %s", at, text(v, "mimeType"))
	raw, err := base64.StdEncoding.DecodeString(text(v, "data"))
	c.want(err == nil && len(raw) > 0, "%s: Base64 decoding failed", at)
	c.want(len(raw) <= 50<<20, "%s: the file is too large", at)
}

// Skips are the values that the vendor documents for calls that have no
// signature of its own.
var Skips = []string{"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"}

var base64Text = regexp.MustCompile(`^[A-Za-z0-9+/_-]+=*$`)

// signature holds every signature to the part that it was handed out with.
func (c *checker) signature(p canonjson.Node, k, signature, at string) {
	if k == "functionCall" {
		call, _ := p.Get(k)
		if want, ours := c.stub.ids[text(call, "id")]; ours {
			c.want(signature == want || want == "" && slices.Contains(Skips, signature), "%s: the call had another thought signature, or none", at)
		}
	}
	if signature == "" || slices.Contains(Skips, signature) && k == "functionCall" {
		return
	}
	c.want(base64Text.MatchString(signature), "%s.thought_signature: Base64 decoding failed", at)
	h, ours := c.stub.signed[signature]
	c.want(ours, "%s: Thought signature is not valid.", at)
	c.want(!ours || h.model == c.model, "%s: the thought signature is of another model", at)
	c.want(!ours || h.part == canonical(p), "%s: the thought signature came with another part", at)
}

// canonical gives a part's canonical form. A call without arguments is one
// with none.
func canonical(p canonjson.Node) string {
	return strings.NewReplacer(`"functionCall":{"id"`, `"functionCall":{"args":{},"id"`, `"functionCall":{"name"`, `"functionCall":{"args":{},"name"`).
		Replace(string(p.Append(nil)))
}

// hosted pairs the calls and results of hosted tools in one content.
func (c *checker) hosted(parts []canonjson.Node, at string) {
	codes, calls := 0, map[string]bool{}
	for _, p := range parts {
		switch k := kind(p); k {
		case "executableCode":
			v, _ := p.Get(k)
			c.fields(v, at+".executable_code", "id", "language", "code")
			c.want(text(v, "language") == "PYTHON", "%s: the language of code is not known", at)
			codes++
		case "codeExecutionResult":
			v, _ := p.Get(k)
			c.fields(v, at+".code_execution_result", "id", "outcome", "output")
			c.want(codes > 0, "%s: a code execution result without code before it", at)
			codes--
		case "toolCall":
			v, _ := p.Get(k)
			c.fields(v, at+".tool_call", "id", "toolType", "args")
			calls[text(v, "id")] = true
		case "toolResponse":
			v, _ := p.Get(k)
			c.fields(v, at+".tool_response", "id", "toolType", "response")
			c.want(calls[text(v, "id")], "%s: a tool response without its tool call", at)
			delete(calls, text(v, "id"))
		}
	}
}

// turns checks the order of contents and the pairing of calls and responses.
func (c *checker) turns(list []Content) {
	if len(list) == 0 {
		c.want(false, "GenerateContentRequest.contents: contents is not specified")
		return
	}
	c.want(list[0].Role == "user", "Please ensure that multiturn requests begin with a user role")
	c.want(list[len(list)-1].Role == "user", "Please ensure that multiturn requests end with a user role or a function response")
	now := 0 // where the present turn of the model begins
	for i, con := range list {
		if con.Role == "user" && len(of(con, "functionResponse")) == 0 {
			now = i
		}
	}
	for i, con := range list {
		calls, responses := of(con, "functionCall"), of(con, "functionResponse")
		if len(responses) > 0 {
			c.want(len(responses) == len(con.Parts), "contents[%d]: other parts among function responses", i)
			c.want(i > 0 && len(of(list[i-1], "functionCall")) > 0, "contents[%d]: Please ensure that function response turn comes immediately after a function call turn.", i)
		}
		if len(calls) == 0 {
			continue
		}
		c.want(i > 0 && list[i-1].Role == "user", "contents[%d]: Please ensure that function call turn comes immediately after a user turn or after a function response turn.", i)
		if !c.older && i > now {
			first := con.Parts[slices.IndexFunc(con.Parts, func(p canonjson.Node) bool { return kind(p) == "functionCall" })]
			c.want(text(first, "thoughtSignature") != "", "contents[%d]: Function call is missing a thought_signature in functionCall parts.", i)
		}
		if i+1 < len(list) {
			responses = of(list[i+1], "functionResponse")
		}
		c.pairs(calls, responses, i)
	}
}

func of(con Content, k string) []canonjson.Node {
	var out []canonjson.Node
	for _, p := range con.Parts {
		if v, ok := p.Get(k); ok {
			out = append(out, v)
		}
	}
	return out
}

// pairs: the vendor matches by name and order; an id of a call comes back.
func (c *checker) pairs(calls, responses []canonjson.Node, i int) {
	if len(calls) != len(responses) {
		c.want(false, "contents[%d]: Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.", i)
		return
	}
	for j := range calls {
		c.want(text(calls[j], "name") == text(responses[j], "name"), "contents[%d]: function response %d has another name than its call", i+1, j)
		c.want(text(calls[j], "id") == text(responses[j], "id"), "contents[%d]: function_response.id does not match function_call.id", i+1)
	}
}
