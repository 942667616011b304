package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// receivers is how many targets the deliveries go to.
const receivers = 200

// sharers is how many sessions answer to a target.
const sharers = 4

// enqueue fills the queue of a daemon that is not running: bodies of a usual size,
// of several sessions for each target.
func enqueue(ctx context.Context, dir, url string, n int) (err error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(dir, "holdfast-data"), Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Sync: sqlite.SyncNormal})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	text := strings.Repeat("an answer of a usual length, so to say. ", 10)
	for t := range receivers {
		var sessions [sharers]event.SessionID
		for i := range sessions {
			if sessions[i], err = event.NewSessionID(rand.Reader); err != nil {
				return err
			}
		}
		to := event.ReplyTarget{Type: "webhook", URL: fmt.Sprintf("%s/%d", url, t)}
		address, err := json.Marshal(to)
		if err != nil {
			return err
		}
		id := event.TargetIDFor("bench", to.Type, to.URL)
		at := event.RefOf(address)
		var a eventlog.Append
		for i := t; i < n; i += receivers {
			ses := sessions[i/receivers%sharers]
			run, err := event.NewRunID(rand.Reader)
			if err != nil {
				return err
			}
			d := event.DeliveryIDFor(run, id, 0)
			m := outbox.Message{DeliveryID: d, SessionID: ses, RunID: run, OutputKind: event.OutputText, Text: text}
			body := event.NewBlob(ses, event.BlobDelivery, m.Body())
			a.Blobs = append(a.Blobs, body, event.NewBlob(ses, event.BlobDelivery, address))
			a.Entries = append(a.Entries, eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead, Follows: len(a.Entries) > 0, Events: []event.Event{{SessionID: ses, UserID: "bench", RunID: run,
				Data: &event.DeliveryEnqueued{Address: at, Body: body.Ref, DeliveryID: d, Type: to.Type}}}})
			if len(a.Entries) == 500 || i+receivers >= n {
				if _, err := s.Append(ctx, a); err != nil {
					return err
				}
				a = eventlog.Append{}
			}
		}
	}
	return nil
}
