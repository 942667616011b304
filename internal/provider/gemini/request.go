package gemini

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/dialect"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The request's body, in the order in which it is written: the same request
// gives the same bytes, so that prompt caches hit.
type (
	request struct {
		SystemInstruction *content          `json:"systemInstruction,omitempty"`
		Tools             []json.RawMessage `json:"tools,omitempty"`
		ToolConfig        *toolConfig       `json:"toolConfig,omitempty"`
		Contents          []content         `json:"contents"`
		GenerationConfig  *generationConfig `json:"generationConfig,omitempty"`
	}
	content struct {
		Role  string    `json:"role,omitempty"`
		Parts []outPart `json:"parts"`
	}
	outPart struct {
		raw       json.RawMessage // when set, the part is this
		Text      *string         `json:"text,omitempty"`
		Inline    *blob           `json:"inlineData,omitempty"`
		Call      *outCall        `json:"functionCall,omitempty"`
		Result    *outResult      `json:"functionResponse,omitempty"`
		Signature string          `json:"thoughtSignature,omitempty"`
	}
	blob struct {
		MimeType string `json:"mimeType"`
		Data     []byte `json:"data"`
	}
	outCall struct {
		ID   string          `json:"id,omitempty"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	}
	outResult struct {
		ID       string       `json:"id,omitempty"`
		Name     string       `json:"name"`
		Response responseBody `json:"response"`
	}
	// responseBody is an object in any case; the vendor reads these two names.
	responseBody struct {
		Output *string `json:"output,omitempty"`
		Error  *string `json:"error,omitempty"`
	}
	functionTool struct {
		Declarations []declaration `json:"functionDeclarations"`
	}
	declaration struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	toolConfig struct {
		Calling *callingConfig `json:"functionCallingConfig,omitempty"`
		Report  bool           `json:"includeServerSideToolInvocations,omitempty"`
	}
	callingConfig struct {
		Mode string `json:"mode"`
	}
	generationConfig struct {
		MaxOutputTokens  int             `json:"maxOutputTokens,omitempty"`
		ResponseMimeType string          `json:"responseMimeType,omitempty"`
		ResponseSchema   json.RawMessage `json:"responseSchema,omitempty"`
		Thinking         *thinking       `json:"thinkingConfig,omitempty"`
	}
	thinking struct {
		Include bool   `json:"includeThoughts,omitempty"`
		Level   string `json:"thinkingLevel,omitempty"`
		Budget  int    `json:"thinkingBudget,omitempty"`
	}
)

// MarshalJSON writes a part that goes back as it came, or the fields.
func (p outPart) MarshalJSON() ([]byte, error) {
	if p.raw != nil {
		return p.raw, nil
	}
	type fields outPart
	return writeJSON(fields(p))
}

func writeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

// older says that a model is of the generations before Gemini 3. They do not
// check signatures, know budgets but no levels of thinking, and take function
// calling together with neither hosted tools nor a response schema. A name that
// tells no generation ("gemini-flash-latest") is of the present one.
func older(model string) bool {
	if strings.HasPrefix(model, "tunedModels/") {
		return true
	}
	name := model[strings.LastIndexByte(model, '/')+1:]
	for _, old := range []string{"gemini-1", "gemini-2", "gemini-pro", "gemma", "learnlm"} {
		if strings.HasPrefix(name, old) && name != "gemini-pro-latest" {
			return true
		}
	}
	return false
}

// encode gives the body for a request. Its errors are of class
// invalid_request: what the engine handed over is not fit to be sent.
func (m *Model) encode(req *llm.Request, model string) ([]byte, error) {
	names := namesOf(req.Tools)
	low := lowering{maker: m.cfg.Name + "/" + model, caps: m.cfg.Caps, names: names, sign: !older(model)}
	for _, msg := range req.Messages {
		if err := low.message(msg); err != nil {
			return nil, err
		}
	}
	contents, err := low.finish()
	if err != nil {
		return nil, err
	}
	out := request{Contents: contents}
	if strings.TrimSpace(req.System) != "" {
		out.SystemInstruction = &content{Parts: []outPart{{Text: &req.System}}}
	}
	if err := m.tools(&out, req, names, model); err != nil {
		return nil, err
	}
	m.generation(&out, req, model)
	body, err := writeJSON(out)
	if err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the request cannot be written as JSON").Because(err)
	}
	if len(body) > MaxRequest {
		return nil, llm.Errorf(llm.InvalidRequest, "the request is larger than %d bytes", MaxRequest)
	}
	return body, nil
}

// tools lists the functions, and the hosted tools where they may be called and
// the model takes both. Without tools the functions stay listed under the mode
// NONE, which keeps the prompt's cache.
func (m *Model) tools(out *request, req *llm.Request, names toolNames, model string) error {
	var list []declaration
	for _, t := range req.Tools {
		d := declaration{Name: names.wire(t.Name), Description: t.Description}
		if len(t.InputSchema) > 0 {
			if schema, ok := dialect.GeminiTool(t.InputSchema); ok {
				d.Parameters = json.RawMessage(schema)
			}
		}
		list = append(list, d)
	}
	if len(list) > 0 {
		raw, err := writeJSON(functionTool{list})
		if err != nil {
			return llm.Errorf(llm.InvalidRequest, "the tools cannot be written as JSON").Because(err)
		}
		out.Tools = append(out.Tools, raw)
	}
	if req.NoTools {
		if len(list) > 0 {
			out.ToolConfig = &toolConfig{Calling: &callingConfig{Mode: "NONE"}}
		}
		return nil
	}
	if len(m.cfg.HostedTools) == 0 || len(list) > 0 && older(model) {
		return nil
	}
	for _, raw := range m.cfg.HostedTools {
		out.Tools = append(out.Tools, json.RawMessage(raw))
	}
	if len(list) > 0 {
		out.ToolConfig = &toolConfig{Report: true} // the vendor's condition for having both
	}
	return nil
}

// generation sets the limits, the schema of the answer and the thinking.
func (m *Model) generation(out *request, req *llm.Request, model string) {
	g := generationConfig{MaxOutputTokens: req.MaxOutputTokens, Thinking: m.thinking(model)}
	if g.MaxOutputTokens == 0 {
		g.MaxOutputTokens = m.cfg.MaxOutputTokens
	}
	if most := m.cfg.Caps.Output; most > 0 && int64(g.MaxOutputTokens) > most {
		g.MaxOutputTokens = int(most)
	}
	// Older models refuse a format beside tools, whatever the mode of calling.
	if len(req.Output) > 0 && (len(out.Tools) == 0 || !older(model)) {
		switch m.cfg.Caps.Structured {
		case llm.StructuredSchema:
			if schema, ok := dialect.GeminiOutput(req.Output); ok {
				g.ResponseMimeType, g.ResponseSchema = "application/json", json.RawMessage(schema)
				break
			}
			g.ResponseMimeType = "application/json"
		case llm.StructuredObject:
			g.ResponseMimeType = "application/json"
		}
	}
	if g.MaxOutputTokens != 0 || g.ResponseMimeType != "" || g.Thinking != nil {
		out.GenerationConfig = &g
	}
}

// budgets are the tokens of thinking for an effort, where the model knows no
// levels. Every thinking model of those generations takes each of them.
var budgets = map[string]int{"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}

func (m *Model) thinking(model string) *thinking {
	c := &m.cfg
	switch {
	case c.ReasoningBudget > 0:
		return &thinking{Include: true, Budget: c.ReasoningBudget}
	case c.Effort != "" && older(model):
		return &thinking{Include: true, Budget: budgets[c.Effort]}
	case c.Effort != "":
		return &thinking{Include: true, Level: strings.ToUpper(c.Effort)}
	case c.Caps.Reasoning:
		return &thinking{Include: true}
	}
	return nil
}
