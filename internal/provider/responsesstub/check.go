package responsesstub

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/dialect"
)

// Request is one request as the vendor saw it.
type Request struct {
	Path   string
	Header http.Header
	Body   []byte

	Model        string
	Instructions string
	Input        []Item
	Tools        []Tool
	Include      []string
	Parallel     *bool           // parallel_tool_calls
	Format       canonjson.Value // text.format
	Reasoning    canonjson.Value
	CacheKey     string
	MaxOutput    string // max_output_tokens as it was written
	Stream       bool
}

// Tool is one tool of a request: the name of a function, or the type of a tool
// that the vendor runs.
type Tool struct {
	Type, Name string
	Raw        canonjson.Value
}

// fault is a broken rule, as the vendor says it.
type fault struct {
	message, param, code string
	status               int // 0: 400
}

type checker struct {
	dull   bool
	issued map[string]issue

	req    Request
	broken []fault
}

var limits = canonjson.Limits{Bytes: maxBody, Tokens: 10_000_000, Depth: 1000}

func (c *checker) fail(param, code, format string, args ...any) {
	c.broken = append(c.broken, fault{param: param, code: code, message: fmt.Sprintf(format, args...)})
}

// shape names the fields that an object may have: 's' string, 'b' boolean, 'n'
// number, 'l' list, 'o' object, '*' anything; an upper case letter takes null too.
type shape map[string]byte

var requestShape = shape{
	"background": 'B', "context_management": '*', "conversation": '*', "include": 'L', "input": '*', "instructions": 'S',
	"max_output_tokens": 'N', "max_tool_calls": 'N', "metadata": 'O', "model": 's', "moderation": '*', "parallel_tool_calls": 'B',
	"previous_response_id": 'S', "prompt": '*', "prompt_cache_key": 'S', "prompt_cache_options": '*', "prompt_cache_retention": 'S',
	"reasoning": 'O', "safety_identifier": 'S', "service_tier": 'S', "store": 'B', "stream": 'B', "stream_options": 'O',
	"temperature": 'N', "text": 'O', "tool_choice": '*', "tools": 'L', "top_logprobs": 'N', "top_p": 'N', "truncation": 'S', "user": 's',
}

var kinds = map[byte]canonjson.Kind{'s': canonjson.String, 'b': canonjson.Bool, 'n': canonjson.Number, 'l': canonjson.Array, 'o': canonjson.Object}

// object checks the fields of an object, and that none of the named is missing.
func (c *checker) object(n canonjson.Node, path string, s shape, needs ...string) bool {
	if n.Kind() != canonjson.Object {
		c.fail(path, "invalid_type", "Invalid type for '%s': expected an object, but got %s instead.", path, article(n.Kind()))
		return false
	}
	before := len(c.broken)
	for i := range n.Len() {
		f := n.At(i)
		at := join(path, f.Name())
		want, known := s[f.Name()]
		if !known {
			c.fail(at, "unknown_parameter", "Unknown parameter: '%s'.", at)
			continue
		}
		if want == '*' || want < 'a' && f.Kind() == canonjson.Null {
			continue
		}
		if k := kinds[want|0x20]; f.Kind() != k {
			c.fail(at, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", at, article(k), article(f.Kind()))
		}
	}
	for _, name := range needs {
		if _, ok := n.Get(name); !ok {
			c.fail(join(path, name), "missing_required_parameter", "Missing required parameter: '%s'.", join(path, name))
		}
	}
	return len(c.broken) == before
}

func article(k canonjson.Kind) string {
	switch k {
	case canonjson.Null:
		return "null"
	case canonjson.Array, canonjson.Object:
		return "an " + k.String()
	}
	return "a " + k.String()
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (c *checker) oneOf(value, path string, list ...string) {
	if !slices.Contains(list, value) {
		c.fail(path, "invalid_value", "Invalid value: '%s'. Supported values are: '%s'.", value, strings.Join(list, "', '"))
	}
}

func str(n canonjson.Node, name string) string {
	f, _ := n.Get(name)
	if f.Kind() != canonjson.String {
		return ""
	}
	return f.Text()
}

func list(n canonjson.Node, name string) []canonjson.Node {
	f, _ := n.Get(name)
	if f.Kind() != canonjson.Array {
		return nil
	}
	out := make([]canonjson.Node, f.Len())
	for i := range out {
		out[i] = f.At(i)
	}
	return out
}

func raw(n canonjson.Node) canonjson.Value { return n.Append(nil) }

// check reads a request and notes every rule that it breaks.
func (c *checker) check(body []byte) {
	root, err := canonjson.Parse(body, limits)
	if err != nil {
		c.fail("", "", "We could not parse the JSON body of your request.")
		return
	}
	if !c.object(root, "", requestShape, "model", "input") {
		return
	}
	c.req.Model, c.req.Instructions, c.req.CacheKey = str(root, "model"), str(root, "instructions"), str(root, "prompt_cache_key")
	if f, ok := root.Get("stream"); ok {
		c.req.Stream = f.Bool()
	}
	if c.req.Model == "" {
		c.fail("model", "invalid_value", "you must provide a model parameter")
	}
	if n := len(c.req.CacheKey); n > 64 {
		c.tooLong("prompt_cache_key", n)
	}
	if f, ok := root.Get("max_output_tokens"); ok && f.Kind() == canonjson.Number {
		c.req.MaxOutput = f.Text()
		if n := f.Text(); len(n) < 2 || n[0] == '-' || len(n) == 2 && n < "16" {
			c.fail("max_output_tokens", "integer_below_min_value",
				"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got %s instead.", n)
		}
	}
	for _, name := range []string{"previous_response_id", "conversation"} {
		if f, ok := root.Get(name); ok && f.Kind() != canonjson.Null {
			c.fail(name, "previous_response_not_found", "%s: nothing is stored here.", name)
		}
	}
	if f, ok := root.Get("stream_options"); ok && f.Kind() == canonjson.Object && !c.req.Stream {
		c.fail("stream_options", "", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
	}
	c.reasoning(root)
	c.tools(root)
	c.input(root)
	c.text(root)
}

func (c *checker) tooLong(path string, n int) {
	c.fail(path, "string_above_max_length",
		"Invalid '%s': string too long. Expected a string with maximum length 64, but got a string with length %d instead.", path, n)
}

var includes = []string{
	"file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
	"computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs",
}

func (c *checker) reasoning(root canonjson.Node) {
	for i, n := range list(root, "include") {
		c.oneOf(n.Text(), fmt.Sprintf("include[%d]", i), includes...)
		c.req.Include = append(c.req.Include, n.Text())
	}
	if c.dull && slices.Contains(c.req.Include, "reasoning.encrypted_content") {
		c.fail("include", "", "Encrypted content is not supported with this model.")
	}
	r, ok := root.Get("reasoning")
	if !ok || r.Kind() != canonjson.Object {
		return
	}
	c.req.Reasoning = raw(r)
	if !c.object(r, "reasoning", shape{"effort": 'S', "summary": 'S', "generate_summary": 'S'}) {
		return
	}
	if e := str(r, "effort"); e != "" {
		c.oneOf(e, "reasoning.effort", "none", "minimal", "low", "medium", "high", "xhigh")
		if c.dull {
			c.fail("reasoning.effort", "unsupported_parameter", "Unsupported parameter: 'reasoning.effort' is not supported with this model.")
		}
	}
	if s := str(r, "summary"); s != "" {
		c.oneOf(s, "reasoning.summary", "auto", "concise", "detailed")
	}
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// hostedNeeds are the tools that the vendor runs, with what each needs.
var hostedNeeds = map[string][]string{
	"web_search": nil, "web_search_preview": nil, "image_generation": nil, "tool_search": nil, "shell": nil,
	"file_search": {"vector_store_ids"}, "code_interpreter": {"container"}, "mcp": {"server_label"},
}

func (c *checker) tools(root canonjson.Node) {
	names := map[string]bool{}
	for i, n := range list(root, "tools") {
		at := fmt.Sprintf("tools[%d]", i)
		t := Tool{Type: str(n, "type"), Name: str(n, "name"), Raw: raw(n)}
		c.req.Tools = append(c.req.Tools, t)
		if t.Type != "function" {
			needs, known := hostedNeeds[t.Type]
			if !known {
				c.fail(at+".type", "invalid_value", "Invalid value: '%s'.", t.Type)
			}
			for _, name := range needs {
				if _, ok := n.Get(name); !ok {
					c.fail(at+"."+name, "missing_required_parameter", "Missing required parameter: '%s.%s'.", at, name)
				}
			}
			continue
		}
		if !c.object(n, at, shape{"type": 's', "name": 's', "description": 'S', "parameters": 'O', "strict": 'B'}, "name", "parameters") {
			continue
		}
		if !toolName.MatchString(t.Name) {
			c.fail(at+".name", "invalid_value", "Invalid '%s.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", at)
		}
		if names[t.Name] {
			c.fail(at+".name", "", "The function name '%s' stands twice.", t.Name)
		}
		names[t.Name] = true
		params, _ := n.Get("parameters")
		strict, said := n.Get("strict")
		check := dialect.CheckOpenAITool
		if !said || strict.Bool() { // strict is the default
			check = dialect.CheckOpenAIStrict
		}
		if err := check(raw(params)); err != nil {
			c.fail(at+".parameters", "invalid_function_parameters", "Invalid schema for function '%s': %v", t.Name, err)
		}
	}
	if f, ok := root.Get("parallel_tool_calls"); ok && f.Kind() == canonjson.Bool {
		b := f.Bool()
		c.req.Parallel = &b
	}
	if len(c.req.Tools) > 0 {
		return
	}
	for _, name := range []string{"tool_choice", "parallel_tool_calls"} {
		if _, ok := root.Get(name); ok {
			c.fail(name, "", "%s is only allowed when 'tools' are specified.", name)
		}
	}
}

// text checks the form of the answer that is asked for.
func (c *checker) text(root canonjson.Node) {
	t, ok := root.Get("text")
	if !ok || t.Kind() != canonjson.Object || !c.object(t, "text", shape{"format": 'o', "verbosity": 'S'}) {
		return
	}
	f, ok := t.Get("format")
	if !ok {
		return
	}
	c.req.Format = raw(f)
	const at = "text.format"
	if !c.object(f, at, shape{"type": 's', "name": 's', "schema": 'o', "strict": 'B', "description": 'S'}, "type") {
		return
	}
	switch kind := str(f, "type"); kind {
	case "json_schema":
		schema, ok := f.Get("schema")
		if !ok || !toolName.MatchString(str(f, "name")) {
			c.fail(at, "missing_required_parameter", "Missing required parameter: 'text.format.name' or 'text.format.schema'.")
			return
		}
		if strict, _ := f.Get("strict"); strict.Bool() {
			if err := dialect.CheckOpenAIStrict(raw(schema)); err != nil {
				c.fail(at+".schema", "invalid_json_schema", "Invalid schema for response_format '%s': %v", str(f, "name"), err)
			}
		}
	case "json_object":
		said := slices.ContainsFunc(c.req.Input, func(it Item) bool { return strings.Contains(strings.ToLower(it.Text), "json") })
		if !said {
			c.fail("input", "", "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.")
		}
		if slices.ContainsFunc(c.req.Tools, func(t Tool) bool { return strings.HasPrefix(t.Type, "web_search") }) {
			c.fail("", "", "Web Search cannot be used with JSON mode.")
		}
	default:
		c.oneOf(kind, at+".type", "text")
	}
}
