package doctor

import (
	"strings"
)

// connectors says what of the doors for events from outside may not be meant so.
func (p *patient) connectors() {
	const check = "connectors"
	n := len(p.cfg.Connectors)
	if n == 0 {
		return
	}
	bad := false
	for _, w := range p.Warnings {
		if strings.HasPrefix(w, "connectors.") && !p.told(w) {
			bad = true
			p.add(check, Warn, "mend that in the file, or see that only the sender you mean reaches it; docs/reference/connectors.md says how", "%s", w)
		}
	}
	if !bad {
		p.add(check, OK, "", "each knows its senders; connectors: %d", n)
	}
}
