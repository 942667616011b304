package session

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// Window is what the rules know of the model's window: what stands at its
// beginning in the place of older conversation, how full it is, and the
// compaction under way.
type Window struct {
	Summary *Summary
	// Fresh: nothing came into the window since it was compacted.
	Fresh bool
	// Known is what the provider counted last, request and answer, in tokens; 0:
	// nothing that still holds. Added is an estimate of what came since.
	Known, Added int64

	Started  int // compactions that started
	Failures int // of compactions, in a row
	Open     *Compacting
	Asked    *Asked // by a person, not at its end
}

// Summary stands for the conversation before the window.
type Summary struct {
	Number int // of the compaction
	Text   event.Content
	// First is the first request of the conversation; empty when it is still
	// shown as it is.
	First event.Content
	// Under: the request at the window's beginning was being worked on.
	Under bool
}

// The estimate of what the provider has not counted: four bytes of text are a
// token, and what is no text has a fixed size.
const (
	tokenBytes    = 4
	entryTokens   = 8     // around each entry
	imageTokens   = 1_500 // of a picture
	pdfTokens     = 2_000 // of a PDF file
	sealedTokens  = 200   // of what only its maker can read
	toolTokens    = 200   // of the definition of a tool
	promptTokens  = 1_000 // of our own words in a summary request
	summaryTokens = 16_000
)

// TailOutput bounds a tool's result, and the arguments of a call, in what a
// compaction keeps, in bytes.
const TailOutput = 4_000

func (it *Item) tokens() int64 {
	switch it.Kind {
	case ItemAsset:
		switch {
		case IsText(it.Asset.MediaType):
			return entryTokens + it.Asset.Bytes/tokenBytes
		case it.Asset.MediaType == "application/pdf":
			return pdfTokens
		}
		return imageTokens
	case ItemReasoning, ItemHosted:
		return sealedTokens
	}
	n := it.size()
	if it.Short {
		n = min(n, TailOutput)
	}
	return entryTokens + int64(n)/tokenBytes
}

// size is that of the entry's text, in bytes.
func (it *Item) size() int { return len(it.Value) + it.Content.Size() }

func tokensOf(items []Item) int64 {
	n := int64(0)
	for i := range items {
		n += items[i].tokens()
	}
	return n
}

// tokens estimates what the next request holds: what the provider counted last
// and what came since, or all of it by its size.
func (s *State) tokens() int64 {
	w := &s.Window
	if w.Known > 0 {
		n := w.Known + w.Added
		if s.Active != nil && s.Active.Step != nil {
			n += tokensOf(s.Active.Step.results())
		}
		return n
	}
	n := s.shownTokens()
	if r := s.Active; r != nil {
		n += int64(r.Instructions.Size())/tokenBytes + toolTokens*int64(len(r.Created.Tools))
		if st := r.Step; st != nil {
			n += tokensOf(st.Kept) + tokensOf(st.inOrder(st.Attempt.Number)) + tokensOf(st.results())
		}
	}
	return n
}

// shownTokens estimates the conversation in the window by its size.
func (s *State) shownTokens() int64 {
	n := int64(0)
	if sum := s.Window.Summary; sum != nil {
		n += int64(sum.Text.Size()+min(sum.First.Size(), firstBytes))/tokenBytes + promptTokens/4
	}
	for _, p := range s.window() {
		n += tokensOf(p.items)
	}
	return n
}

// results gives the results of the open step's calls, as far as there are some.
func (st *Step) results() []Item {
	var items []Item
	for _, c := range st.Calls {
		if c.State == CallDone && !c.Hosted {
			items = append(items, Item{Kind: ItemResult, Content: c.Result})
		}
	}
	return items
}

// fullAt gives the tokens from which on the window of a run counts as full, 0
// when its model's window is not known. What stays free is the largest answer
// that is counted on or the buffer, and at most a quarter of the window.
func fullAt(c *event.RunCreated) int64 {
	w := c.Route.Context
	if c.Compaction == nil || w <= 0 {
		return 0
	}
	free := max(min(c.Route.Output, 32_000), c.Compaction.Buffer)
	return w - min(free, w/largestBuffer)
}

// full says whether the window of a run has to be compacted before its next
// step; more is what comes to it besides.
func (s *State) full(c *event.RunCreated, more int64) bool {
	limit := fullAt(c)
	return limit > 0 && c.Compaction.Auto && s.Window.Failures < MaxCompactionFailures && s.tokens()+more >= limit
}

// window gives the runs that the window shows, the active one last.
func (s *State) window() []past {
	all := s.history
	if r := s.Active; r != nil {
		all = append(all[:len(all):len(all)], past{seq: r.Seq, items: r.Items})
	}
	return all
}

// inputs is the number of entries at the beginning of a run that are its task.
func inputs(items []Item) int {
	n := slices.IndexFunc(items, func(it Item) bool { return it.Kind != ItemUser && it.Kind != ItemAsset })
	if n < 0 {
		return len(items)
	}
	return n
}

// cut is a place at which the window may begin.
type cut struct {
	seq     int64        // of the run that it stands in
	step    event.StepID // first one that is kept; empty: the whole run is
	entries int          // before it
	tokens  int64        // of those
}

// places gives the places in a run at which the window may begin, in order:
// before its task, and before each of its steps but the first, since there its
// task is shown again. A step is what the assistant said with the results of
// its calls, and a wrong answer has the request to repair it behind it: so no
// call is parted from its result.
func places(items []Item) []int {
	out := []int{0}
	for i := inputs(items) + 1; i < len(items); i++ {
		if items[i].Step != "" && items[i].Step != items[i-1].Step {
			out = append(out, i)
		}
	}
	return out
}

// cutAt finds where the window is to begin: as far back as the kept tail stays
// within keep tokens, and never behind the newest place. Where everything is
// within it, all but the newest is cut. false: there is nothing to cut.
func (s *State) cutAt(keep int64) (cut, bool) {
	all := s.window()
	found := cut{}
	run, at := -1, 0
	tail := int64(0)
back:
	for i := len(all) - 1; i >= 0; i-- {
		items := all[i].items
		if len(items) == 0 {
			continue
		}
		task, end := tokensOf(items[:inputs(items)]), len(items)
		list := places(items)
		for j := len(list) - 1; j >= 0; j-- {
			from := list[j]
			n := keptTokens(items[from:end])
			if from > 0 {
				n += task
			}
			if run >= 0 && tail+n > keep {
				break back
			}
			run, at = i, from
			if from > 0 {
				n -= task
			}
			tail, end = tail+n, from
		}
	}
	if run < 0 {
		return found, false
	}
	if run == firstOf(all) && at == 0 { // everything is within the bound
		last := lastOf(all)
		list := places(all[last].items)
		run, at = last, list[len(list)-1]
		if run == firstOf(all) && at == 0 {
			return found, false
		}
	}
	found.seq = all[run].seq
	for i := range run {
		found.entries += len(all[i].items)
		found.tokens += tokensOf(all[i].items)
	}
	if at > 0 {
		head := all[run].items[inputs(all[run].items):at]
		found.step = all[run].items[at].Step
		found.entries += len(head)
		found.tokens += tokensOf(head)
	}
	return found, true
}

func firstOf(all []past) int {
	return slices.IndexFunc(all, func(p past) bool { return len(p.items) > 0 })
}

func lastOf(all []past) int {
	for i, p := range slices.Backward(all) {
		if len(p.items) > 0 {
			return i
		}
	}
	return -1
}

// keptTokens estimates entries as they are once they were kept.
func keptTokens(items []Item) int64 {
	n := int64(0)
	for i := range items {
		if it, stays := kept(items[i]); stays {
			n += it.tokens()
		}
	}
	return n
}

// kept is an entry as it is kept over a compaction: what tools gave and took is
// bounded, and what a provider sealed stays behind.
func kept(it Item) (Item, bool) {
	switch it.Kind {
	case ItemReasoning, ItemHosted:
		return it, false
	case ItemResult, ItemCall:
		it.Short = it.Short || it.size() > TailOutput
	}
	it.State, it.Maker = "", ""
	return it, true
}

// keepOf bounds what is kept to a share of the window, where that is known.
func keepOf(keep int64, r event.Route) int64 {
	if r.Context > 0 {
		keep = min(keep, r.Context/largestBuffer)
	}
	return keep
}

// moveWindow lets the window begin at a summary and what is kept behind it.
func (s *State) moveWindow(d *event.ContextCompacted) {
	sum := &Summary{Number: d.Number, Text: s.Window.Open.Summary, Under: d.TailStep != ""}
	all := s.window()
	if i := firstOf(all); i >= 0 && all[i].seq < d.TailSeq {
		sum.First = firstRequest(all[i].items)
	}
	if old := s.Window.Summary; old != nil && !old.First.Empty() {
		sum.First = old.First
	}
	history := s.history
	s.history, s.shown, s.bytes = nil, 0, 0
	for _, p := range history {
		if p.seq >= d.TailSeq {
			s.keep(past{seq: p.seq, items: p.from(d)})
		}
	}
	if r := s.Active; r != nil {
		r.Items = past{seq: r.Seq, items: r.Items}.from(d)
	}
	s.Window.Summary, s.Window.Fresh = sum, true
	s.Window.Known, s.Window.Added, s.Window.Failures = 0, 0, 0
}

// from gives what a compaction keeps of a run: its task, and its steps from
// the first kept one on.
func (p past) from(d *event.ContextCompacted) []Item {
	begin := 0
	if p.seq == d.TailSeq && d.TailStep != "" {
		begin = max(slices.IndexFunc(p.items, func(it Item) bool { return it.Step == d.TailStep }), 0)
	}
	task := min(inputs(p.items), begin)
	out := make([]Item, 0, len(p.items)-begin+task)
	for _, list := range [][]Item{p.items[:task], p.items[begin:]} {
		for _, it := range list {
			if it, stays := kept(it); stays {
				out = append(out, it)
			}
		}
	}
	return out
}

// firstRequest is the text of a run's task; of a file its name.
func firstRequest(items []Item) event.Content {
	for i := range items {
		switch it := &items[i]; {
		case it.Kind == ItemUser && it.Value != nil:
			return shrink(event.Content{Text: string(it.Value)})
		case it.Kind == ItemUser && !it.Content.Empty():
			return it.Content
		case it.Kind == ItemAsset:
			return event.Content{Text: "[The file " + fileLabel(it.Asset) + "]"}
		}
	}
	return event.Content{}
}

// counted keeps account of the window behind an event of the active run that
// was folded; n is the number of the run's entries before.
func (s *State) counted(e *event.Event, n int) {
	w, r := &s.Window, s.Active
	if d, ok := e.Data.(*event.ModelCallCompleted); ok && r.Step != nil && r.Step.ID == e.StepID && r.Step.Attempt.Number == d.Attempt {
		w.Known, w.Added = 0, 0
		if u := d.Usage; u != nil { // input holds what was cached, output what was thought
			w.Known = max(u.Input, 0) + max(u.Output, 0)
		}
	}
	if len(r.Items) == n {
		return
	}
	w.Fresh = false
	for i := n; i < len(r.Items); i++ {
		switch it := &r.Items[i]; it.Kind {
		case ItemResult:
			w.Added += it.tokens()
		case ItemRepair:
			if w.Added += it.tokens(); r.Contract != nil {
				w.Added += int64(len(r.Contract.Schema.Render())) / tokenBytes
			}
		}
	}
}

// tokens estimates what comes into the window with the run.
func (q *Queued) tokens() int64 {
	return tokensOf(itemsOf(q.Created)) + int64(q.Instructions.Size())/tokenBytes + toolTokens*int64(len(q.Created.Tools))
}

// enters counts what comes into the window with a run.
func (w *Window) enters(items []Item) {
	w.Fresh = false
	w.Added += tokensOf(items)
}

// left says that something went out of the window by another way than a
// compaction: what the provider counted does not hold any more.
func (w *Window) left() { w.Known, w.Added = 0, 0 }
