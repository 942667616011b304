package picture

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func sample() *api.Timeline {
	cost := 0.00184
	return &api.Timeline{RunID: "run_1", Status: "running", Entries: []api.TimelineEntry{
		{Kind: api.EntryQueued, EndMS: 1000, Status: "ok"},
		{Kind: api.EntryStep, Turn: 1, StartMS: 1000, EndMS: 10000, Open: true},
		{Kind: api.EntryAttempt, Name: "gpt", Attempt: 1, StartMS: 1000, EndMS: 1500, Status: "failed", Class: "rate_limit"},
		{Kind: api.EntryRetryWait, StartMS: 1500, EndMS: 3000, Status: "ok", Class: "rate_limit"},
		{Kind: api.EntryAttempt, Name: "gpt", Attempt: 2, StartMS: 3000, EndMS: 4500, Status: "ok"},
		{Kind: api.EntryTool, Name: "look\x1b[2J", StartMS: 4500, EndMS: 5000, Status: "ok"},
		{Kind: api.EntryTool, Name: "pay", StartMS: 4500, EndMS: 4500, Status: "rejected", Class: "policy"},
		{Kind: api.EntryTool, Name: "pay", StartMS: 4500, EndMS: 6000, Status: "in_doubt"},
		{Kind: api.EntryNoOwner, StartMS: 5000, EndMS: 6000},
		{Kind: api.EntryWaiting, Name: "pay", StartMS: 6000, EndMS: 10000, Open: true},
		{Kind: api.EntryDelivery, Status: "retrying", StartMS: 10000, EndMS: 12000, Open: true},
		{Kind: api.EntryDeliveryAttempt, Attempt: 1, StartMS: 10000, EndMS: 11000, Status: "failed", Class: "http_500"},
	}, Omitted: 2, Totals: api.TimelineTotals{WallMS: 10000, NoOwnerMS: 1000, Steps: 1, Attempts: 2, ToolCalls: 2,
		Split: api.TimelineSplit{QueuedMS: 1000, ModelMS: 2000, ToolsMS: 500, WaitingMS: 4000, RetryWaitMS: 1500, OverheadMS: 1000},
		Usage: api.Usage{Input: 1000, Output: 100, Cache: api.CacheUsage{Read: 400}}, UsagePartial: true, Cost: &cost, CostPartial: true}}
}

func drawn(t *testing.T, p picture, tl *api.Timeline) string {
	t.Helper()
	var b strings.Builder
	if err := p.draw(&b, tl); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

func TestPicture(t *testing.T) {
	want := `run_1  running  10.0 s so far
  · queued                  1.0 s   10%
  █ model                   2.0 s   20%
  ▓ tools                  500 ms    5%
  ░ waiting for a person    4.0 s   40%
  ╌ waiting to retry        1.5 s   15%
  × without an owner        1.0 s   10%
  1 step, 2 model calls, 2 tool calls, 0 repairs
  at least 1000 tokens in (400 from a cache), 100 out
  cost at least 0.001840

                                  0──────────────12.0 s
queued                     1.0 s  ··
turn 1 …                   9.0 s   ─────────────────
  gpt ✗ rate_limit        500 ms   ▐▌
  waits to retry           1.5 s    ╌╌╌
  gpt #2                   1.5 s       ██▌
  look[2J                 500 ms         ▓▓
  pay ✗ policy              0 ms         ▏
  pay ✗ in_doubt           1.5 s         ▓▓▓▓
  no owner                 1.0 s          ×××
  a person: pay …          4.0 s            ░░░░░░░░
delivery retrying …        2.0 s                   ────
  attempt 1 ✗ http_500     1.0 s                   ▐█
and 2 more
`
	p := picture{style: unicodeStyle, width: 55}
	if got := drawn(t, p, sample()); got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
	p.style, p.width = asciiStyle, 80
	ascii := drawn(t, p, sample())
	for i, r := range ascii {
		if r != '\n' && (r < ' ' || r > '~') {
			t.Fatalf("%q at %d in\n%s", r, i, ascii)
		}
	}
	if !strings.Contains(ascii, "  gpt ! rate_limit") || !strings.Contains(ascii, "::::::") {
		t.Error(ascii)
	}
	p.colour = true
	if got := drawn(t, p, sample()); !strings.Contains(got, "\x1b[36m") || strings.Count(got, "\x1b[") != 2*strings.Count(got, "\x1b[0m") {
		t.Error(got)
	}
}

// Whatever a daemon answers, a line is no wider than asked for (down to the
// least width), and holds nothing that steers a terminal.
func TestPictureFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := &api.Timeline{RunID: "run_1", Status: "completed", Totals: api.TimelineTotals{WallMS: rapid.Int64Range(0, 1<<40).Draw(t, "wall")}}
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			e := api.TimelineEntry{
				Kind: rapid.SampledFrom([]string{api.EntryQueued, api.EntryStep, api.EntryAttempt, api.EntryTool, api.EntryWaiting, "future"}).Draw(t, "kind"),
				Name: rapid.String().Draw(t, "name"), Open: rapid.Bool().Draw(t, "open"), StartMS: rapid.Int64Range(0, 1<<40).Draw(t, "start"),
			}
			e.EndMS = e.StartMS + rapid.Int64Range(0, 1<<40).Draw(t, "took")
			tl.Entries = append(tl.Entries, e)
		}
		p := picture{style: unicodeStyle, width: rapid.IntRange(40, 200).Draw(t, "width")}
		var b strings.Builder
		if err := p.draw(&b, tl); err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(b.String(), "\n\n")
		for _, l := range strings.Split(body, "\n") {
			if n := utf8.RuneCountInString(l); n > p.width || words.Clean(l) != l {
				t.Fatalf("%d of %d: %q", n, p.width, l)
			}
		}
	})
}
