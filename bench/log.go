package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// logAppends measures appends of one event of about payload bytes: one
// transaction each, and with group commit.
func logAppends(ctx context.Context, b *bench) error {
	var each, bare float64
	for _, together := range []bool{false, true} {
		rate, err := driver(b, together)
		if err != nil {
			return err
		}
		bare = rate // the last one: grouped
	}
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
			b.row("group commit of the log over that of the driver alone", 100*rate/bare, "%", "at least 50", "")
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
	_, rate, err = b.measure(name, sessions, func(w, _ int) error {
		_, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{
			Stream: ids[w].Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{SessionID: ids[w], UserID: "bench", Data: &event.TextEnded{Content: event.Content{Text: text}}}},
		}}})
		return err
	})
	return rate, err
}

// driver measures the database alone, under the settings of the log: rows of
// as many bytes with a unique key, and the ends of 64 streams, by 64 writers.
func driver(b *bench, together bool) (rate float64, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.dir, fmt.Sprintf("driver-%v.db", together))+
		"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=wal_autocheckpoint(4000)&_pragma=secure_delete(ON)")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`CREATE TABLE l (id INTEGER PRIMARY KEY, s TEXT, n INTEGER, d BLOB); CREATE UNIQUE INDEX li ON l (s, n);
		CREATE TABLE h (s TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID`); err != nil {
		return 0, err
	}
	streams := make([]string, 64)
	for i := range streams {
		id, err := event.NewSessionID(rand.Reader)
		if err != nil {
			return 0, err
		}
		streams[i] = string(id.Stream())
		if _, err := db.Exec("INSERT INTO h VALUES (?, 0)", streams[i]); err != nil {
			return 0, err
		}
	}
	insert, err := db.Prepare("INSERT INTO l (s, n, d) VALUES (?, ?, ?)")
	if err != nil {
		return 0, err
	}
	move, err := db.Prepare("UPDATE h SET n = ? WHERE s = ? AND n < ?")
	if err != nil {
		return 0, err
	}
	head, data := 0, make([]byte, payload)
	work := func(n int) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for range n {
			head++
			stream := streams[head%len(streams)]
			if _, err := tx.Stmt(insert).Exec(stream, head, data); err != nil {
				return err
			}
			if _, err := tx.Stmt(move).Exec(head, stream, head); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	if together {
		return grouped(b, "the driver alone, 64 writers, group commit", work)
	}
	var mu sync.Mutex
	_, rate, err = b.measure("the driver alone, 64 writers, one transaction each", 64, func(int, int) error {
		mu.Lock()
		defer mu.Unlock()
		return work(1)
	})
	return rate, err
}
