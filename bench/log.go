package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// logAppends measures appends of one event of about payload bytes: one
// transaction each, and with group commit.
func logAppends(ctx context.Context, dir string, d time.Duration) error {
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
		rate, err := appends(ctx, filepath.Join(dir, fmt.Sprintf("log-%d-%d", v.sessions, v.batch)), v.name, v.sessions, v.batch, d)
		if err != nil {
			return err
		}
		switch {
		case v.batch == 1:
			each = rate
		case v.sessions == 64:
			fmt.Printf("| %-46s | %11.1fx | %9s | %9s |\n", "group commit over one transaction each", rate/each, "", "")
		}
	}
	return nil
}

func appends(ctx context.Context, dir, name string, sessions, batch int, d time.Duration) (rate float64, err error) {
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
	return measure(name, sessions, d, func(w, _ int) error {
		_, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{
			Stream: ids[w].Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{SessionID: ids[w], UserID: "bench", Data: &event.TextEnded{Content: event.Content{Text: text}}}},
		}}})
		return err
	})
}
