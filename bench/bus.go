package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// busDeltas measures the same as deltas where the subscriber is at another node
// than the one that works: over loopback to the one, over NATS to the other, and over
// loopback to the subscriber. Both nodes are in this process.
func busDeltas(ctx context.Context, b *bench) (err error) {
	d, err := b.openDatabase(ctx)
	if d == nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	url, where, end, err := b.startNATS()
	if err != nil {
		return err
	}
	defer end()
	route, quiet, err := startSpeaker(b.n.deltas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, quiet()) }()
	two, err := openNodesWith(ctx, filepath.Join(b.dir, "nodes"), 2, play{route: route, more: d.yaml(leaseOf) + "bus_url: " + url + "\n"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.close(ctx)) }()
	if err := deltasBetween(two[0], two[0], b, "NATS, to a reader at the same node", "below 1", where); err != nil {
		return err
	}
	return deltasBetween(two[0], two[1], b, "NATS, to a reader at another node", "below 5", where)
}

// startNATS gives the address of a server that is there, or starts one; where
// says so in a note.
func (b *bench) startNATS() (url, where string, end func(), err error) {
	if conn, err := net.DialTimeout("tcp", b.nats, time.Second); err == nil {
		return "nats://" + b.nats, "", func() {}, conn.Close()
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		return "", "", nil, fmt.Errorf("start NATS: %w", err)
	}
	s.Start()
	end = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(20 * time.Second) {
		end()
		return "", "", nil, errors.New("NATS does not start")
	}
	return s.ClientURL(), "; the server is in this process", end, nil
}
