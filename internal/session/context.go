package session

import (
	"context"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Texts gives the text behind a reference, and the bytes behind a sealed one.
type Texts func(ctx context.Context, ref string) ([]byte, error)

// Request builds the model request of the open step: a pure function of the
// state, but for the texts that stand in the blob store.
func (s *State) Request(ctx context.Context, texts Texts) (*llm.Request, error) {
	r, st := s.Active, s.Active.Step
	req := &llm.Request{
		Model: r.Created.Route.Model, NoTools: st.NoTools, SerialTools: st.Repair > 0,
		SessionID: string(s.ID), Turn: r.Turn, Attempt: st.Attempt.Number, Repair: st.Repair,
	}
	if r.Contract != nil {
		req.Output = r.Contract.Schema.Render()
	}
	b := &builder{ctx: ctx, texts: texts, run: r}
	req.System = b.text(Item{Content: r.Instructions})
	for _, p := range s.history {
		for i := range p.items {
			b.add(&p.items[i])
		}
	}
	for i := range r.Items {
		b.add(&r.Items[i])
	}
	for i := range st.Kept {
		b.add(&st.Kept[i])
	}
	req.Continues = len(st.Kept) > 0
	if b.err != nil {
		return nil, b.err
	}
	req.Messages = b.out
	return req, nil
}

// builder turns entries into messages: what one step said is one assistant
// message, its results one tool message behind it, user texts in a row one
// user message.
type builder struct {
	ctx   context.Context
	texts Texts
	run   *Run
	out   []llm.Message
	step  event.StepID
	err   error
}

func (b *builder) add(it *Item) {
	if b.err != nil {
		return
	}
	switch it.Kind {
	case ItemUser:
		b.put(llm.User, "", llm.Content{Kind: llm.Text, Text: b.text(*it)})
	case ItemRepair:
		b.put(llm.User, "", llm.Content{Kind: llm.Text, Text: RepairText(it.Content.Text, b.run.Contract.Schema)})
	case ItemText:
		b.put(llm.Assistant, it.Step, llm.Content{Kind: llm.Text, Text: b.text(*it), State: b.load(it.State), Maker: it.Maker})
	case ItemReasoning:
		b.put(llm.Assistant, it.Step, llm.Content{Kind: llm.Reasoning, State: b.load(it.State), Maker: it.Maker})
	case ItemHosted:
		b.put(llm.Assistant, it.Step, llm.Content{Kind: llm.Hosted, State: b.load(it.State), Maker: it.Maker})
	case ItemCall:
		b.put(llm.Assistant, it.Step, llm.Content{
			Kind: llm.ToolCall, CallID: string(it.CallID), Name: it.Name, Text: b.text(*it), State: b.load(it.State), Maker: it.Maker,
		})
	case ItemResult:
		b.put(llm.Tool, it.Step, llm.Content{Kind: llm.ToolResult, CallID: string(it.CallID), Name: it.Name, Text: b.text(*it), IsError: it.IsError})
	}
}

func (b *builder) put(role llm.Role, step event.StepID, c llm.Content) {
	if n := len(b.out); n > 0 && b.out[n-1].Role == role && b.step == step {
		b.out[n-1].Parts = append(b.out[n-1].Parts, c)
		return
	}
	b.step = step
	b.out = append(b.out, llm.Message{Role: role, Parts: []llm.Content{c}})
}

func (b *builder) text(it Item) string {
	switch {
	case it.Value != nil:
		return string(it.Value)
	case it.Content.Ref != "":
		return string(b.load(it.Content.Ref))
	}
	return it.Content.Text
}

func (b *builder) load(ref string) []byte {
	if b.err != nil || ref == "" {
		return nil
	}
	data, err := b.texts(b.ctx, ref)
	b.err = err
	return data
}
