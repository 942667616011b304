package gemini

import (
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// toolNames has the names of tools that the vendor knows under another name.
type toolNames struct {
	toWire, fromWire map[string]string
	known            map[string]bool
}

// namesOf makes the names of a request's tools fit for the vendor, each by
// itself.
func namesOf(tools []llm.ToolDefinition) toolNames {
	n := toolNames{map[string]string{}, map[string]string{}, map[string]bool{}}
	taken := map[string]bool{}
	for i := range tools {
		taken[tools[i].Name], n.known[tools[i].Name] = true, true
	}
	for i := range tools {
		name := tools[i].Name
		wire := wireName(name)
		if wire == name {
			continue
		}
		for taken[wire] {
			wire = wireName("_" + wire)
		}
		taken[wire] = true
		n.toWire[name], n.fromWire[wire] = wire, name
	}
	return n
}

func (n toolNames) wire(name string) string {
	if w, ok := n.toWire[name]; ok {
		return w
	}
	return wireName(name)
}

// ours gives the name of the tool that a model called. Some models put the name
// of the vendor's own namespace before it.
func (n toolNames) ours(wire string) string {
	for _, name := range []string{wire, strings.TrimPrefix(wire, "default_api."), strings.TrimPrefix(wire, "default_api:")} {
		if own, ok := n.fromWire[name]; ok {
			return own
		}
		if n.known[name] {
			return name
		}
	}
	return wire
}

// maxName is the vendor's most for a function's name, in bytes.
const maxName = 128

// wireName makes a name that the vendor takes: letters, digits and `_.:-`, a
// letter or `_` first. A model may once have called a tool by a name that no
// tool can have.
func wireName(name string) string {
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("_.:-", r) || '0' <= r && r <= '9' || letter(r) {
			return r
		}
		return '_'
	}, name)
	if name == "" {
		return "unnamed"
	}
	if name[0] != '_' && !letter(rune(name[0])) {
		name = "_" + name
	}
	return name[:min(len(name), maxName)]
}

func letter(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
