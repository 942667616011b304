package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// history measures what a long past costs: a run more in a session that had
// many, the load of such a session after a restart, and pages of a long log.
func history(ctx context.Context, b *bench) error {
	if err := longSession(ctx, b); err != nil {
		return err
	}
	return longLog(ctx, b)
}

func longSession(ctx context.Context, b *bench) (err error) {
	dir := filepath.Join(b.dir, "session")
	h, err := openHouse(ctx, dir)
	if err != nil {
		return err
	}
	defer func() {
		if h != nil {
			err = errors.Join(err, h.close(ctx))
		}
	}()
	// The context that the model is sent is capped, so that it does not grow.
	id, err := h.session(`{"history_limit":40}`)
	if err != nil {
		return err
	}
	var times []time.Duration
	for range b.n.runs {
		begin := time.Now()
		if err := h.run(id); err != nil {
			return err
		}
		times = append(times, time.Since(begin))
	}
	n := min(500, b.n.runs/3)
	early, late := quantile(append([]time.Duration(nil), times[n/5:n+n/5]...), .5), quantile(append([]time.Duration(nil), times[len(times)-n:]...), .5)
	b.row("a run among the first of a session", ms(early), "ms", "", fmt.Sprintf("p50 of %d", n))
	b.row(fmt.Sprintf("a run after %d others", b.n.runs), ms(late), "ms", "", fmt.Sprintf("p50 of %d", n))
	b.row("the one over the other", float64(late)/float64(early), "times", "about 1", "")
	for _, path := range []string{"/v1/sessions/" + id, "/v1/runs?session_id=" + id, "/v1/runs?status=running&session_id=" + id} {
		var all []time.Duration
		for range 50 {
			begin := time.Now()
			var into any
			if err := h.do("GET", path, "", &into); err != nil {
				return err
			}
			all = append(all, time.Since(begin))
		}
		b.row("GET "+strings.ReplaceAll(path, id, "…"), ms(quantile(all, .5)), "ms", "", "p50")
	}
	if err := h.close(ctx); err != nil {
		return err
	}
	if h, err = openHouse(ctx, dir); err != nil {
		return err
	}
	fresh, err := h.session(`{}`)
	if err != nil {
		return err
	}
	for _, x := range []struct{ name, id, note string }{
		{"first run after a restart, of a new session", fresh, ""},
		{"first run after a restart, of the long session", id, "loaded from its snapshot"},
	} {
		begin := time.Now()
		if err := h.run(x.id); err != nil {
			return err
		}
		b.row(x.name, ms(time.Since(begin)), "ms", "", x.note)
	}
	return nil
}

// longLog compares pages of a log of a thousand events with such of a very long one.
func longLog(ctx context.Context, b *bench) (err error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(b.dir, "log"), Sync: sqlite.SyncNormal, Rows: eventlog.Rows})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	var streams []event.Stream
	for _, n := range []int{1000, b.n.events} {
		id, err := event.NewSessionID(rand.Reader)
		if err != nil {
			return err
		}
		streams = append(streams, id.Stream())
		if err := fill(ctx, s, id, n); err != nil {
			return err
		}
	}
	for _, place := range []struct {
		name string
		at   float64
	}{{"at the beginning", 0}, {"in the middle", .5}, {"near the end", .9}} {
		var p50 [2]time.Duration
		var all [2][]time.Duration
		for range 400 { // in turn, so that both have the same weather
			for i, n := range []int{1000, b.n.events} {
				begin := time.Now()
				events, err := s.ReadBounded(ctx, streams[i], int64(place.at*float64(n)), 64)
				if err != nil || len(events) != 64 {
					return fmt.Errorf("%d events: %w", len(events), err)
				}
				all[i] = append(all[i], time.Since(begin))
			}
		}
		for i := range all {
			p50[i] = quantile(all[i], .5)
		}
		b.row(fmt.Sprintf("a page of 64 of %d events over one of 1000, %s", b.n.events, place.name), float64(p50[1])/float64(p50[0]), "times",
			"below 1.2", fmt.Sprintf("p50 %.3f ms", ms(p50[1])))
	}
	return nil
}

// fill appends events to a session, ten at a time.
func fill(ctx context.Context, s *sqlite.Store, id event.SessionID, n int) error {
	const each = 10
	var events [each]event.Event
	text := strings.Repeat("x", 100)
	work := make(chan struct{}, n/each)
	for range n / each {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			mine := events
			for i := range mine {
				mine[i] = event.Event{SessionID: id, UserID: "bench", Data: &event.TextEnded{Content: event.Content{Text: text}}}
			}
			for range work {
				_, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: mine[:]}}})
				if err != nil {
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
