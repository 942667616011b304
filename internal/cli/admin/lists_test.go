package admin

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api"
)

// A node that is gone works on nothing, whatever it said last.
func TestNodeWork(t *testing.T) {
	for _, c := range []struct {
		node         api.Node
		status, work string
	}{
		{api.Node{Alive: true, ActiveSessions: 3, MostSessions: 256}, "alive", "3 of 256"},
		{api.Node{Alive: true, Draining: true, ActiveSessions: 1, MostSessions: 256}, "draining", "1 of 256"},
		{api.Node{ActiveSessions: 3, MostSessions: 256}, "lost", "-"},
		{api.Node{Released: true, Draining: true, ActiveSessions: 1, MostSessions: 256}, "ended", "-"},
	} {
		if s, w := nodeStatus(&c.node), nodeWork(&c.node); s != c.status || w != c.work {
			t.Errorf("%+v: %s, %s", c.node, s, w)
		}
	}
}
