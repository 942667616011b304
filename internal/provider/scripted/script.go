package scripted

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The bounds of a script.
const (
	MaxScript = 1 << 20 // bytes
	maxRules  = 1000
	maxCalls  = 64
	maxDepth  = 64  // of flow collections
	maxColumn = 256 // of a list entry: bounds the depth of nested lists on one line
	maxWait   = time.Hour
	runes     = 16 // in a delta, when the rule does not say
)

// The script as it is written.
type (
	fileForm struct {
		Rules []ruleForm `yaml:"rules"`
	}
	ruleForm struct {
		When  when      `yaml:"when"`
		Reply replyForm `yaml:"reply"`
	}
	replyForm struct {
		Text      string     `yaml:"text"`
		ToolCalls []callForm `yaml:"tool_calls"`
		Error     *errorForm `yaml:"error"`
		Delay     string     `yaml:"delay"`
		Usage     *usageForm `yaml:"usage"`
		Chunk     int        `yaml:"chunk"`
		Finish    string     `yaml:"finish"`
	}
	callForm struct {
		Name      string   `yaml:"name"`
		Arguments ast.Node `yaml:"arguments"`
	}
	errorForm struct {
		Class       string `yaml:"class"`
		Message     string `yaml:"message"`
		RetryAfter  string `yaml:"retry_after"`
		AfterOutput bool   `yaml:"after_output"`
	}
	usageForm struct {
		Input      int64 `yaml:"input"`
		Output     int64 `yaml:"output"`
		Reasoning  int64 `yaml:"reasoning"`
		CacheRead  int64 `yaml:"cache_read"`
		CacheWrite int64 `yaml:"cache_write"`
	}
)

// Load reads a script from a file.
func Load(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open script: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open script: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Size() > MaxScript {
		return nil, fmt.Errorf("%s: a script has at most %d bytes", path, MaxScript)
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if n < len(data) {
		return nil, fmt.Errorf("read script: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a script. name stands in the errors, which are of the form
// `name:line:column: what is wrong`. Unknown keys, repeated keys, anchors and
// aliases are errors.
func Parse(name string, data []byte) (*Model, error) {
	s := source{name: name}
	if len(data) > MaxScript {
		return nil, fmt.Errorf("%s: a script has at most %d bytes", name, MaxScript)
	}
	if err := s.tokens(string(data)); err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, s.wrap(err)
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, s.errorf(1, 1, "want one YAML document with a list of rules")
	}
	s.root = file.Docs[0].Body
	var form fileForm
	if err := yaml.NodeToValue(s.root, &form, yaml.Strict()); err != nil {
		return nil, s.wrap(err)
	}
	if len(form.Rules) == 0 || len(form.Rules) > maxRules {
		return nil, s.at("$.rules", "want 1 to %d rules", maxRules)
	}
	m := &Model{}
	for i := range form.Rules {
		r, err := s.rule(fmt.Sprintf("$.rules[%d]", i), &form.Rules[i])
		if err != nil {
			return nil, err
		}
		m.rules = append(m.rules, r)
	}
	return m, nil
}

// source knows where things stand in the script.
type source struct {
	name string
	root ast.Node
}

func (s *source) errorf(line, column int, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s", s.name, line, column, fmt.Sprintf(format, args...))
}

func (s *source) wrap(err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil && y.GetToken().Position != nil {
		p := y.GetToken().Position
		return s.errorf(p.Line, p.Column, "%s", y.GetMessage())
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// at makes an error with the place of a path, or of the nearest part of it
// that stands in the script.
func (s *source) at(path string, format string, args ...any) error {
	for p := path; p != ""; p = lastStep.ReplaceAllString(p, "") {
		yp, err := yaml.PathString(p)
		if err != nil {
			break
		}
		if node, err := yp.FilterNode(s.root); err == nil && node != nil && node.GetToken() != nil {
			return s.node(node, format, args...)
		}
		if p == "$" {
			break
		}
	}
	return s.errorf(1, 1, format, args...)
}

var lastStep = regexp.MustCompile(`(\.\w+|\[\d+\])$`)

func (s *source) node(n ast.Node, format string, args ...any) error {
	p := n.GetToken().Position
	return s.errorf(p.Line, p.Column, format, args...)
}

// tokens refuses what makes a small script cost much: aliases that multiply,
// and nesting that a recursive parser follows.
func (s *source) tokens(text string) error {
	depth := 0
	for _, t := range lexer.Tokenize(text) {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType, token.TagType:
			return s.errorf(t.Position.Line, t.Position.Column, "anchors, aliases, merge keys and tags are not taken")
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Column > maxColumn {
				return s.errorf(t.Position.Line, t.Position.Column, "nested too deep")
			}
		}
		if depth > maxDepth {
			return s.errorf(t.Position.Line, t.Position.Column, "nested too deep")
		}
	}
	return nil
}

// rule checks one rule.
func (s *source) rule(path string, f *ruleForm) (rule, error) {
	r := rule{when: f.When}
	for _, c := range []struct {
		name string
		n    *int
		low  int
	}{{"turn", f.When.Turn, 1}, {"attempt", f.When.Attempt, 1}, {"repair", f.When.Repair, 0}} {
		if c.n != nil && *c.n < c.low {
			return r, s.at(path+".when."+c.name, "%s counts from %d", c.name, c.low)
		}
	}
	path += ".reply"
	out := &r.reply
	var err error
	if out.delay, err = s.duration(path+".delay", f.Reply.Delay, maxWait); err != nil {
		return r, err
	}
	if f.Reply.Chunk < 0 {
		return r, s.at(path+".chunk", "chunk is a number of runes, 1 or more")
	}
	out.text = chop(f.Reply.Text, f.Reply.Chunk)
	if len(f.Reply.ToolCalls) > maxCalls {
		return r, s.at(path+".tool_calls", "a reply has at most %d tool calls", maxCalls)
	}
	for i, c := range f.Reply.ToolCalls {
		at := fmt.Sprintf("%s.tool_calls[%d]", path, i)
		if c.Name == "" {
			return r, s.at(at, "a tool call needs a name")
		}
		args, err := s.arguments(c.Arguments)
		if err != nil {
			return r, err
		}
		out.calls = append(out.calls, call{name: c.Name, arguments: args})
	}
	if u := f.Reply.Usage; u != nil {
		if min(u.Input, u.Output, u.Reasoning, u.CacheRead, u.CacheWrite) < 0 {
			return r, s.at(path+".usage", "a count is not negative")
		}
		out.usage = &llm.Usage{Input: u.Input, Output: u.Output, Reasoning: u.Reasoning, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite}
	}
	if out.finish, err = s.finish(path, f); err != nil {
		return r, err
	}
	return r, s.failure(path, f, out)
}

func (s *source) finish(path string, f *ruleForm) (llm.FinishReason, error) {
	reason := llm.FinishReason(f.Reply.Finish)
	switch reason {
	case llm.FinishStop, llm.FinishTools, llm.FinishLength, llm.FinishFilter, llm.FinishUnknown:
		return reason, nil
	case "":
		if len(f.Reply.ToolCalls) > 0 {
			return llm.FinishTools, nil
		}
		return llm.FinishStop, nil
	}
	return "", s.at(path+".finish", "finish is one of stop, tool_calls, length, content_filter, unknown")
}

// classes are those that a script can fail with: what a vendor can do to us.
var classes = []llm.Class{
	llm.Auth, llm.Billing, llm.RateLimit, llm.Overloaded, llm.ContextOverflow, llm.ContentFilter,
	llm.InvalidRequest, llm.Transport, llm.Truncated, llm.Server, llm.Protocol, llm.UnknownClass,
}

func (s *source) failure(path string, f *ruleForm, out *reply) error {
	e := f.Reply.Error
	if e == nil {
		if f.Reply.Text == "" && len(f.Reply.ToolCalls) == 0 && f.Reply.Finish == "" {
			return s.at(path, "a reply holds text, tool_calls, error or finish")
		}
		return nil
	}
	class := llm.Class(e.Class)
	if !slices.Contains(classes, class) {
		return s.at(path+".error.class", "class is one of %v", classes)
	}
	if len(f.Reply.ToolCalls) > 0 || f.Reply.Usage != nil || f.Reply.Finish != "" {
		return s.at(path+".error", "an error goes with text and delay only")
	}
	if e.AfterOutput != (f.Reply.Text != "") {
		return s.at(path+".error", "after_output: true and text go together: the text that comes before the error")
	}
	wait, err := s.duration(path+".error.retry_after", e.RetryAfter, maxWait)
	if err != nil {
		return err
	}
	if len(e.Message) > 300 {
		return s.at(path+".error.message", "a message has at most 300 bytes")
	}
	out.err = &llm.Error{Class: class, Message: e.Message, RetryAfter: wait}
	if e.Message == "" {
		out.err.Message = "the script says so"
	}
	return nil
}

func (s *source) duration(path, text string, limit time.Duration) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > limit {
		return 0, s.at(path, "want a duration like 200ms, at most %s", limit)
	}
	return d, nil
}

func chop(text string, size int) []string {
	if size == 0 {
		size = runes
	}
	var out []string
	for part := range slices.Chunk([]rune(text), size) {
		out = append(out, string(part))
	}
	return out
}
