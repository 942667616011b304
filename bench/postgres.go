package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// leaseOf is the lease of nodes whose rates are measured: the default.
const leaseOf = 15 * time.Second

// postgresRuns measures one-step runs over HTTP on PostgreSQL, beside what the
// database does through its driver with a row each: one node, then one and
// three in turn.
func postgresRuns(ctx context.Context, b *bench) (err error) {
	d, err := b.openDatabase(ctx)
	if d == nil {
		return err
	}
	b.server = d.cpu
	defer func() {
		b.server = nil
		err = errors.Join(err, d.drop(ctx))
	}()
	for _, n := range []int{1, cmp.Or(b.n.conns, 64)} {
		if err := inserts(ctx, b, d, n); err != nil {
			return err
		}
	}
	one, err := openNodes(ctx, b, d, "one", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.close(ctx)) }()
	for _, clients := range b.n.clients {
		if clients == 64 {
			b.target = "at least 1000"
		}
		do, err := one.runs(clients)
		if err != nil {
			return err
		}
		if _, err := b.timed(b.d/4, clients, do); err != nil { // statements are prepared
			return err
		}
		if _, _, err := b.measure(fmt.Sprintf("one-step runs over HTTP, %d clients", clients), clients, do); err != nil {
			return err
		}
	}
	return oneAndThree(ctx, b, one)
}

// inserts measures INSERT and COMMIT of a row of 512 bytes, over n connections.
func inserts(ctx context.Context, b *bench, d *database, n int) error {
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return err
	}
	cfg.MaxConns = int32(n)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	table := fmt.Sprintf("floor_%d", n)
	if _, err := pool.Exec(ctx, "CREATE TABLE "+table+" (id bigserial PRIMARY KEY, d bytea)"); err != nil {
		return err
	}
	data, text := make([]byte, payload), "INSERT INTO "+table+" (d) VALUES ($1)"
	do := func(int, int) error {
		_, err := pool.Exec(ctx, text, data)
		return err
	}
	if _, err := b.timed(b.d/4, n, do); err != nil { // connections are made
		return err
	}
	_, _, err = b.measure(fmt.Sprintf("the driver alone: INSERT and COMMIT, %d connections", n), n, do)
	return err
}

// nodes are daemons of one database, in this process.
type nodes []*house

// openNodes makes them on a schema.
func openNodes(ctx context.Context, b *bench, d *database, name string, n int) (list nodes, err error) {
	p := oneStep()
	p.more = d.yaml(leaseOf)
	return openNodesWith(ctx, filepath.Join(b.dir, name), n, p)
}

func openNodesWith(ctx context.Context, dir string, n int, p play) (list nodes, err error) {
	for i := range n {
		h, err := openHouseWith(ctx, filepath.Join(dir, fmt.Sprint(i)), p)
		if err != nil {
			return nil, errors.Join(err, list.close(ctx))
		}
		list = append(list, h)
	}
	return list, nil
}

func (list nodes) close(ctx context.Context) (err error) {
	for _, h := range list {
		err = errors.Join(err, h.close(ctx))
	}
	return err
}

// runs gives each client a session of its own, and the nodes clients in turn.
func (list nodes) runs(clients int) (do func(worker, call int) error, err error) {
	sessions := make([]string, clients)
	for i := range sessions {
		if sessions[i], err = list[i%len(list)].session(`{}`); err != nil {
			return nil, err
		}
	}
	return func(w, _ int) error { return list[w%len(list)].run(sessions[w]) }, nil
}

// oneAndThree compares one node with three on a database each, in turn, so that
// both have the same weather: this changes from second to second by more than they
// differ.
func oneAndThree(ctx context.Context, b *bench, one nodes) (err error) {
	const clients = 64
	d, err := b.openDatabase(ctx)
	if d == nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	// A server has a hundred connections if nobody said otherwise.
	conns := cmp.Or(b.n.conns, 8)
	if d.url, err = withParams(d.url, map[string]string{"pool_max_conns": fmt.Sprint(conns)}); err != nil {
		return err
	}
	if err := os.Setenv(d.env, d.url); err != nil {
		return err
	}
	three, err := openNodes(ctx, b, d, "three", 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, three.close(ctx)) }()
	alone := b.server
	defer func() { b.server = alone }()
	lists := [2]nodes{one, three}
	var do [2]func(worker, call int) error
	for i, list := range lists {
		if do[i], err = list.runs(clients); err != nil {
			return err
		}
	}
	var rates [2][]rate
	var ratios []float64
	for round := range b.n.pairs + 1 {
		var pair [2]rate
		for _, i := range []int{round % 2, 1 - round%2} {
			if b.server = alone; i == 1 {
				b.server = d.cpu
			}
			// What is asked for is a rate of nodes at work: they have rested, and find into step.
			if _, err = b.timed(b.d/8, clients, do[i]); err != nil {
				return err
			}
			if pair[i], err = b.timed(b.d/2, clients, do[i]); err != nil {
				return err
			}
		}
		if round > 0 { // the first is for warming up
			rates[0], rates[1] = append(rates[0], pair[0]), append(rates[1], pair[1])
			ratios = append(ratios, pair[1].second/pair[0].second)
		}
	}
	for i := range rates {
		slices.SortFunc(rates[i], func(a, b rate) int { return cmp.Compare(a.second, b.second) })
	}
	single, all := rates[0][b.n.pairs/2], rates[1][b.n.pairs/2]
	b.row("64 clients at one node", single.second, "a second", "", fmt.Sprintf("median of %d windows, in turn with the next; %s", b.n.pairs, single))
	b.row("64 clients at three nodes of one database", all.second, "a second", "", fmt.Sprintf("three daemons in this process, %d connections each; %s", conns, all))
	b.row("three nodes over one", median(ratios), "times", "at least 1", fmt.Sprintf("median of %d pairs of windows, all of it on %d cores; %s", b.n.pairs, runtime.NumCPU(), spread(ratios, "%.2f")))
	return nil
}
