package postgres

import (
	"testing"
	"time"
)

// A transaction waits for company only where another node writes, the last one
// had company, and not for long.
func TestPace(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, v := range map[string]struct {
		many         int
		ended, heard time.Duration // before now
		want         time.Duration
	}{
		"alone":                  {20, 0, time.Hour, 0},
		"alone since a while":    {20, 0, beside + 1, 0},
		"never heard of anybody": {20, 0, time.Duration(now.UnixNano()), 0},
		"one client":             {1, 0, 0, 0},
		"the first":              {0, 0, 0, 0},
		"beside another":         {2, 0, beside, gatherFor},
		"half of it is over":     {20, gatherFor / 2, 0, gatherFor / 2},
		"all of it is over":      {20, gatherFor, 0, 0},
		"long ago":               {20, time.Hour, 0, 0},
	} {
		p := pace{ended: now.Add(-v.ended), many: v.many}
		if got := p.wait(now, now.Add(-v.heard)); got != v.want {
			t.Errorf("%s: %v, want %v", name, got, v.want)
		}
	}
}
