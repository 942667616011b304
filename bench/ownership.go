package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

// ownership measures what it costs that a session has one owner: the checks
// before each act, those of the store with what it keeps for them, and beats.
func ownership(ctx context.Context, b *bench) (err error) {
	d, err := b.openDatabase(ctx)
	if d == nil {
		return err
	}
	b.server = d.cpu
	defer func() {
		b.server = nil
		err = errors.Join(err, d.drop(ctx))
	}()
	check, err := checkTime(ctx, b, d)
	if err != nil {
		return err
	}
	kept, err := holderTime(ctx, b, d)
	if err != nil {
		return err
	}
	if err := shares(ctx, b, d, check, kept); err != nil {
		return err
	}
	return beats(ctx, b, d)
}

// checkTime is the time of one check of a lease that ends.
func checkTime(ctx context.Context, b *bench, d *database) (each time.Duration, err error) {
	s, err := d.store(ctx, "checks")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	t := tenure.New(tenure.Config{Nodes: s, Node: eventlog.Node{ID: "checks"}, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if err := t.Start(ctx); err != nil {
		return 0, err
	}
	defer t.Stop(ctx)
	const n = 100_000
	term := t.Term()
	var times []time.Duration
	for range 20 {
		begin := time.Now()
		for range n {
			if err := term.Await(ctx); err != nil {
				return 0, err
			}
		}
		times = append(times, time.Since(begin)/n)
	}
	each = quantile(times, .5)
	b.row("a check of the lease", float64(each.Nanoseconds()), "ns", "", "median of 20 times 100,000")
	return each, nil
}

// holderTime is the processor time that a run takes more at the store since its
// appends say whose they are: the same appends with and without, in turn.
func holderTime(ctx context.Context, b *bench, d *database) (more time.Duration, err error) {
	const writers, rounds = 64, 5
	s, err := d.store(ctx, "holders")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	if _, err := s.Beat(ctx, eventlog.Node{ID: "holders"}, time.Hour); err != nil {
		return 0, err
	}
	var sessions [2][writers]event.SessionID
	var took [2][]time.Duration
	for round := range rounds + 1 {
		for i, node := range []eventlog.NodeID{"", "holders"} {
			r, err := b.timed(b.d/2, writers, func(w, _ int) error {
				if sessions[i][w] == "" {
					if sessions[i][w], err = event.NewSessionID(rand.Reader); err != nil {
						return err
					}
				}
				return storeRun(ctx, s, sessions[i][w], node)
			})
			if err != nil {
				return 0, err
			}
			if round > 0 { // the first is for warming up
				took[i] = append(took[i], r.cpu+r.server)
			}
		}
	}
	without, with := quantile(took[0], .5), quantile(took[1], .5)
	b.row("the appends of a one-step run, without an owner", ms(without), "ms", "", fmt.Sprintf("of CPU, here and in the database; 64 writers, median of %d", rounds))
	b.row("the same with an owner, who takes and leaves the session", ms(with), "ms", "", "in turn with the one above")
	return with - without, nil
}

// storeRun is what a one-step run asks of the store: its submission, its
// beginning and its end. With a node those are its owner's.
func storeRun(ctx context.Context, s *postgres.Store, id event.SessionID, node eventlog.NodeID) error {
	run, err := event.NewRunID(rand.Reader)
	if err != nil {
		return err
	}
	first := []event.Data{created("hello"), &event.RunQueued{}}
	last := []event.Data{&event.OutputEmitted{}, &event.RunCompleted{}}
	for i, size := range []int{3, 4, 12} { // about as many as there are
		data := [][]event.Data{first, {&event.RunStarted{}}, last}[i]
		for len(data) < size {
			data = append(data, &event.TextEnded{Content: event.Content{Text: "some text of a usual length, so to say"}})
		}
		e := eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead}
		if i > 0 {
			e.Node, e.Rest = node, node != "" && i == 2
		}
		for _, x := range data {
			e.Events = append(e.Events, event.Event{SessionID: id, UserID: "bench", RunID: run, Data: x})
		}
		if _, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{e}}); err != nil {
			return err
		}
	}
	return nil
}

// created is a run that was submitted.
func created(text string) *event.RunCreated {
	return &event.RunCreated{
		Input: []event.InputItem{{Type: "text", Content: event.TextContent(text)}}, Kind: "input", MaxTurns: 3, OnDoubt: event.DoubtAsk,
		Route: event.Route{Name: "s", Provider: "scripted", Model: "s"}, SettingsVersion: 1, Source: "api", TextPreview: text,
	}
}

// counted counts the checks of a lease.
type counted struct {
	eventlog.Term
	n *atomic.Int64
}

func (c counted) Held() bool {
	c.n.Add(1)
	return c.Term.Held()
}

func (c counted) Await(ctx context.Context) error {
	c.n.Add(1)
	return c.Term.Await(ctx)
}

// shares measures kinds of runs, counts their checks, and says what part of a
// run's processor time ownership is.
func shares(ctx context.Context, b *bench, d *database, check, kept time.Duration) error {
	const tokens = 1000
	long := oneStep()
	long.script = "rules: [{reply: {chunk: 4, text: '" + strings.Repeat("word", tokens) + "', usage: {input: 10, output: 1000}}}]"
	for _, x := range []struct {
		name, session string
		play          play
		reader        bool
	}{
		{"a one-step run", `{}`, oneStep(), false},
		{"a five-turn run with four tool calls", `{"history_limit":40,"tools":["look","note"]}`, fiveTurns(), false},
		{"a run of 1,000 deltas with a reader", `{}`, long, true},
	} {
		if err := share(ctx, b, d, x.name, x.session, x.play, x.reader, func(n, cpu float64) {
			// An owner that comes and one that leaves write more; what stands between does not.
			cost := n*check.Seconds() + max(kept, 0).Seconds() // what is below the noise is nothing
			b.row(x.name+": checks of the lease", n, "", "", fmt.Sprintf("%.3f ms of CPU for such a run, here and in the database, 16 clients", cpu*1000))
			b.row(x.name+": ownership's share of it", 100*cost/cpu, "%", "at most 5", "checks, and what the store does for owners")
		}); err != nil {
			return err
		}
	}
	return nil
}

func share(ctx context.Context, b *bench, d *database, name, body string, p play, read bool, tell func(checks, cpu float64)) (err error) {
	const clients = 16
	var checks atomic.Int64
	p.lease = func(t eventlog.Term) eventlog.Term { return counted{t, &checks} }
	p.more = d.yaml(leaseOf)
	h, err := openHouseWith(ctx, filepath.Join(b.dir, strings.ReplaceAll(name, " ", "-")), p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	sessions := make([]string, clients)
	for i := range sessions {
		if sessions[i], err = h.session(body); err != nil {
			return err
		}
	}
	if read {
		group, err := follow(strings.TrimPrefix(h.base, "http://"), clients, func(i int) string { return sessions[i] })
		if err != nil {
			return err
		}
		defer group.close()
		for i := range group.bufs { // what comes is read and dropped
			go func() { _, _ = group.bufs[i].WriteTo(discard{}) }()
		}
	}
	do := func(w, _ int) error { return h.run(sessions[w]) }
	if _, err := b.timed(b.d/4, clients, do); err != nil {
		return err
	}
	before := checks.Load()
	var runs atomic.Int64
	r, err := b.timed(b.d, clients, func(w, n int) error {
		runs.Add(1)
		return do(w, n)
	})
	if err != nil {
		return err
	}
	tell(float64(checks.Load()-before)/float64(runs.Load()), (r.cpu + r.server).Seconds())
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// beats measures what a node writes to stay alive that owns one session, and
// that owns very many.
func beats(ctx context.Context, b *bench, d *database) (err error) {
	owned := 0
	for _, n := range []int{1, b.n.owned} {
		if err := own(ctx, d, "owner", n-owned); err != nil {
			return err
		}
		owned = n
		w, err := beatsOf(ctx, d)
		if err != nil {
			return err
		}
		of := fmt.Sprintf("%d owned sessions", n)
		b.row(of+": rows written for a beat", w.rows, "", "at most 1.1", "in all tables of the schema")
		b.row(of+": bytes of the database's log for a beat", w.bytes, "B", "", "the least of 5 times 20: others write too")
		b.row(of+": a beat", ms(w.p50), "ms", "", "p50 of 100")
		looks, err := looksOf(ctx, d)
		if err != nil {
			return err
		}
		b.row(of+": a look for work, once a second", ms(quantile(looks, .5)), "ms", "", "p50 of 20")
	}
	return nil
}

// looksOf looks for work.
func looksOf(ctx context.Context, d *database) (all []time.Duration, err error) {
	s, err := d.store(ctx, "looks")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	for range 20 {
		begin := time.Now()
		if _, err := s.Take(ctx, "owner", eventlog.Sessions, 128, false); err != nil {
			return nil, err
		}
		all = append(all, time.Since(begin))
	}
	return all, nil
}

// own makes sessions that a node works on.
func own(ctx context.Context, d *database, node eventlog.NodeID, n int) (err error) {
	s, err := d.store(ctx, "owns")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	if _, err := s.Beat(ctx, eventlog.Node{ID: node}, time.Hour); err != nil {
		return err
	}
	const each = 500
	return at64((n+each-1)/each, func(i int) error {
		var a eventlog.Append
		for range min(each, n-i*each) {
			id, err := event.NewSessionID(rand.Reader)
			if err != nil {
				return err
			}
			a.Entries = append(a.Entries, eventlog.Entry{Stream: id.Stream(), Expect: 0, Claim: true, Node: node, Events: []event.Event{
				{SessionID: id, UserID: "bench", Data: &event.SessionCreated{}},
				{SessionID: id, UserID: "bench", Data: &event.OwnerClaimed{Owner: string(node)}},
			}})
		}
		_, err := s.Append(ctx, a)
		return err
	})
}

// beatWrote is what one beat wrote.
type beatWrote struct {
	rows, bytes float64
	p50         time.Duration
}

// beatsOf beats over a store of its own, and looks at what the database counted
// for its connections once they are closed: it counts then.
func beatsOf(ctx context.Context, d *database) (w beatWrote, err error) {
	const times, each = 5, 20
	before, err := d.changes(ctx)
	if err != nil {
		return w, err
	}
	s, err := d.store(ctx, "beats")
	if err != nil {
		return w, err
	}
	var all []time.Duration
	var bytes []float64
	for range times {
		from, err := one[string](ctx, d, "SELECT pg_current_wal_insert_lsn()::text")
		if err != nil {
			return w, errors.Join(err, s.Close(ctx))
		}
		for range each {
			begin := time.Now()
			if _, err := s.Beat(ctx, eventlog.Node{ID: "owner"}, time.Hour); err != nil {
				return w, errors.Join(err, s.Close(ctx))
			}
			all = append(all, time.Since(begin))
		}
		n, err := one[float64](ctx, d, "SELECT (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::float8", from)
		if err != nil {
			return w, errors.Join(err, s.Close(ctx))
		}
		bytes = append(bytes, n/each)
	}
	if err := s.Close(ctx); err != nil {
		return w, err
	}
	after, err := d.changes(ctx)
	return beatWrote{float64(after-before) / (times * each), slices.Min(bytes), quantile(all, .5)}, err
}

// changes counts the rows that were written in all tables of the schema. It waits
// until what the connections of stores that were closed counted has come.
func (d *database) changes(ctx context.Context) (n int64, err error) {
	last, quiet := int64(-1), 0
	for range 100 {
		n, err = one[int64](ctx, d, "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1", d.schema)
		if err != nil {
			return 0, err
		}
		if n != last {
			last, quiet = n, 0
		} else if quiet++; quiet == 6 {
			return n, nil
		}
		<-time.After(250 * time.Millisecond)
	}
	return 0, errors.New("the database does not come to rest")
}
