package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// logAppends measures appends of one event of about payload bytes: one
// transaction each, and with group commit.
func logAppends(ctx context.Context, b *bench) error {
	var each float64
	for _, v := range []struct {
		name     string
		sessions int
		batch    int
	}{
		{"log append, 1 session", 1, 0},
		{"log append, 64 sessions, one transaction each", 64, 1},
		{"log append, 64 sessions, group commit", 64, 0},
	} {
		rate, err := appends(ctx, b, v.name, v.sessions, v.batch)
		if err != nil {
			return err
		}
		switch {
		case v.batch == 1:
			each = rate
		case v.sessions == 64:
			b.row("group commit over one transaction each", rate/each, "times", "", "")
		}
	}
	return nil
}

func appends(ctx context.Context, b *bench, name string, sessions, batch int) (rate float64, err error) {
	dir := filepath.Join(b.dir, fmt.Sprintf("log-%d-%d", sessions, batch))
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir, Rows: eventlog.Rows, MaxBatch: batch})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	ids := make([]event.SessionID, sessions)
	for i := range ids {
		if ids[i], err = event.NewSessionID(rand.Reader); err != nil {
			return 0, err
		}
	}
	text := strings.Repeat("x", payload-120)
	return b.measure(name, sessions, func(w, _ int) error {
		_, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{
			Stream: ids[w].Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{SessionID: ids[w], UserID: "bench", Data: &event.TextEnded{Content: event.Content{Text: text}}}},
		}}})
		return err
	})
}
