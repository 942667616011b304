package tenure

import "time"

// Stats is what a tenure has come to since it began.
type Stats struct {
	TTL  time.Duration // of the lease; 0: it does not end
	Left time.Duration // of the lease as it stands, 0 when it has ended
	// Nodes that are alive and take work, this one included, and those that drain.
	Alive, Draining int
	Beats           uint64 // that the store took
	Late            uint64 // of those: that came when no act might begin any more
	Failed          uint64 // beats that failed
	Lost            uint64 // leases that ended before the next beat
	// What still wanted work and was given to others.
	SessionsGiven, TargetsGiven uint64
}

// Stats gives the figures.
func (t *Tenure) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.TTL = t.cfg.TTL
	if s.TTL > 0 {
		if !t.term.ended.Load() {
			now := time.Now()
			s.Left = max(0, min(t.over.Sub(now), t.over.Round(0).Sub(now.Round(0))))
		}
		if t.draining {
			s.Alive, s.Draining = max(0, s.Alive-1), s.Draining+1
		}
	} else {
		s.Alive = 1
	}
	return s
}

// failed notes a beat that failed. The first of a row is told, with the time that
// is left; what comes of it is told when it comes.
func (t *Tenure) failed(err error) {
	left := t.Stats().Left
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Failed++
	if t.failing++; t.failing > 1 {
		return
	}
	t.cfg.Logger.Warn("the node could not beat; it tries again", "node", t.cfg.Node.ID, "lease_left", left.Round(time.Millisecond), "err", err)
}

// tellBeat counts a beat that the store took and says what it ends: a row of
// failures, or a time without a lease. The lock is held.
func (t *Tenure) tellBeat(fresh, late bool) {
	t.stats.Beats++
	if late {
		t.stats.Late++
	}
	switch {
	case t.begun && fresh:
		t.cfg.Logger.Warn("the lease has begun anew; work is taken up again, and what others have taken stays with them", "node", t.cfg.Node.ID)
	case t.failing > 0:
		t.cfg.Logger.Info("the node beats again", "node", t.cfg.Node.ID, "failed_beats", t.failing)
	}
	t.failing = 0
}
