package doctor

import (
	"time"
)

const (
	// skewBad is past what receivers of webhooks and vendors put up with.
	skewBad  = 5 * time.Minute
	skewNote = 10 * time.Second
	// jumpNote is by how much two clocks may part while the checks run.
	jumpNote = 500 * time.Millisecond
)

// built is a time that no right clock shows any more.
var built = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock holds the wall clock against the monotonic one and against the log.
func (p *patient) clock(began, now time.Time) {
	const check, do = "clock", "set the clock, and keep it right (NTP): planned retries, expiries and signatures go by it"
	wall, steady := now.Round(0).Sub(began.Round(0)), now.Sub(began)
	bad := true
	switch ahead := p.glance.Newest.Sub(now); {
	case now.Before(built):
		p.add(check, Fail, do, "it shows %s, which is long past", now.UTC().Format(time.RFC3339))
	case (wall - steady).Abs() > jumpNote:
		p.add(check, Warn, do, "it jumped by %s while the checks ran", (wall - steady).Round(time.Millisecond))
	case !p.glance.Newest.IsZero() && ahead > time.Minute:
		p.add(check, Fail, do+"; if it is right now, wait until then before the next start", "the newest event of the log is of %s, %s from now: the clock was set back",
			p.glance.Newest.Format(time.RFC3339), ahead.Round(time.Second))
	case !p.glance.Newest.IsZero() && ahead > 2*time.Second:
		p.add(check, Warn, do, "the newest event of the log is %s ahead of it", ahead.Round(time.Second))
	default:
		bad = false
	}
	if !bad {
		p.add(check, OK, "", "%s; it runs steadily, and the log is not ahead of it", now.UTC().Format(time.RFC3339))
	}
}

// judgeSkew says how far our clock is from a server's, whose Date has whole
// seconds and is as old as the answer took.
func judgeSkew(date, sent, came time.Time) (Level, time.Duration) {
	var off time.Duration
	switch {
	case date.Before(sent.Add(-time.Second)):
		off = sent.Sub(date)
	case date.After(came):
		off = date.Sub(came)
	}
	switch {
	case off > skewBad:
		return Fail, off
	case off > skewNote:
		return Warn, off
	}
	return OK, off
}
