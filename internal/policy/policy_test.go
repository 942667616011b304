package policy_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/policy"
)

func TestCheck(t *testing.T) {
	for _, row := range []struct {
		level, configured string
		confined          bool
		allowed           bool
		rule              string
	}{
		{level: "none", allowed: true, rule: "level"},
		{level: "read", allowed: true, rule: "level"},
		{level: "write", confined: true, allowed: true, rule: "level"},
		{level: "write", rule: "level"},
		{level: "external_effect", rule: "level"},
		{level: "external_effect", confined: true, rule: "level"},
		{level: "irreversible", rule: "level"},
		{level: "", rule: "level"},
		{level: "unheard of", rule: "level"},
		{level: "external_effect", configured: "allow", allowed: true, rule: "configured"},
		{level: "irreversible", configured: "allow", allowed: true, rule: "configured"},
		{level: "read", configured: "deny", rule: "configured"},
		{level: "write", confined: true, configured: "deny", rule: "configured"},
		{level: "read", configured: "review", rule: "configured"},
		{level: "external_effect", configured: "review", rule: "configured"},
		{level: "read", configured: "Allow", rule: "configured"},
	} {
		tools := []event.CapturedTool{
			{Name: "other", Level: "read", Policy: "allow"},
			{Name: "it", Level: row.level, Policy: row.configured, Confined: row.confined},
		}
		d := policy.Check("it", tools)
		if d.Allowed != row.allowed || d.Rule != row.rule {
			t.Errorf("%+v: %+v", row, d)
		}
		word := map[bool]string{true: policy.Allow, false: policy.Reject}[row.allowed]
		if d.Word() != word {
			t.Errorf("%+v: the word is %s", row, d.Word())
		}
		// A refusal says why and which tool; an allowance needs no words.
		if d.Allowed != (d.Reason == "") || !d.Allowed && !strings.Contains(d.Reason, "it") {
			t.Errorf("%+v: reason %q", row, d.Reason)
		}
	}
}

func TestUnknownTool(t *testing.T) {
	for _, tools := range [][]event.CapturedTool{nil, {{Name: "it", Level: "read"}}} {
		if d := policy.Check("It", tools); d.Allowed || d.Rule != "unknown_tool" || d.Reason != "Unknown tool: It" {
			t.Errorf("%+v", d)
		}
	}
}
