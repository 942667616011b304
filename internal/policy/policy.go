// Package policy decides whether a tool call may start. The decision is a pure
// function of what the run captured of the tool, so that the log can show why.
package policy

import "github.com/holdfast-dev/holdfast/internal/event"

// Decision is the verdict on one call.
type Decision struct {
	Allowed bool
	Rule    string // what decided: unknown_tool, configured, level
	Reason  string // for a refused call: what the model and the operator read
}

// Decisions as events name them.
const (
	Allow  = "allow"
	Reject = "reject"
)

// Word is the decision as events name it.
func (d Decision) Word() string {
	if d.Allowed {
		return Allow
	}
	return Reject
}

// Check decides on a call of the named tool among those that the run captured.
// Default is closed: a tool that has effects outside the session's own
// workspace starts only where the configuration says `policy: allow`.
func Check(name string, tools []event.CapturedTool) Decision {
	for i := range tools {
		if tools[i].Name == name {
			return check(&tools[i])
		}
	}
	return Decision{Rule: "unknown_tool", Reason: "Unknown tool: " + name}
}

func check(t *event.CapturedTool) Decision {
	switch t.Policy {
	case "allow":
		return Decision{Allowed: true, Rule: "configured"}
	case "deny":
		return Decision{Rule: "configured", Reason: "The configuration denies the tool " + t.Name + "."}
	case "":
	default:
		return Decision{Rule: "configured", Reason: "The tool " + t.Name + " has the policy " + t.Policy + ", which this daemon does not carry out."}
	}
	switch t.Level {
	case "none", "read":
		return Decision{Allowed: true, Rule: "level"}
	case "write":
		if t.Confined {
			return Decision{Allowed: true, Rule: "level"}
		}
	}
	return Decision{Rule: "level", Reason: "The tool " + t.Name + " has the side-effect level " + t.Level +
		" and no policy that allows it."}
}
