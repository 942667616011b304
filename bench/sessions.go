package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// makeSessions puts sessions into the store of a daemon that is not running,
// each with a run that was queued, and with end one that is over.
func makeSessions(ctx context.Context, dir string, n int, end bool) (err error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir + "/holdfast-data", Sync: sqlite.SyncNormal, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	work := make(chan int, n)
	for i := range n {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			for range work {
				if err := makeSession(ctx, s, end); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func makeSession(ctx context.Context, s *sqlite.Store, end bool) error {
	id, err := event.NewSessionID(rand.Reader)
	if err != nil {
		return err
	}
	run, err := event.NewRunID(rand.Reader)
	if err != nil {
		return err
	}
	events := []event.Event{
		{Data: &event.SessionCreated{}},
		{RunID: run, Data: &event.RunCreated{
			Input: []event.InputItem{{Type: "text", Content: event.TextContent("hello")}}, Kind: "input", MaxTurns: 3, OnDoubt: event.DoubtAsk,
			Route: event.Route{Name: "s", Provider: "scripted", Model: "s"}, SettingsVersion: 1, Source: "api", TextPreview: "hello",
		}},
		{RunID: run, Data: &event.RunQueued{}},
	}
	if end {
		events = append(events, event.Event{RunID: run, Data: &event.RunCancelled{}})
	}
	for i := range events {
		events[i].SessionID, events[i].UserID = id, "default"
	}
	_, err = s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: events}}})
	return err
}

// start measures a start with many unfinished sessions: when the daemon
// listens, and when all of them are done.
func start(ctx context.Context, b *bench) error {
	if err := makeSessions(ctx, b.dir, b.n.unfinished, false); err != nil {
		return err
	}
	begin := time.Now()
	n, err := startNode(b.dir)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("ready, with %d unfinished sessions", b.n.unfinished), n.took.Seconds(), "s", "below 2", "")
	first := time.Now()
	if _, err := n.session(`{}`); err != nil {
		return err
	}
	b.row("a request while they are taken up", ms(time.Since(first)), "ms", "", "a session is created")
	for {
		var page struct{ Items []any }
		if err := n.do("GET", "/v1/runs?status=queued&limit=1", "", &page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	b.row("all of them done", time.Since(begin).Seconds(), "s", "", "one step each")
	b.row("memory at most", n.memory(true), "MiB", "", "")
	return n.stop()
}

// idle measures the memory of a daemon with many sessions that rest.
func idle(ctx context.Context, b *bench) error {
	if err := makeSessions(ctx, b.dir, b.n.idle, true); err != nil {
		return err
	}
	n, err := startNode(b.dir)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("memory with %d idle sessions", b.n.idle), n.memory(false), "MiB", "below 100", "after the start")
	// Many of them are looked at, and some work.
	var cursor string
	seen := 0
	for seen < b.n.idle {
		var page struct {
			Items []struct{ ID string }
			Next  string `json:"next_cursor"`
		}
		if err := n.do("GET", "/v1/sessions?limit=200&cursor="+cursor, "", &page); err != nil {
			return err
		}
		seen += len(page.Items)
		for i, s := range page.Items {
			if i%20 == 0 {
				if err := n.run(s.ID); err != nil {
					return err
				}
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	b.row("the same, when all were listed and a run was made in 5 %", n.memory(false), "MiB", "below 100", "")
	b.row("at most", n.memory(true), "MiB", "", "")
	return n.stop()
}
