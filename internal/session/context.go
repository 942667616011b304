package session

import (
	"context"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Sources give what a request shows and the state only refers to.
type Sources struct {
	// Text gives the bytes behind a reference, sealed ones too.
	Text func(ctx context.Context, ref string) ([]byte, error)
	// File gives the bytes of an asset; nil without an error when it is gone.
	File func(ctx context.Context, id event.AssetID) ([]byte, error)
	// Takes says whether the model reads files of this media type.
	Takes func(mediaType string) bool
}

// MaxContextFiles bounds the files that one request shows, in bytes: those that
// were given last come first, and in the place of the others stands their name.
// Vendors take requests of 32 MiB, in which these are base64, with texts beside them.
const MaxContextFiles = 22 << 20

// Request builds the model request of the open step: a pure function of the
// state, but for what stands outside of it.
func (s *State) Request(ctx context.Context, src Sources) (*llm.Request, error) {
	r, st := s.Active, s.Active.Step
	req := &llm.Request{
		Model: r.Created.Route.Model, NoTools: st.NoTools, SerialTools: st.Repair > 0,
		SessionID: string(s.ID), Turn: r.Turn, Attempt: st.Attempt.Number, Repair: st.Repair,
	}
	if r.Contract != nil {
		req.Output = r.Contract.Schema.Render()
	}
	items := len(r.Items) + len(st.Kept) + 4 // and the notes, and a summary
	for _, p := range s.history {
		items += len(p.items)
	}
	b := &builder{ctx: ctx, src: src, run: r, shown: s.shownFiles(src.Takes),
		out: make([]llm.Message, 0, items), parts: make([]llm.Content, 0, items)}
	req.System = b.text(Item{Content: r.Instructions})
	b.summary(s.Window.Summary)
	for _, p := range s.history {
		for i := range p.items {
			b.add(&p.items[i])
		}
	}
	for i := range r.Items {
		b.add(&r.Items[i])
	}
	if s.lastStep() {
		b.note(NoteLastStep)
	}
	b.cut(st)
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
	src   Sources
	shown map[*event.AssetRef]bool
	run   *Run
	out   []llm.Message
	parts []llm.Content // of all messages, in a row; an entry is one at most
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
	case ItemAsset:
		b.put(llm.User, "", b.file(it.Asset))
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
			Kind: llm.ToolCall, CallID: string(it.CallID), Name: it.Name, Text: shortened(it, b.text(*it)), State: b.load(it.State), Maker: it.Maker,
		})
	case ItemResult:
		b.put(llm.Tool, it.Step, llm.Content{Kind: llm.ToolResult, CallID: string(it.CallID), Name: it.Name, Text: shortened(it, b.text(*it)), IsError: it.IsError})
	}
}

func (b *builder) put(role llm.Role, step event.StepID, c llm.Content) {
	b.parts = append(b.parts, c)
	end := len(b.parts)
	if n := len(b.out); n > 0 && b.out[n-1].Role == role && b.step == step {
		last := &b.out[n-1]
		last.Parts = b.parts[end-1-len(last.Parts) : end : end]
		return
	}
	b.step = step
	b.out = append(b.out, llm.Message{Role: role, Parts: b.parts[end-1 : end : end]})
}

// lastStep says whether the model is told that the open step is the last one: it
// cannot call tools any more that it could call, or tried to call, before. On a
// repair the request to correct the answer says what to do.
func (s *State) lastStep() bool {
	r, st := s.Active, s.Active.Step
	return st.NoTools && st.Repair == 0 && (len(r.Created.Tools) > 0 || r.Turn > 1)
}

// note adds a word of ours behind the conversation: what stands before it is
// what vendors have in their caches.
func (b *builder) note(text string) {
	b.put(llm.User, "", llm.Content{Kind: llm.Text, Text: text, Note: true})
}

// cut shows what an attempt had said before its stream was cut, without states
// and calls, and tells the model so. Where it had said nothing there is nothing
// to tell: the request is asked again as it was.
func (b *builder) cut(st *Step) {
	var text strings.Builder
	for _, c := range st.Cut {
		if text.Len() < MaxCut {
			text.WriteString(b.text(Item{Content: c}))
		}
	}
	if said := canonjson.CutRunes(text.String(), MaxCut); strings.TrimSpace(said) != "" {
		b.put(llm.Assistant, st.ID, llm.Content{Kind: llm.Text, Text: said})
		b.note(NoteCut)
	}
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
	data, err := b.src.Text(b.ctx, ref)
	b.err = err
	return data
}

// shownFiles chooses the files that the request shows: those that the model
// takes, the last ones first, within MaxContextFiles.
func (s *State) shownFiles(takes func(string) bool) map[*event.AssetRef]bool {
	shown, left := map[*event.AssetRef]bool{}, int64(MaxContextFiles)
	choose := func(items []Item) {
		for i := len(items) - 1; i >= 0; i-- {
			a := items[i].Asset
			if a == nil || !takes(a.MediaType) || a.Bytes > left {
				continue
			}
			shown[a] = true
			left -= a.Bytes
		}
	}
	if s.Active != nil {
		choose(s.Active.Items)
	}
	for i := len(s.history) - 1; i >= 0; i-- {
		choose(s.history[i].items)
	}
	return shown
}

// FileBytes is the size of the files that the request of the open step shows.
func (s *State) FileBytes(takes func(mediaType string) bool) int64 {
	total := int64(0)
	for a := range s.shownFiles(takes) {
		total += a.Bytes
	}
	return total
}

func fileName(a *event.AssetRef) string {
	if a.Name == "" {
		return string(a.ID)
	}
	return a.Name
}

func fileLabel(a *event.AssetRef) string { return fileName(a) + " (" + a.MediaType + ")" }

// file shows a file: text as text, anything else as it is, and what cannot be
// shown by its name.
func (b *builder) file(a *event.AssetRef) llm.Content {
	note := func(why string) llm.Content {
		return llm.Content{Kind: llm.Text, Text: "[The file " + fileLabel(a) + " is not shown: " + why + ".]"}
	}
	switch {
	case !b.src.Takes(a.MediaType):
		return note("this model does not take files of its kind")
	case !b.shown[a]:
		return note("the files of this conversation are more than fit in one request")
	}
	data, err := b.src.File(b.ctx, a.ID)
	switch {
	case err != nil:
		b.err = err
		return llm.Content{}
	case data == nil:
		return note("it is not stored any more")
	case IsText(a.MediaType):
		return llm.Content{Kind: llm.Text, Text: "[The file " + fileName(a) + "]\n" + string(data)}
	case a.MediaType == "application/pdf":
		return llm.Content{Kind: llm.File, MediaType: a.MediaType, Data: data, Name: a.Name}
	}
	return llm.Content{Kind: llm.Image, MediaType: a.MediaType, Data: data, Name: a.Name}
}

// IsText says whether files of a media type are shown to a model as text.
func IsText(mediaType string) bool {
	return strings.HasPrefix(mediaType, "text/") || mediaType == "application/json"
}
