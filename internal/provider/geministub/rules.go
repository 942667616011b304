package geministub

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/dialect"
)

var functionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$`)

// tools checks the tools and their configuration.
func (c *checker) tools(req *Request) {
	list, _ := req.Root.Get("tools")
	hosted := []string{"googleSearch", "urlContext", "codeExecution", "googleMaps", "fileSearch", "computerUse", "googleSearchRetrieval"}
	for i := range list.Len() {
		t := list.At(i)
		at := fmt.Sprintf("tools[%d]", i)
		c.fields(t, at, append([]string{"functionDeclarations"}, hosted...)...)
		for j := range t.Len() {
			if t.At(j).Name() == "functionDeclarations" {
				c.functions(t.At(j), req, at)
				continue
			}
			req.Hosted = append(req.Hosted, t.At(j).Name())
			c.want(t.At(j).Kind() == canonjson.Object, "%s: a hosted tool is no object", at)
		}
	}
	both := len(req.Functions) > 0 && len(req.Hosted) > 0
	c.want(!both || !c.older, "Tool use with function calling is unsupported")
	conf, ok := req.Root.Get("toolConfig")
	if ok {
		c.fields(conf, "tool_config", "functionCallingConfig", "includeServerSideToolInvocations")
	}
	report, _ := conf.Get("includeServerSideToolInvocations")
	c.want(!both || c.older || report.Bool(), "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling.")
	if calling, ok := conf.Get("functionCallingConfig"); ok {
		c.fields(calling, "tool_config.function_calling_config", "mode", "allowedFunctionNames")
		req.Mode = text(calling, "mode")
		c.want(slices.Contains([]string{"AUTO", "ANY", "NONE", "VALIDATED"}, req.Mode), "the mode of function calling is not known")
		c.want(len(req.Functions) > 0, "Function calling config is set without function_declarations.")
	}
}

func (c *checker) functions(list canonjson.Node, req *Request, at string) {
	c.want(list.Len() > 0 && list.Len() <= 512, "%s: want 1 to 512 function declarations", at)
	for i := range list.Len() {
		f := list.At(i)
		name := text(f, "name")
		c.fields(f, at+".function_declarations", "name", "description", "parameters", "parametersJsonSchema")
		c.want(functionName.MatchString(name), "%s: Invalid function name. Must start with a letter or an underscore.", at)
		c.want(!slices.Contains(req.Functions, name), "%s: Duplicate function declaration found: %s", at, name)
		req.Functions = append(req.Functions, name)
		params, has := f.Get("parameters")
		_, free := f.Get("parametersJsonSchema")
		c.want(!has || !free, "%s: parameters and parameters_json_schema are set", at)
		if has {
			c.schema(params, fmt.Sprintf("%s.function_declarations[%d].parameters", at, i))
		}
	}
}

// schema checks the vendor's own form of a schema.
func (c *checker) schema(n canonjson.Node, at string) {
	if err := dialect.CheckGemini(n.Append(nil)); err != nil {
		c.want(false, "%s: %v", at, err)
	}
}

// generation checks the configuration of the answer.
func (c *checker) generation(root canonjson.Node, tools bool) {
	g, ok := root.Get("generationConfig")
	if !ok {
		return
	}
	c.fields(g, "generation_config", "maxOutputTokens", "responseMimeType", "responseSchema", "responseJsonSchema", "thinkingConfig",
		"temperature", "topP", "topK", "candidateCount", "stopSequences", "seed")
	if most, ok := g.Get("maxOutputTokens"); ok {
		n, err := strconv.Atoi(most.Text())
		c.want(err == nil && n > 0, "generation_config.max_output_tokens: want a number from 1")
	}
	mime := text(g, "responseMimeType")
	c.want(slices.Contains([]string{"", "application/json", "text/plain", "text/x.enum"}, mime), "generation_config.response_mime_type: not allowed")
	c.want(mime != "application/json" || !tools || !c.older, "Function calling with a response mime type: 'application/json' is unsupported")
	schema, has := g.Get("responseSchema")
	_, free := g.Get("responseJsonSchema")
	c.want(!has || !free, "generation_config: response_schema and response_json_schema are set")
	c.want(!has && !free || mime == "application/json", "generation_config.response_schema: only allowed when response_mime_type is application/json")
	if has {
		c.schema(schema, "generation_config.response_schema")
	}
	if t, ok := g.Get("thinkingConfig"); ok {
		c.thinking(t)
	}
}

func (c *checker) thinking(t canonjson.Node) {
	c.fields(t, "generation_config.thinking_config", "includeThoughts", "thinkingBudget", "thinkingLevel")
	level, leveled := t.Get("thinkingLevel")
	budget, budgeted := t.Get("thinkingBudget")
	c.want(!leveled || !budgeted, "You can only set only one of thinking budget and thinking level.")
	c.want(!leveled || !c.older, "Thinking level is not supported for this model.")
	c.want(!leveled || slices.Contains([]string{"MINIMAL", "LOW", "MEDIUM", "HIGH"}, level.Text()), "thinking_level: not known")
	if budgeted {
		n, err := strconv.Atoi(budget.Text())
		c.want(err == nil && n >= -1 && n <= 32768, "The thinking budget is invalid. Please choose a value between 0 and 32768.")
	}
}
