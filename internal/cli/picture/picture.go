// Package picture draws the timeline of a run for a terminal: a line for each entry,
// with a bar that is as long as it took.
package picture

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// style is the set of characters that a picture is drawn with.
type style struct {
	full         map[string]string // a whole cell, by kind
	left, right  string            // half a cell of the model's bar; empty: there are none
	tick         string            // something too short to have a length
	failed, open string
	line         string // under the scale
}

var (
	unicodeStyle = style{
		full: map[string]string{api.EntryQueued: "·", api.EntryAttempt: "█", api.EntryTool: "▓", api.EntryWaiting: "░", api.EntryRetryWait: "╌",
			api.EntryNoOwner: "×", api.EntryStep: "─", api.EntryCompaction: "─", api.EntryDelivery: "─", api.EntryDeliveryAttempt: "█"},
		left: "▌", right: "▐", tick: "▏", failed: "✗", open: "…", line: "─",
	}
	asciiStyle = style{
		full: map[string]string{api.EntryQueued: ".", api.EntryAttempt: "#", api.EntryTool: "=", api.EntryWaiting: ":", api.EntryRetryWait: "~",
			api.EntryNoOwner: "x", api.EntryStep: "-", api.EntryCompaction: "-", api.EntryDelivery: "-", api.EntryDeliveryAttempt: "#"},
		tick: "|", failed: "!", open: "...", line: "-",
	}
)

// colours are those of a terminal, by kind.
var colours = map[string]string{
	api.EntryQueued: "90", api.EntryAttempt: "36", api.EntryTool: "32", api.EntryWaiting: "33", api.EntryRetryWait: "35",
	api.EntryNoOwner: "31", api.EntryStep: "90", api.EntryCompaction: "90", api.EntryDelivery: "90", api.EntryDeliveryAttempt: "34",
}

// Options say how a timeline is drawn.
type Options struct {
	Width  int  // columns
	ASCII  bool // with ASCII only
	Colour bool
}

// Draw draws a timeline.
func Draw(out io.Writer, t *api.Timeline, o Options) error {
	p := picture{style: unicodeStyle, width: o.Width, colour: o.Colour}
	if o.ASCII {
		p.style = asciiStyle
	}
	return p.draw(out, t)
}

// picture draws a timeline.
type picture struct {
	style
	width  int
	colour bool
}

// The columns of a picture: labels are cut to maxLabel, bars have at least minBar cells.
const (
	maxLabel = 40
	minBar   = 10
)

func (p *picture) draw(out io.Writer, t *api.Timeline) error {
	w := bufio.NewWriter(out)
	total := t.Totals.WallMS
	labels := make([]string, len(t.Entries))
	label := 0
	for i := range t.Entries {
		e := &t.Entries[i]
		labels[i] = p.label(e)
		label = max(label, utf8.RuneCountInString(labels[i]))
		total = max(total, e.EndMS)
	}
	label = max(min(label, maxLabel, p.width-minBar-12), 8)
	cells := max(p.width-label-12, minBar)
	fmt.Fprintf(w, "%s  %s  %s%s\n", t.RunID, t.Status, spell(t.Totals.WallMS), p.since(t))
	p.summary(w, t)
	fmt.Fprintf(w, "\n%s  %8s  0%s%s\n", pad("", label), "", strings.Repeat(p.line, max(cells-1-len(spell(total)), 0)), spell(total))
	for i := range t.Entries {
		e := &t.Entries[i]
		took := spell(e.EndMS - e.StartMS)
		fmt.Fprintf(w, "%s  %8s  %s\n", pad(p.cut(labels[i], label), label), took, p.paint(e.Kind, p.bar(e, total, cells)))
	}
	if t.Omitted > 0 {
		fmt.Fprintf(w, "and %d more\n", t.Omitted)
	}
	return w.Flush()
}

// since says of a run that goes on that these figures do.
func (p *picture) since(t *api.Timeline) string {
	if t.FinishedAt == nil {
		return " so far"
	}
	return ""
}

// summary gives the totals: first of time, each with the character of its bars.
func (p *picture) summary(w io.Writer, t *api.Timeline) {
	s := t.Totals.Split
	for _, x := range []struct {
		kind, name string
		ms         int64
	}{
		{api.EntryQueued, "queued", s.QueuedMS}, {api.EntryAttempt, "model", s.ModelMS}, {api.EntryTool, "tools", s.ToolsMS},
		{api.EntryWaiting, "waiting for a person", s.WaitingMS}, {api.EntryRetryWait, "waiting to retry", s.RetryWaitMS},
		{api.EntryNoOwner, "without an owner", t.Totals.NoOwnerMS}, {"", "overhead", s.OverheadMS - t.Totals.NoOwnerMS},
	} {
		if x.ms == 0 {
			continue
		}
		mark := " "
		if x.kind != "" {
			mark = p.paint(x.kind, p.full[x.kind])
		}
		fmt.Fprintf(w, "  %s %-20s %8s %4d%%\n", mark, x.name, spell(x.ms), percent(x.ms, t.Totals.WallMS))
	}
	tot := t.Totals
	fmt.Fprintf(w, "  %s, %s, %s, %s\n", words.Count(tot.Steps, "step"), words.Count(tot.Attempts, "model call"), words.Count(tot.ToolCalls, "tool call"), words.Count(tot.Repairs, "repair"))
	if tot.Attempts == 0 {
		return
	}
	least := ""
	if tot.UsagePartial {
		least = "at least "
	}
	fmt.Fprintf(w, "  %s%d tokens in (%d from a cache), %d out\n", least, tot.Usage.Input, tot.Usage.Cache.Read, tot.Usage.Output)
	if tot.Cost != nil {
		least = ""
		if tot.CostPartial {
			least = "at least "
		}
		fmt.Fprintf(w, "  cost %s%s\n", least, strconv.FormatFloat(*tot.Cost, 'f', 6, 64))
	}
}

func percent(part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return (part*100 + whole/2) / whole
}

// label names an entry; what stands in a step is set in.
func (p *picture) label(e *api.TimelineEntry) string {
	var text string
	name := words.Clean(e.Name)
	switch e.Kind {
	case api.EntryQueued:
		text = "queued"
	case api.EntryStep:
		text = fmt.Sprintf("turn %d", e.Turn)
		if e.Repair > 0 {
			text += fmt.Sprintf(", repair %d", e.Repair)
		}
	case api.EntryAttempt:
		text = "  " + name
		if e.Attempt > 1 {
			text += fmt.Sprintf(" #%d", e.Attempt)
		}
	case api.EntryTool:
		text = "  " + name
		if e.Attempt > 1 {
			text += fmt.Sprintf(" #%d", e.Attempt)
		}
	case api.EntryRetryWait:
		text = "  waits to retry"
	case api.EntryCompaction:
		text = "compaction, " + name
	case api.EntryWaiting:
		text = "  a person: " + name
	case api.EntryNoOwner:
		text = "  no owner"
	case api.EntryDelivery:
		text = "delivery " + e.Status
	case api.EntryDeliveryAttempt:
		text = fmt.Sprintf("  attempt %d", e.Attempt)
	default: // of a newer daemon
		text = words.Clean(e.Kind)
	}
	switch {
	case e.Kind == api.EntryDelivery || e.Kind == api.EntryRetryWait:
	case e.Status != "" && e.Status != "ok":
		text += " " + p.failed + " " + cmp.Or(e.Class, e.Status)
	}
	if e.Open {
		text += " " + p.open
	}
	return text
}

// bar draws an entry into so many cells that stand for total.
func (p *picture) bar(e *api.TimelineEntry, total int64, cells int) string {
	if total == 0 {
		return p.tick
	}
	n := int64(cells)
	half := func(ms int64) int64 { return min(ms*2*n/total, 2*n) }
	from, to := half(e.StartMS), half(e.EndMS)
	full := cmp.Or(p.full[e.Kind], "-")
	first := min(from/2, n-1)
	b := strings.Repeat(" ", int(first))
	if to == from || p.left == "" || full != "█" { // whole cells only
		last := max(first+1, (to+1)/2)
		if e.EndMS == e.StartMS || to == from {
			return b + p.tick
		}
		return b + strings.Repeat(full, int(last-first))
	}
	if from%2 == 1 {
		b += p.right
		first++
	}
	b += strings.Repeat(full, int(max(to/2-first, 0)))
	if to%2 == 1 && to/2 >= first {
		b += p.left
	}
	return b
}

func (p *picture) paint(kind, text string) string {
	if c := colours[kind]; p.colour && c != "" {
		return "\x1b[" + c + "m" + text + "\x1b[0m"
	}
	return text
}

func (p *picture) cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	mark := []rune(p.open)
	return string(r[:max(n-len(mark), 0)]) + p.open
}

func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(n-utf8.RuneCountInString(s), 0))
}

// spell writes a duration in at most eight characters.
func spell(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", ms/60000, ms/1000%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh %02dm", ms/3600000, ms/60000%60)
	case ms < 1000*86400000:
		return fmt.Sprintf("%dd %02dh", ms/86400000, ms/3600000%24)
	}
	return fmt.Sprintf("%dd", ms/86400000)
}
