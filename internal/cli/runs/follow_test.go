package runs

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
)

// Why something failed or was interrupted is shown: cleaned, since a tool or a
// model may have written it, and cut.
func TestFollowTellsReasons(t *testing.T) {
	for _, tc := range []struct{ kind, data, want string }{
		{"tool.call.failed", `{"message":{"text":"refused\u001b[2J\nby the \u202eservice"}}`, "✗ pay failed: refused[2J by the service"},
		{"tool.call.failed", `{"message":{"text":"` + strings.Repeat("x", 1000) + `"}}`, "✗ pay failed: " + strings.Repeat("x", maxReason-1) + "…"},
		{"tool.call.failed", `{"message":{"ref":"sha256:00"}}`, "✗ pay failed"},
		{"tool.call.timeout", `{"message":"The tool did not answer in time.","after_ms":5}`, "✗ pay failed: The tool did not answer in time."},
		{"tool.call.interrupted", `{"message":"m","outcome":"unknown","reason":"the answer was lost"}`, "? pay interrupted, outcome unknown: the answer was lost"},
		{"tool.call.interrupted", `{"message":"m","reason":"the run was stopped"}`, "✗ pay interrupted: the run was stopped"},
		{"context.compaction.started", `{"entries":7,"reason":"auto"}`, "compacts the context: a summary of 7 entries"},
		{"context.compacted", `{"entries":7,"tokens":900}`, "✓ the context is compacted, to about 900 tokens"},
		{"context.compaction.failed", `{"code":"model_auth","message":"no such\nkey"}`, "✗ the context is not compacted: no such key"},
		{"run.interrupted", `{"reason":"wrong alert"}`, "  interrupted: wrong alert"},
		{"run.cancelled", `{}`, "  cancelled"},
	} {
		var b strings.Builder
		v := &follower{w: &b}
		v.event(&api.Event{Type: "tool.call.requested", CallID: "call_1", Data: api.Raw(`{"name":"pay"}`)})
		b.Reset()
		v.event(&api.Event{Type: tc.kind, CallID: "call_1", Data: api.Raw(tc.data)})
		if got := strings.TrimSuffix(b.String(), "\n"); !strings.HasSuffix(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.kind, got, tc.want)
		}
	}
}

// That there is no live text is said once, to a person, and where some is missing
// the line says so.
func TestFollowWithoutLiveText(t *testing.T) {
	var b strings.Builder
	v := &follower{w: &b, live: true}
	v.gap() // nothing was shown yet
	for _, where := range []string{api.LiveLocal, "", api.LiveNone, api.LiveBus, api.LiveNone} {
		v.from(where)
	}
	if n := strings.Count(b.String(), "live text is not available here"); n != 1 || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("said %d times: %q", n, b.String())
	}
	v.delta(&api.Delta{Type: "text.delta", Text: "one"})
	v.gap()
	v.delta(&api.Delta{Type: "text.delta", Text: "three"})
	v.from(api.LiveNone)
	if !strings.HasSuffix(b.String(), "one […] three") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	v = &follower{w: &b}
	v.from(api.LiveNone)
	v.gap()
	if b.Len() > 0 {
		t.Errorf("a script is told %q", b.String())
	}
}
