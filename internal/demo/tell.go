package demo

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/api"
)

func (t *teller) title(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.Color {
		text = "\x1b[1m" + text + "\x1b[0m"
	}
	fmt.Fprintf(t.Out, "\n%s\n", text)
}

func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.Out, "  "+format+"\n", args...)
}

func (t *teller) block(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(t.Out, "      "+line)
	}
}

// data is an event's content, to be told.
func data(e *api.Event) map[string]any {
	var d map[string]any
	if json.Unmarshal(e.Data, &d) != nil {
		return map[string]any{}
	}
	return d
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// text is the text of an event content.
func text(v any) string {
	if m, ok := v.(map[string]any); ok {
		if s, ok := m["text"].(string); ok {
			return s
		}
	}
	return ""
}

// gist is what a line of the log says besides its type.
func gist(e *api.Event, d map[string]any) string {
	switch e.Type {
	case "fsm.state.entered":
		return e.FSMState
	case "text.ended":
		return text(d["content"])
	case "tool.call.requested":
		return fmt.Sprintf("%v %s", d["name"], compact(d["arguments"]))
	case "output.emitted":
		return compact(d["structured_output"])
	}
	var parts []string
	for _, name := range []string{"attempt", "class", "finish", "decision", "rule", "ok", "error", "budget", "repair", "level", "owner"} {
		if v, ok := d[name]; ok {
			parts = append(parts, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(parts, " ")
}
