package responsesstub

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Item is one item of a request's input.
type Item struct {
	Type, Role, ID, CallID, Name, Phase string
	Text                                string   // of a message all texts, of a call its arguments, of an output its text
	Media                               []string // the media types of pictures and files, in order
	Raw                                 canonjson.Value
}

// maxFile is the most that one file may hold, in bytes of base64.
const maxFile = 50 << 20

// shapes are the items that may be sent, beside messages. Those of hosted
// tools must be items that were handed out.
var shapes = map[string]shape{
	"function_call":        {"type": 's', "id": 'S', "call_id": 's', "name": 's', "arguments": 's', "status": 'S'},
	"function_call_output": {"type": 's', "id": 'S', "call_id": 's', "output": '*', "status": 'S'},
	"reasoning":            {"type": 's', "id": 's', "summary": 'l', "content": 'l', "encrypted_content": 'S', "status": 's'},
}

var messageShape = shape{"type": 's', "role": 's', "content": '*', "id": 's', "status": 's', "phase": 'S'}

var hostedItems = []string{
	"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "mcp_list_tools", "compaction",
}

func (c *checker) input(root canonjson.Node) {
	in, _ := root.Get("input")
	if in.Kind() == canonjson.String {
		c.req.Input = []Item{{Type: "message", Role: "user", Text: in.Text()}}
		return
	}
	if in.Kind() != canonjson.Array {
		c.fail("input", "invalid_type", "Invalid type for 'input': expected one of a string or array, but got %s instead.", article(in.Kind()))
		return
	}
	if in.Len() == 0 {
		c.fail("input", "", "One of 'input' or 'previous_response_id' must be provided.")
	}
	for i := range in.Len() {
		c.item(in.At(i), fmt.Sprintf("input[%d]", i))
	}
	c.pairs()
	c.order()
}

func (c *checker) item(n canonjson.Node, at string) {
	it := Item{
		Type: str(n, "type"), Role: str(n, "role"), ID: str(n, "id"), CallID: str(n, "call_id"),
		Name: str(n, "name"), Phase: str(n, "phase"), Raw: raw(n),
	}
	if it.Type == "" && it.Role != "" {
		it.Type = "message"
	}
	defer func() { c.req.Input = append(c.req.Input, it) }()
	s, known := shapes[it.Type]
	switch {
	case it.Type == "message":
		c.message(n, at, &it)
		return
	case it.Type == "item_reference":
		c.notFound(it.ID)
		return
	case slices.Contains(hostedItems, it.Type):
		c.unchanged(it, at)
		return
	case !known:
		c.fail(at+".type", "invalid_value", "Invalid value: '%s'.", it.Type)
		return
	}
	switch it.Type {
	case "function_call":
		it.Text = str(n, "arguments")
		if !c.object(n, at, s, "call_id", "name", "arguments") {
			return
		}
		if args, err := canonjson.ParseString(it.Text, limits); err != nil || args.Kind() != canonjson.Object {
			c.fail(at+".arguments", "invalid_value", "The arguments of a function call are no JSON object.")
		}
		if !toolName.MatchString(it.Name) {
			c.fail(at+".name", "invalid_value", "Invalid '%s.name': string does not match pattern.", at)
		}
		c.prefix(it.ID, "fc", at)
	case "function_call_output":
		it.Text = str(n, "output")
		if c.object(n, at, s, "call_id", "output") && it.Text == "" && len(list(n, "output")) == 0 {
			c.fail(at+".output", "invalid_value", "The output of a function call is empty.")
		}
	case "reasoning":
		if c.object(n, at, s, "id", "summary") {
			c.thought(n, at, it)
		}
	}
	if len(it.CallID) > 64 {
		c.tooLong(at+".call_id", len(it.CallID))
	}
}

func (c *checker) prefix(id, want, at string) {
	if id != "" && !strings.HasPrefix(id, want) {
		c.fail(at+".id", "invalid_value", "Invalid '%s.id': '%s'. Expected an ID that begins with '%s'.", at, id, want)
	}
}

func (c *checker) notFound(id string) {
	c.broken = append(c.broken, fault{status: http.StatusNotFound, param: "input", message: fmt.Sprintf(
		"Item with id '%s' not found. Items are not persisted when `store` is set to false. "+
			"Try again with `store` set to true, or remove this item from your input.", id)})
}

// thought checks an item of reasoning: with what it needs to be read, and as
// it was handed out.
func (c *checker) thought(n canonjson.Node, at string, it Item) {
	c.prefix(it.ID, "rs", at)
	sealed := str(n, "encrypted_content")
	if sealed == "" {
		if len(list(n, "content")) == 0 {
			c.notFound(it.ID)
		}
		return
	}
	x, known := c.issued[it.ID]
	if !known || !x.value.Equal(it.Raw) {
		c.fail("", "invalid_encrypted_content",
			"The encrypted content %.10s... could not be verified. Reason: Encrypted content could not be decrypted or parsed.", sealed)
	}
}

// unchanged checks that an item of a hosted tool is as it was handed out.
func (c *checker) unchanged(it Item, at string) {
	if x, known := c.issued[it.ID]; !known {
		c.notFound(it.ID)
	} else if !x.value.Equal(it.Raw) {
		c.fail(at, "invalid_value", "Item '%s' is not as it was given.", it.ID)
	}
}

func (c *checker) message(n canonjson.Node, at string, it *Item) {
	if !c.object(n, at, messageShape, "role", "content") {
		return
	}
	c.oneOf(it.Role, at+".role", "user", "assistant", "system", "developer")
	c.prefix(it.ID, "msg", at)
	if _, ok := n.Get("phase"); ok && it.Role != "assistant" {
		c.fail(at+".phase", "unknown_parameter", "Unknown parameter: '%s.phase'.", at)
	} else if it.Phase != "" {
		c.oneOf(it.Phase, at+".phase", "commentary", "final_answer")
	}
	body, _ := n.Get("content")
	switch body.Kind() {
	case canonjson.String:
		it.Text = body.Text()
	case canonjson.Array:
		for i := range body.Len() {
			here := fmt.Sprintf("%s.content[%d]", at, i)
			if it.Role == "assistant" {
				c.said(body.At(i), here, it)
			} else {
				c.given(body.At(i), here, it)
			}
		}
	default:
		c.fail(at+".content", "invalid_type", "Invalid type for '%s.content': expected one of a string or array, but got %s instead.", at, article(body.Kind()))
	}
	if it.Text == "" && it.Media == nil {
		c.fail(at+".content", "invalid_value", "The content of a message is empty.")
	}
}

func (c *checker) said(n canonjson.Node, at string, it *Item) {
	switch kind := str(n, "type"); kind {
	case "output_text":
		c.object(n, at, shape{"type": 's', "text": 's', "annotations": 'l', "logprobs": 'L'}, "text")
		it.Text += str(n, "text")
	case "refusal":
		c.object(n, at, shape{"type": 's', "refusal": 's'}, "refusal")
		it.Text += str(n, "refusal")
	default:
		c.oneOf(kind, at+".type", "output_text", "refusal")
	}
}

func (c *checker) given(n canonjson.Node, at string, it *Item) {
	switch kind := str(n, "type"); kind {
	case "input_text":
		c.object(n, at, shape{"type": 's', "text": 's'}, "text")
		it.Text += str(n, "text")
	case "input_image":
		if c.object(n, at, shape{"type": 's', "detail": 'S', "image_url": 'S', "file_id": 'S'}) && str(n, "file_id") == "" {
			c.media(str(n, "image_url"), at+".image_url", it, "image/png", "image/jpeg", "image/gif", "image/webp")
		}
	case "input_file":
		c.object(n, at, shape{"type": 's', "detail": 's', "filename": 's', "file_data": 's', "file_id": 'S', "file_url": 's'})
		if data := str(n, "file_data"); data != "" {
			c.media(data, at+".file_data", it, "application/pdf")
			if str(n, "filename") == "" {
				c.fail(at+".filename", "missing_required_parameter", "Missing required parameter: '%s.filename'.", at)
			}
		}
	default:
		c.oneOf(kind, at+".type", "input_text", "input_image", "input_file")
	}
}

// media checks a file that stands in a data URL.
func (c *checker) media(url, at string, it *Item, types ...string) {
	if strings.HasPrefix(url, "https://") {
		return
	}
	rest, isData := strings.CutPrefix(url, "data:")
	kind, data, isBase64 := strings.Cut(rest, ";base64,")
	if _, err := base64.StdEncoding.DecodeString(data); !isData || !isBase64 || err != nil || data == "" {
		c.fail(at, "invalid_base64", "Invalid '%s'. Expected a base64-encoded data URL.", at)
		return
	}
	if len(data) > maxFile {
		c.fail(at, "file_too_large", "The file in '%s' is too large.", at)
	}
	c.oneOf(kind, at, types...)
	it.Media = append(it.Media, kind)
}

// pairs checks that each call has one output behind it, and each output a call.
func (c *checker) pairs() {
	open, seen := map[string]bool{}, map[string]bool{}
	for _, it := range c.req.Input {
		switch it.Type {
		case "function_call":
			if seen[it.CallID] {
				c.fail("input", "", "The call id %s stands twice.", it.CallID)
			}
			open[it.CallID], seen[it.CallID] = true, true
		case "function_call_output":
			if !open[it.CallID] {
				c.fail("input", "", "No tool call found for function call output with call_id %s.", it.CallID)
			}
			delete(open, it.CallID)
		}
	}
	for _, it := range c.req.Input {
		if it.Type == "function_call" && open[it.CallID] {
			c.fail("input", "", "No tool output found for function call %s.", it.CallID)
		}
	}
}

// order checks that what a thought led to stands right behind it.
func (c *checker) order() {
	for i, it := range c.req.Input {
		if it.Type != "reasoning" {
			continue
		}
		next := Item{}
		if i+1 < len(c.req.Input) {
			next = c.req.Input[i+1]
		}
		want := c.issued[it.ID].next
		ok := next.Type == "function_call" || next.Type == "reasoning" || next.Type == "message" && next.Role == "assistant" || slices.Contains(hostedItems, next.Type)
		if !ok || want != "" && next.Type != want {
			c.fail("input", "", "Item '%s' of type 'reasoning' was provided without its required following item.", it.ID)
		}
	}
}
