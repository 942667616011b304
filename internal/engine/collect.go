package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// collector is the one publisher of an attempt: it gathers the parts of the
// answer, hands deltas to listeners, and holds the stream to its order. It is
// closed in any case, whatever the stream came to, and then takes nothing more:
// what is open then has ended (I-19).
type collector struct {
	d       *drive
	key     actKey
	run     event.RunID
	quiet   bool // nobody is shown what comes
	began   time.Time
	epoch   int64 // in which the attempt was started
	after   int64 // the log's head then
	deltas  int64 // so far, whoever hears them
	maker   string
	earlier bool            // the request shows calls that the provider ran before
	asked   map[string]bool // hosted calls that a result may belong to, by wire id
	strays  map[string]bool // results that belong to none of this step

	mu     sync.Mutex // an adapter may be a goroutine too many
	size   int        // of the answer so far, over the pauses of the step
	whole  bool       // its finish came
	broken error      // why no further part is taken
	answer session.Answer
	texts  [][]byte // of answer.Parts, while they grow
	blobs  []event.Blob
}

// newCollector makes the publisher of the open attempt.
func newCollector(d *drive, key actKey, st *session.State) *collector {
	step := st.Active.Step
	c := &collector{
		d: d, key: key, run: st.Active.ID, began: time.Now(), epoch: st.Epoch, after: st.Head, maker: st.Active.Created.Route.Maker(),
		asked: map[string]bool{}, strays: map[string]bool{}, size: step.Bytes,
	}
	for _, call := range step.Calls {
		if call.Hosted {
			c.asked[call.WireID] = true
		}
	}
	return c
}

// violation is a stream that breaks the order of its parts.
func violation(code, message string) error {
	return &llm.Error{Class: llm.Protocol, Code: code, Message: "the stream of the answer breaks its order: " + message}
}

// The ways in which a stream breaks its order.
var (
	errAfterFinish  = violation("part_after_finish", "a part came after the finish")
	errSecondFinish = violation("second_finish", "it has two finishes")
	errReusedIndex  = violation("reused_index", "two parts have one index")
	errStrayPiece   = violation("stray_piece", "a piece belongs to no open part")
	errRenamed      = violation("renamed_call", "a tool call changed its tool")
	errOpenCall     = violation("open_call", "it finished with a tool call that is not whole")
	errEarlyResult  = violation("result_before_call", "a result came before its call")
	errUnknownPart  = violation("unknown_part", "a part is of a kind that there is not")
)

// close ends what is open and puts the collected texts in their parts, in the
// order of the answer. From then on no part is taken.
func (c *collector) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = errAfterFinish
	}
	for i := range c.answer.Parts {
		if p := &c.answer.Parts[i]; p.Text == "" {
			p.Text = string(c.texts[i])
		}
	}
	slices.SortStableFunc(c.answer.Parts, func(a, b session.OutputPart) int { return a.Index - b.Index })
	c.answer.Duration, c.answer.Bytes = time.Since(c.began), c.size
}

// news is what a piece adds to the size of the answer. A whole call tells again
// what its deltas told.
func (c *collector) news(p llm.Part) int {
	n := len(p.Text) + len(p.State) + len(p.Name)
	if i := c.at(p.Index); p.Kind == llm.ToolCallWhole && i >= 0 {
		n = max(0, n-len(c.texts[i])-len(p.Name))
	}
	return n
}

// refused says why a part was refused, nil when none was.
func (c *collector) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// part takes one piece of the stream. After the first that is refused all are.
func (c *collector) part(p llm.Part) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = c.take(p)
	}
	return c.broken
}

func (c *collector) take(p llm.Part) error {
	if c.whole && p.Kind == llm.Finish {
		return errSecondFinish
	}
	if c.whole {
		return errAfterFinish
	}
	if c.answer.FirstOutput == 0 {
		c.answer.FirstOutput = max(time.Since(c.began), time.Microsecond)
	}
	if c.size += c.news(p); c.size > c.d.e.cfg.MaxAnswer {
		return llm.Errorf(llm.InvalidRequest, "the answer is larger than %d bytes", c.d.e.cfg.MaxAnswer)
	}
	switch p.Kind {
	case llm.TextStart:
		return c.open(llm.TextEnd, p, event.LiveTextStarted)
	case llm.ReasoningStart:
		return c.open(llm.ReasoningEnd, p, event.LiveReasoningStarted)
	case llm.ToolInputStart:
		return c.open(llm.ToolCallWhole, p, event.LiveInputStarted)
	case llm.TextDelta:
		return c.delta(llm.TextEnd, p, event.LiveTextDelta)
	case llm.ToolInputDelta:
		return c.delta(llm.ToolCallWhole, p, event.LiveInputDelta)
	case llm.ReasoningDelta:
		return c.delta(llm.ReasoningEnd, p, event.LiveReasoningDelta)
	case llm.TextEnd, llm.ReasoningEnd:
		o := c.find(p.Index, p.Kind)
		if o == nil {
			return errStrayPiece
		}
		o.Open = false
		c.seal(o, p)
	case llm.HostedCall, llm.HostedResult:
		return c.hosted(p)
	case llm.ToolCallWhole:
		return c.call(p)
	case llm.UsagePart:
		c.answer.Usage = p.Usage
	case llm.Finish:
		return c.finish(p)
	default:
		return errUnknownPart
	}
	return nil
}

// finish ends the answer. Open text and thoughts end with it. Half a call does
// not: a tool runs on whole arguments only (I-13).
func (c *collector) finish(p llm.Part) error {
	c.whole = true
	c.answer.Finish, c.answer.RawFinish = p.Reason, p.Raw
	if c.answer.Finish == "" {
		c.answer.Finish = llm.FinishUnknown
	}
	for i := range c.answer.Parts {
		o := &c.answer.Parts[i]
		if o.Open && o.Kind == llm.ToolCallWhole && p.Reason != llm.FinishFilter {
			return errOpenCall
		}
	}
	return nil
}

// find gives the open part of a kind at an index.
func (c *collector) find(index int, kind llm.PartKind) *session.OutputPart {
	if i := c.at(index); i >= 0 && c.answer.Parts[i].Open && c.answer.Parts[i].Kind == kind {
		return &c.answer.Parts[i]
	}
	return nil
}

func (c *collector) at(index int) int {
	for i := len(c.answer.Parts) - 1; i >= 0; i-- {
		if c.answer.Parts[i].Index == index {
			return i
		}
	}
	return -1
}

// maxParts bounds the parts of one answer, and so the events of one append.
const maxParts = 512

// open begins a part. Its index is its own: call ids are made of it (I-13).
func (c *collector) open(kind llm.PartKind, p llm.Part, live string) error {
	if len(c.answer.Parts) == maxParts {
		return llm.Errorf(llm.InvalidRequest, "the answer holds more than %d parts", maxParts)
	}
	if c.at(p.Index) >= 0 {
		return errReusedIndex
	}
	c.answer.Parts = append(c.answer.Parts, session.OutputPart{Kind: kind, Index: p.Index, Name: p.Name, Open: true})
	c.texts = append(c.texts, nil)
	c.publish(live, p)
	return nil
}

// delta adds to an open part. Thoughts are shown live and not kept.
func (c *collector) delta(kind llm.PartKind, p llm.Part, live string) error {
	if c.find(p.Index, kind) == nil {
		return errStrayPiece
	}
	if i := c.at(p.Index); kind != llm.ReasoningEnd {
		c.texts[i] = append(c.texts[i], p.Text...)
	}
	c.publish(live, p)
	return nil
}

// call ends the input of a call, or is a call that comes in one piece. A call
// that began without a name may get it now; one that has a name keeps it.
func (c *collector) call(p llm.Part) error {
	if c.find(p.Index, llm.ToolCallWhole) == nil {
		if err := c.open(llm.ToolCallWhole, p, event.LiveInputStarted); err != nil {
			return err
		}
	}
	o := c.find(p.Index, llm.ToolCallWhole)
	if o.Name != "" && o.Name != p.Name {
		return errRenamed
	}
	o.Text, o.Name, o.Open = p.Text, p.Name, false
	c.seal(o, p)
	return nil
}

// hosted takes a call that the provider runs, or its result: each is a part of
// its own. A result is of a call before it: of this answer, of the step before
// its pause, or of an answer that the request showed.
func (c *collector) hosted(p llm.Part) error {
	wire := session.WireID(p.WireID)
	switch {
	case p.Kind == llm.HostedCall && c.strays[wire]:
		return errEarlyResult
	case p.Kind == llm.HostedCall:
		c.asked[wire] = true
	case c.asked[wire]:
	case !c.earlier:
		return errEarlyResult
	default:
		c.strays[wire] = true
	}
	if err := c.open(p.Kind, p, event.LiveInputStarted); err != nil {
		return err
	}
	o := c.find(p.Index, p.Kind)
	o.Text, o.WireID, o.IsError, o.Open = p.Text, p.WireID, p.IsError, false
	c.seal(o, p)
	return nil
}

// seal keeps what the provider wants back with a part; it never leaves but to its maker.
func (c *collector) seal(o *session.OutputPart, p llm.Part) {
	if len(p.State) > 0 {
		b := event.NewBlob(c.d.id, event.BlobSealed, p.State)
		o.State, o.Maker = b.Ref, c.maker
		c.blobs = append(c.blobs, b)
	}
}

func (c *collector) publish(kind string, p llm.Part) {
	if c.quiet || c.d.e.cfg.Hub == nil {
		return
	}
	stream := c.d.id.Stream()
	c.deltas++
	if !c.d.e.cfg.Hub.Listening(stream) || !c.d.term.Held() { // I-11
		return
	}
	c.d.e.cfg.Hub.Publish(stream, api.Delta{
		Type: kind, RunID: string(c.run), StepID: string(c.key.step), Attempt: c.key.attempt, Part: p.Index, Text: p.Text, Name: p.Name,
		Epoch: c.epoch, Number: c.deltas, After: c.after,
	})
}
