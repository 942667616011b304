package session_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// The scripts tell histories of a session. -rewrite writes what the rules give.
//
//	create [history_limit=n] [on_doubt=continue] [repairs=n]   a session; the input is its output contract
//	update output_contract [repairs=n] | history_limit=n       a change of settings
//	close · erase
//	submit run=n [max_turns=n] [on_doubt=continue] [target=url]… [context=n] [output=n] [compaction=auto|off] [keep=n] [buffer=n] [summaries=route]
//	                           a run; the input is its text
//	next                       decisions, append by append, then what is asked for
//	answer [finish=…] [usage=none|in+out]   the open attempt gives an answer, a part a line: text … | call tool arguments | reasoning state
//	                           (`text *n` is a text of n bytes; of a tool's outcome too)
//	compact [keep=n] [id=…]    a person asks for a compaction
//	fail class=… [status=n] [after=duration]   the open attempt breaks; the input is what had come
//	tool part=n [retry=n] ok|failed|unknown|timeout|stopped   the outcome of a call; the input is its text
//	crash                      another process takes over
//	cancel run=n · interrupt run=n
//	resolve part=n [retry=n] as=completed|failed|retry   a person's word
//	state · request · tables   what is known, what the model is sent, which rows follow
func TestScripts(t *testing.T) {
	folds := map[string][2]string{}
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		w := newWorld(t)
		states := sha256.New()
		defer func() { folds[filepath.Base(path)] = [2]string{w.hash.String(), fmt.Sprintf("%x", states.Sum(nil))} }()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			out := (&script{world: w, t: t, d: d}).do()
			if len(w.log) > 0 && !w.resolved() && !sameState(w.s, w.refold()) {
				t.Error("the log read anew gives another state")
			}
			data, err := w.s.Encode()
			if err != nil {
				t.Error(err)
			}
			states.Write(data)
			return out
		})
	})
	t.Run("folds", func(t *testing.T) { sameFolds(t, folds) })
}

// sameFolds holds the rules to the version of the stored form: under one
// version the same log gives the same states. folds are, by script, digests of
// the log and of the states.
func sameFolds(t *testing.T, folds map[string][2]string) {
	const path = "testdata/stored_states.txt"
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	version := fmt.Sprintf("version %d", session.StateVersion)
	before := strings.Split(string(old), "\n")
	for _, line := range before[1:] {
		if f := strings.Fields(line); before[0] == version && len(f) == 3 && folds[f[0]][0] == f[1] && folds[f[0]][1] != f[2] {
			t.Errorf("%s: the same events give other states than they did: raise StateVersion, then run with -rewrite", f[0])
		}
	}
	if t.Failed() || flag.Lookup("rewrite").Value.String() != "true" {
		return
	}
	text := version
	for _, name := range slices.Sorted(maps.Keys(folds)) {
		text += "\n" + name + " " + folds[name][0] + " " + folds[name][1]
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// resolved says whether texts of the open step stand in place of references.
func (w *world) resolved() bool {
	if w.s.Active == nil || w.s.Active.Step == nil {
		return false
	}
	st := w.s.Active.Step
	long := func(p session.Item) bool { return len(p.Content.Text) > event.InlineLimit }
	return slices.ContainsFunc(st.Parts, long) || slices.ContainsFunc(st.Kept, long) ||
		slices.ContainsFunc(st.Calls, func(c *session.Call) bool {
			return len(c.Result.Text) > event.InlineLimit || len(c.Large.Text) > event.InlineLimit
		})
}

type script struct {
	*world
	t *testing.T
	d *datadriven.TestData
}

func (x *script) arg(name, otherwise string) string {
	if a, ok := x.d.Arg(name); ok {
		return a.SingleVal(x.t)
	}
	return otherwise
}

func (x *script) number(name string, otherwise int) int {
	n, err := strconv.Atoi(x.arg(name, strconv.Itoa(otherwise)))
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

func (x *script) input() string { return strings.TrimSpace(x.d.Input) }

func (x *script) run() event.RunID { return event.RunID("run_" + x.arg("run", "1")) }

func (x *script) do() string {
	switch x.d.Cmd {
	case "create":
		return lines(x.create(x.settings()))
	case "update":
		return x.update()
	case "close":
		return lines(x.append(command("", &event.SessionClosed{})))
	case "erase":
		return lines(x.append(command("", &event.SessionErased{})))
	case "submit":
		return lines(x.submit(x.run(), x.input(), x.captured))
	case "next":
		return x.next()
	case "answer":
		if x.s.Window.Open != nil {
			return lines(x.append(session.Summarised(x.s, x.answer())...))
		}
		return lines(x.append(session.Answered(x.s, x.answer())...))
	case "compact":
		e := command("", &event.CompactionRequested{
			Keep: int64(x.number("keep", 0)), Route: event.Route{Name: "main", Provider: "scripted", Model: "m", Context: int64(x.number("context", 0))},
		})
		e.StepID = event.StepID("cmp_" + x.arg("id", "asked"))
		return lines(x.append(e))
	case "fail":
		return x.fail()
	case "tool":
		return x.tool()
	case "crash":
		return lines(x.crash())
	case "cancel":
		return lines(x.append(command(x.run(), &event.CancelRequested{Reason: x.input()})))
	case "interrupt":
		return lines(x.append(command(x.run(), &event.InterruptRequested{Reason: x.input()})))
	case "resolve":
		e := command(x.run(), &event.AttentionResolved{
			Resolution: event.Resolution(x.arg("as", "")), Output: event.TextContent(x.input()), Reason: "seen by ann",
		})
		e.CallID = x.call()
		return lines(x.append(e))
	case "state":
		return x.state()
	case "request":
		return requestText(x.request())
	case "tables":
		return x.tables.String()
	}
	x.t.Fatalf("no command %q", x.d.Cmd)
	return ""
}

func (x *script) contract() *event.OutputContract {
	if x.input() == "" {
		return nil
	}
	schema, issues := contract.ParseSchema([]byte(x.input()))
	if issues != nil {
		x.t.Fatal(issues)
	}
	c := &event.OutputContract{Schema: schema.Render()}
	if x.d.HasArg("repairs") {
		n := x.number("repairs", 0)
		c.MaxRepairAttempts = &n
	}
	return c
}

func (x *script) settings() event.Settings {
	return event.Settings{
		HistoryLimit: x.number("history_limit", 0), OnDoubt: event.OnDoubt(x.arg("on_doubt", "")), OutputContract: x.contract(),
	}
}

func (x *script) update() string {
	d := &event.SessionUpdated{Settings: x.settings(), Version: x.s.SettingsVersion + 1}
	for _, name := range []string{"output_contract", "history_limit"} {
		if x.d.HasArg(name) {
			d.Changed = append(d.Changed, name)
		}
	}
	return lines(x.append(command("", d)))
}

func (x *script) captured(d *event.RunCreated) {
	d.MaxTurns = x.number("max_turns", d.MaxTurns)
	d.OnDoubt = event.OnDoubt(x.arg("on_doubt", string(d.OnDoubt)))
	x.compaction(d)
	for _, a := range x.d.CmdArgs {
		switch a.Key {
		case "target":
			d.ReplyTargets = append(d.ReplyTargets, event.ReplyTarget{Type: "webhook", URL: a.SingleVal(x.t)})
		case "asset": // type:name:size
			media, rest, _ := strings.Cut(a.SingleVal(x.t), ":")
			name, size, _ := strings.Cut(rest, ":")
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil {
				x.t.Fatal(err)
			}
			ref := event.RefOf([]byte(name))
			d.Input = append(d.Input, event.InputItem{Type: event.InputAsset, Asset: &event.AssetRef{
				Bytes: n, Digest: ref[:16], ID: event.AssetID("ast_" + name), MediaType: media, Name: name,
			}})
		}
	}
}

// compaction captures how the run's context is compacted, where one is named.
func (x *script) compaction(d *event.RunCreated) {
	d.Route.Context, d.Route.Output = int64(x.number("context", 0)), int64(x.number("output", 0))
	switch x.arg("compaction", "") {
	case "":
		return
	case "auto":
		d.Compaction = &event.Compaction{Auto: true}
	case "off":
		d.Compaction = &event.Compaction{}
	}
	d.Compaction.Buffer, d.Compaction.Keep = int64(x.number("buffer", 0)), int64(x.number("keep", 0))
	if name := x.arg("summaries", ""); name != "" {
		d.Compaction.Route = &event.Route{Name: name, Provider: "scripted", Model: name}
	}
}

func (x *script) next() string {
	var b strings.Builder
	acts := x.decide(func(wait time.Duration, events []event.Event) {
		if wait != 0 {
			fmt.Fprintf(&b, "after %s: ", wait)
		}
		b.WriteString("append\n" + lines(events))
	})
	for _, a := range acts {
		fmt.Fprintf(&b, "%s\n", strings.TrimPrefix(fmt.Sprintf("%T%+v", a, a), "session."))
	}
	if acts == nil {
		b.WriteString("nothing to do\n")
	}
	return b.String()
}

// answer reads the parts of an answer, a line each.
func (x *script) answer() *session.Answer {
	a := &session.Answer{
		Finish: llm.FinishStop, Usage: &llm.Usage{Input: 10, Output: 5},
		Duration: 1200 * time.Millisecond, FirstOutput: 300 * time.Millisecond,
	}
	for i, line := range strings.Split(x.input(), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		p := session.OutputPart{Index: i, Text: rest}
		switch kind {
		case "":
			continue
		case "text":
			p.Kind = llm.TextEnd
			p.Text = sized(strings.ReplaceAll(rest, `\n`, "\n"))
		case "call":
			p.Kind = llm.ToolCallWhole
			p.Name, p.Text, _ = strings.Cut(rest, " ")
			a.Finish = llm.FinishTools
		case "reasoning":
			p.Kind, p.State, p.Maker = llm.ReasoningEnd, event.RefOf([]byte(rest)), "scripted/m"
			x.blobs[p.State] = []byte(rest)
		case "hosted":
			p.Kind = llm.HostedCall
			p.WireID, rest, _ = strings.Cut(rest, " ")
			p.Name, p.Text, _ = strings.Cut(rest, " ")
			x.seal(&p)
		case "result", "error":
			p.Kind, p.IsError = llm.HostedResult, kind == "error"
			p.WireID, p.Text, _ = strings.Cut(rest, " ")
			x.seal(&p)
		default:
			x.t.Fatalf("no part %q", kind)
		}
		a.Parts = append(a.Parts, p)
	}
	a.Finish = llm.FinishReason(x.arg("finish", string(a.Finish)))
	switch usage := x.arg("usage", ""); usage {
	case "":
	case "none":
		a.Usage = nil
	default:
		if _, err := fmt.Sscanf(usage, "%d+%d", &a.Usage.Input, &a.Usage.Output); err != nil {
			x.t.Fatal(err)
		}
	}
	return a
}

// sized reads a text: `*n` is one of n bytes.
func sized(text string) string {
	if n, err := strconv.Atoi(strings.TrimPrefix(text, "*")); err == nil && strings.HasPrefix(text, "*") {
		return strings.Repeat("x", n)
	}
	return text
}

// seal gives a part the block that its provider wants back.
func (x *script) seal(p *session.OutputPart) {
	block := []byte("block of " + p.WireID + " " + p.Text)
	p.State, p.Maker = event.RefOf(block), "scripted/m"
	x.blobs[p.State] = block
}

func (x *script) fail() string {
	after, err := time.ParseDuration(x.arg("after", "0s"))
	if err != nil {
		x.t.Fatal(err)
	}
	e := &llm.Error{Class: llm.Class(x.arg("class", "")), Message: "no luck", Status: x.number("status", 0), RetryAfter: after}
	if x.s.Window.Open != nil {
		return lines(x.append(session.SummaryFailed(x.s, x.answer(), e, x.now, 0.5)...))
	}
	return lines(x.append(session.Failed(x.s, x.answer(), e, x.now, 0.5)...))
}

// call is the id of the call at a part of the open step.
func (x *script) call() event.CallID {
	st := x.s.Active.Step
	id := session.CallIDAt(st.ID, st.Attempt.Number, x.number("part", 0))
	if x.d.HasArg("retry") {
		id += event.CallID(strings.Repeat("_r", x.number("retry", 0)))
	}
	return id
}

func (x *script) tool() string {
	o := &session.ToolOutcome{Output: event.TextContent(sized(x.input())), Duration: 40 * time.Millisecond}
	for _, how := range x.d.CmdArgs {
		switch how.Key {
		case "ok", "part", "retry":
		case "failed":
			o.Failed, o.Output = true, event.TextContent(session.FailedText(x.input()))
		case "unknown":
			o.Unknown = true
		case "timeout":
			o.Timeout = true
		case "stopped":
			o.Stopped = true
		default:
			x.t.Fatalf("no outcome %q", how.Key)
		}
	}
	events := session.ToolEnded(x.s, x.call(), o, clockOfTests, 0)
	if events == nil {
		return "too late\n"
	}
	return lines(x.append(events...))
}

// lines tells events, one a line: sequence, type, the call or step it is
// about, and its members.
func lines(events []event.Event) string {
	var b strings.Builder
	for i := range events {
		e := &events[i]
		fmt.Fprintf(&b, "  %d %s", e.Seq, e.Type)
		switch {
		case e.Type == event.TypeStateEntered:
			fmt.Fprintf(&b, " %s\n", e.FSMState)
			continue
		case e.CallID != "":
			fmt.Fprintf(&b, " %s", e.CallID)
		case e.StepID != "":
			fmt.Fprintf(&b, " %s", e.StepID)
		case e.RunID != "":
			fmt.Fprintf(&b, " %s", e.RunID)
		}
		data, err := e.Raw.Node()
		if err != nil {
			panic(err)
		}
		for j := range data.Len() {
			tell(&b, e, data.At(j))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// tell writes a member, but for what every event of its type says the same.
func tell(b *strings.Builder, e *event.Event, m canonjson.Node) {
	switch m.Name() {
	case "message_id", "duration_ms", "first_output_ms", "after_ms", "model", "provider", "route", "metadata", "settings_version",
		"kind", "source", "text_preview", "tools", "gate", "digest":
		return
	}
	text := string(m.Append(nil))
	if len(text) > 200 {
		text = canonjson.CutRunes(text, 60) + "… (" + strconv.Itoa(len(text)) + " bytes)"
	}
	fmt.Fprintf(b, " %s=%s", m.Name(), text)
}

func (x *script) state() string {
	var b strings.Builder
	s := x.s
	fmt.Fprintf(&b, "%s, head %d, epoch %d, open acts %v\n", s.Status, s.Head, s.Epoch, s.HasOpenActs())
	for _, q := range s.Queue {
		fmt.Fprintf(&b, "queued %s stop=%v\n", q.ID, q.Stop != nil)
	}
	if w := s.Window; w.Started+w.Failures > 0 || w.Asked != nil {
		fmt.Fprintf(&b, "window: summary %v, fresh %v, known %d, added %d, compactions %d, failures %d, asked %v\n",
			w.Summary != nil, w.Fresh, w.Known, w.Added, w.Started, w.Failures, w.Asked != nil)
	}
	if c := s.Window.Open; c != nil {
		fmt.Fprintf(&b, "compacting %s: attempt %d open=%v, failures %d, abandoned %d, refused %d, shrunk %d, retry at %q\n",
			c.ID, c.Attempt.Number, c.Attempt.Open, c.Failures, c.Abandoned, c.Refused, c.Shrunk, c.RetryAt)
	}
	r := s.Active
	if r == nil {
		return b.String()
	}
	usage := "unknown"
	if r.Usage != nil {
		usage = fmt.Sprintf("%d+%d", r.Usage.Input, r.Usage.Output)
	}
	fmt.Fprintf(&b, "active %s in %s: turn %d, steps %d, repairs %d, tools %d, usage %s, waiting %v\n",
		r.ID, r.Phase, r.Turn, r.Steps, r.Repairs, r.ToolCalls, usage, r.Waiting)
	if st := r.Step; st != nil {
		fmt.Fprintf(&b, "%s: attempt %d open=%v, failures %d, abandoned %d, retry at %q\n",
			st.ID, st.Attempt.Number, st.Attempt.Open, st.Failures, st.Abandoned, st.RetryAt)
		for _, c := range st.Calls {
			fmt.Fprintf(&b, "%s %s %s: attempt %d, error %v, in doubt %v %s, %q\n",
				c.ID, c.Name, c.State, c.Attempt, c.IsError, c.InDoubt, c.Resolution, c.Result.Text)
		}
	}
	return b.String()
}

func requestText(req *llm.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "turn %d attempt %d repair %d, no tools %v, serial %v, output %s\n",
		req.Turn, req.Attempt, req.Repair, req.NoTools, req.SerialTools, req.Output)
	if req.Continues {
		b.WriteString("goes on from the last message\n")
	}
	for _, m := range req.Messages {
		fmt.Fprintf(&b, "%s\n", m.Role)
		for _, c := range m.Parts {
			text := c.Text
			if len(text) > 400 {
				text = fmt.Sprintf("%s… (%d bytes)", text[:40], len(text))
			}
			switch c.Kind {
			case llm.ToolCall:
				fmt.Fprintf(&b, "  call %s %s %s\n", c.CallID, c.Name, text)
			case llm.ToolResult:
				fmt.Fprintf(&b, "  result %s error=%v %q\n", c.CallID, c.IsError, text)
			case llm.Reasoning:
				fmt.Fprintf(&b, "  reasoning %q of %s\n", c.State, c.Maker)
			case llm.Image, llm.File:
				fmt.Fprintf(&b, "  %s %s %s %q\n", c.Kind, c.MediaType, c.Name, c.Data)
			case llm.Hosted:
				fmt.Fprintf(&b, "  hosted %q of %s\n", c.State, c.Maker)
			default:
				fmt.Fprintf(&b, "  text %q\n", text)
			}
		}
	}
	return b.String()
}
