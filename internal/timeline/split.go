package timeline

import (
	"cmp"
	"slices"

	"github.com/holdfast-dev/holdfast/api"
)

// cause is what an instant of the wall time is put down to.
type cause string

// The causes. Where several hold at one instant the first of the order counts.
const (
	none    cause = ""
	queued  cause = "queued"
	waiting cause = "waiting"
	tools   cause = "tools"
	model   cause = "model"
	retry   cause = "retry"
	unowned cause = "no owner"
)

var order = [...]cause{queued, waiting, tools, model, retry, unowned}

func causeOf(kind string) cause {
	switch kind {
	case api.EntryQueued:
		return queued
	case api.EntryWaiting:
		return waiting
	case api.EntryTool:
		return tools
	case api.EntryAttempt:
		return model
	case api.EntryRetryWait:
		return retry
	}
	return none
}

// span is a stretch of time, from included, to not.
type span struct {
	from, to int64
	cause    cause
}

// split gives each millisecond of [0, wall) to one cause. While nobody owned the
// run, no model and no tool worked on it, whatever was open.
func split(spans, gaps []span, wall int64) (s api.TimelineSplit, noOwner int64) {
	type edge struct {
		at    int64
		cause cause
		by    int
	}
	var edges []edge
	add := func(c cause, from, to int64) {
		from, to = max(from, 0), min(to, wall)
		if from < to {
			edges = append(edges, edge{from, c, 1}, edge{to, c, -1})
		}
	}
	for _, x := range spans {
		add(x.cause, x.from, x.to)
	}
	for _, x := range gaps {
		add(unowned, x.from, x.to)
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	open := map[cause]int{}
	var at int64
	pass := func(to int64) {
		took := to - at
		at = to
		for _, c := range order {
			if open[c] == 0 || open[unowned] > 0 && (c == tools || c == model) {
				continue
			}
			switch c {
			case queued:
				s.QueuedMS += took
			case waiting:
				s.WaitingMS += took
			case tools:
				s.ToolsMS += took
			case model:
				s.ModelMS += took
			case retry:
				s.RetryWaitMS += took
			case unowned:
				s.OverheadMS += took
				noOwner += took
			}
			return
		}
		s.OverheadMS += took
	}
	for _, e := range edges {
		pass(e.at)
		open[e.cause] += e.by
	}
	pass(wall)
	return s, noOwner
}
