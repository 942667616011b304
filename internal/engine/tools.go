package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/schema"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// runTool runs one call whose start is recorded.
func (d *drive) runTool(ctx context.Context, key actKey, st *session.State) outcome {
	switch err := d.mayAct(ctx); {
	case err != nil && ctx.Err() == nil:
		return outcome{key: key, lost: true}
	case err != nil: // stopped while a late beat was waited for: it does not begin any more
		return d.toolOutcome(key, neverRan(key), time.Time{})
	}
	began := time.Now()
	o := d.callTool(ctx, st, key.call)
	o.result.Duration = time.Since(began)
	if errors.Is(ctx.Err(), context.Canceled) && o.err {
		o.result.Stopped = true
	}
	var now time.Time
	if o.result.Unknown || o.result.Timeout { // it may be made again, at a time of the store's clock (I-16)
		now = d.stamp(ctx)
	}
	return d.toolOutcome(key, o, now)
}

// stamp gives the store's time for what is planned now. Where the store does not
// tell it, this machine's has to do.
func (d *drive) stamp(ctx context.Context) time.Time {
	now, err := d.e.cfg.Log.Now(context.WithoutCancel(ctx))
	if err != nil {
		now = time.Now()
	}
	return now
}

// toolOutcome tells what came of a call; chance is fixed here, so that it is told
// the same however often the append is made anew. A call that may be made again
// wants the time.
func (d *drive) toolOutcome(key actKey, o toolResult, now time.Time) outcome {
	jitter := d.e.jitter()
	return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
		c := s.Call(key.call)
		if c == nil || c.State != session.CallStarted || c.Attempt != key.attempt {
			return nil, nil // closed meanwhile: a late result changes nothing (I-14)
		}
		res := o.result
		return session.ToolEnded(s, key.call, &res, now, jitter), o.blobs
	}}
}

// toolResult is what a call gave, on its way to the log.
type toolResult struct {
	result session.ToolOutcome
	blobs  []event.Blob
	err    bool
}

func (d *drive) callTool(ctx context.Context, st *session.State, id event.CallID) toolResult {
	c := st.Call(id)
	t, digest, ok := d.e.cfg.Tools.Get(c.Name)
	captured := capturedDigest(st, c.Name)
	if !ok || digest != captured {
		// The run was shown another tool than the one configured now.
		return failed("the tool " + c.Name + " was changed or removed after the run was submitted")
	}
	input, err := d.arguments(ctx, c)
	if err != nil {
		return failed("the call's arguments could not be read")
	}
	def := t.Definition()
	timeout := def.Timeout(d.e.cfg.ToolTimeout)
	tctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := runGuarded(tctx, t, tool.Call{
		SessionID: string(st.ID), UserID: st.UserID, RunID: string(st.Active.ID), CallID: string(id), Input: input,
	})
	if err == nil && res.JSON && def.OutputSchema != nil {
		if err := d.e.tools.check(def.OutputSchema, []byte(res.Output)); err != nil {
			why := "the result does not meet the tool's schema: " + err.Error()
			if def.Level.Repeatable() {
				return failed(why)
			}
			// It took effect: a failure would have the model do it again.
			res.Output += "\n[" + why + "]"
		}
	}
	if err == nil {
		return d.bounded(res.Output)
	}
	out := toolResult{err: true}
	var te *tool.Error
	switch {
	case errors.Is(err, tool.ErrOutcomeUnknown):
		out.result.Unknown = true
		if errors.As(err, &te) {
			clean, _ := canonjson.ReplaceInvalid(te.Message)
			out.result.Reason = canonjson.CutRunes(clean, 500)
		}
	case errors.Is(err, context.DeadlineExceeded) && tctx.Err() != nil && ctx.Err() == nil:
		out.result.Timeout = true
		return out
	}
	out.result.Failed = true
	text := "the tool reported an internal error"
	if errors.As(err, &te) {
		text = te.Message
	} else {
		d.log.Warn("tool call", "call_id", id, "tool", c.Name, "err", err)
	}
	out.result.Output = event.TextContent(session.FailedText(canonjson.CutRunes(text, d.e.cfg.MaxToolOutput)))
	return out
}

// arguments gives the arguments of a call, large ones from where they stand.
func (d *drive) arguments(ctx context.Context, c *session.Call) (canonjson.Value, error) {
	switch {
	case c.Large.Ref != "":
		return d.stored(ctx, c.Large.Ref)
	case c.Large.Text != "":
		return canonjson.Value(c.Large.Text), nil
	}
	return c.Arguments, nil
}

func failed(text string) toolResult {
	return toolResult{err: true, result: session.ToolOutcome{Failed: true, Output: event.TextContent(session.FailedText(text))}}
}

// runGuarded turns a panic of a tool into its failure: one tool must not end
// the daemon. Whether an effect happened is then not known.
func runGuarded(ctx context.Context, t tool.Tool, c tool.Call) (res tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("tool panicked: %v: %w", p, tool.ErrOutcomeUnknown)
		}
	}()
	return t.Run(ctx, c)
}

// bounded cuts a result at what the model may see; the whole of it goes to the
// blob store, and the model is told where it was cut.
func (d *drive) bounded(output string) toolResult {
	content := event.TextContent(output)
	limit := d.e.cfg.MaxToolOutput
	if len(content.Text) <= limit {
		return toolResult{result: session.ToolOutcome{Output: content}}
	}
	whole := event.NewBlob(d.id, event.BlobContent, []byte(content.Text))
	cut := canonjson.CutRunes(content.Text, limit)
	return toolResult{
		blobs: []event.Blob{whole},
		result: session.ToolOutcome{
			Output: event.Content{
				Text:     cut + fmt.Sprintf("\n[cut here: %d of %d bytes shown]", len(cut), len(content.Text)),
				Replaced: content.Replaced,
			},
			Paths: []string{whole.Ref}, Total: len(content.Text),
		},
	}
}

func capturedDigest(st *session.State, name string) string {
	for _, t := range st.Active.Created.Tools {
		if t.Name == name {
			return t.Digest
		}
	}
	return ""
}

// toolCache keeps what is made of tool definitions. Entries follow from their
// keys alone, so that forgetting all of them is harmless.
type toolCache struct {
	mu      sync.Mutex
	sets    map[string][]tool.Definition    // by the toolset's reference
	lists   map[string][]llm.ToolDefinition // by the toolset's reference
	schemas map[string]*schema.Schema       // by schema
}

// toolCacheSize bounds each map.
const toolCacheSize = 256

// toolset gives the definitions that the run captured.
func (e *Engine) toolset(ctx context.Context, st *session.State) ([]tool.Definition, []llm.ToolDefinition, error) {
	ref := st.Active.Created.Toolset
	if ref == "" {
		return nil, nil, nil
	}
	e.tools.mu.Lock()
	defs, ok := e.tools.sets[ref]
	list := e.tools.lists[ref]
	e.tools.mu.Unlock()
	if ok {
		return defs, list, nil
	}
	raw, err := e.blob(ctx, st.ID, ref)
	if err != nil {
		return nil, nil, err
	}
	if defs, err = tool.DecodeDefinitions(raw); err != nil {
		return nil, nil, err
	}
	for _, d := range defs {
		list = append(list, llm.ToolDefinition{Name: d.Name, Description: d.Description, InputSchema: d.InputSchema})
	}
	e.tools.mu.Lock()
	defer e.tools.mu.Unlock()
	if len(e.tools.sets) >= toolCacheSize || e.tools.sets == nil {
		e.tools.sets, e.tools.lists = map[string][]tool.Definition{}, map[string][]llm.ToolDefinition{}
	}
	e.tools.sets[ref], e.tools.lists[ref] = defs, list
	return defs, list, nil
}

func (e *Engine) toolDefinitions(ctx context.Context, st *session.State) ([]llm.ToolDefinition, error) {
	_, list, err := e.toolset(ctx, st)
	return list, err
}

// checkInput says why a call's arguments do not meet the tool's schema; empty
// when they do, or when it is for others to say (no JSON object, no such tool).
func (e *Engine) checkInput(ctx context.Context, st *session.State, name, text string) string {
	args, err := canonjson.Canonicalize([]byte(text), canonjson.Limits{})
	if err != nil || args[0] != '{' {
		return ""
	}
	defs, _, err := e.toolset(ctx, st)
	if err != nil {
		return "the tool's definition could not be read"
	}
	for _, d := range defs {
		if d.Name == name {
			if err := e.tools.check(d.InputSchema, args); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// check validates against a schema, compiled once.
func (c *toolCache) check(raw canonjson.Value, value []byte) error {
	c.mu.Lock()
	s, ok := c.schemas[string(raw)]
	c.mu.Unlock()
	if !ok {
		var err error
		if s, err = schema.Compile(raw); err != nil {
			return err
		}
		c.mu.Lock()
		if len(c.schemas) >= toolCacheSize || c.schemas == nil {
			c.schemas = map[string]*schema.Schema{}
		}
		c.schemas[string(raw)] = s
		c.mu.Unlock()
	}
	return s.Check(value)
}
