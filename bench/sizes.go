package main

import "time"

// sizes are how many of what there are.
type sizes struct {
	runs        int
	events      int
	unfinished  int
	idle        int
	subscribers int
	deltas      int
	clients     []int
	takeovers   int
	moved       int
	owned       int
	large       int
	beside      int
	reads       int
	stored      int
	deliveries  int
	queued      int
	conns       int // connections of a node to PostgreSQL; 0: what it takes by itself
	pairs       int
}

// short makes the numbers such that all of it takes two or three minutes.
func (b *bench) short() {
	b.d = time.Second
	b.n.runs, b.n.events, b.n.unfinished, b.n.idle, b.n.subscribers, b.n.deltas = 500, 50_000, 1000, 5000, 1000, 500
	b.n.deliveries, b.n.queued = 6000, min(b.n.queued, 100_000)
	b.n.takeovers, b.n.moved, b.n.owned, b.n.large = 4, 200, 5000, min(b.n.large, 1_000_000)
}

// tiny makes the numbers the smallest with which every section still does all
// that it does. What is measured then says nothing.
func (b *bench) tiny() {
	b.d = 20 * time.Millisecond
	b.n = sizes{
		runs: 10, events: 2000, unfinished: 20, idle: 40, subscribers: 4, deltas: 10, clients: []int{1, 16, 64},
		takeovers: 1, moved: 8, owned: 20, large: 10_200, beside: 10_000, reads: 3, stored: 8,
		deliveries: 800, queued: 2000, conns: 4, pairs: 1,
	}
}
