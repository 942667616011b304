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
		took, want   time.Duration
	}{
		"alone":                  {20, 0, time.Hour, time.Second, 0},
		"alone since a while":    {20, 0, beside + 1, time.Second, 0},
		"never heard of anybody": {20, 0, time.Duration(now.UnixNano()), time.Second, 0},
		"the clock was set back": {20, 0, -time.Hour, time.Second, 0},
		"one client":             {1, 0, 0, time.Second, 0},
		"the first":              {0, 0, 0, 0, 0},
		"beside another":         {2, 0, beside, gatherLeast, gatherLeast},
		"half of it is over":     {20, gatherLeast / 2, 0, gatherLeast, gatherLeast / 2},
		"all of it is over":      {20, gatherLeast, 0, gatherLeast, 0},
		"long ago":               {20, time.Hour, 0, time.Second, 0},
		"a slow one":             {20, time.Millisecond, 0, 12 * time.Millisecond, 5 * time.Millisecond},
		"one that waited long":   {20, 0, 0, time.Minute, gatherMost},
	} {
		p := pace{ended: now.Add(-v.ended), took: v.took, many: v.many}
		if got := p.wait(now, now.Add(-v.heard)); got != v.want {
			t.Errorf("%s: %v, want %v", name, got, v.want)
		}
	}
}
