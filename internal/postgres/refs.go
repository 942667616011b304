package postgres

import (
	"context"
	"errors"
	"math"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// foundRef is a reference to a blob, and the row of the log that has it.
type foundRef struct{ owner, ref, kind, by string }

const foundRefs = "pg_temp.found_refs"

// putRefs notes the references that were gathered, in a table, as they are as
// long as the log.
func (v *verification) putRefs(ctx context.Context) error {
	if len(v.refs) == 0 {
		return nil
	}
	var columns [4][]string
	for _, r := range v.refs {
		for i, text := range []string{r.owner, r.ref, r.kind, r.by} {
			columns[i] = append(columns[i], toText(text))
		}
	}
	_, err := v.tx.Exec(ctx, "INSERT INTO "+foundRefs+" (owner, ref, kind, by_row) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING",
		columns[0], columns[1], columns[2], columns[3])
	return err
}

// checkRefs finds references without a blob, and, where the whole log could be
// read, blobs without a reference and those of a kind that no reference allows.
// The bodies of an erased session's deliveries are gone with it.
func (v *verification) checkRefs(ctx context.Context) error {
	var found string
	err := v.eachRef(ctx, "SELECT owner, ref, kind, by_row FROM "+foundRefs+` r
		WHERE NOT EXISTS (SELECT 1 FROM @.blobs b WHERE b.owner = r.owner AND b.ref = r.ref) ORDER BY owner, ref`,
		func(r foundRef) {
			at := v.streams[event.SessionID(r.owner).Stream()]
			where := "blob " + r.owner + " " + r.ref
			if where == found || at != nil && at.erasedBy > 0 && r.kind == string(event.BlobDelivery) {
				return
			}
			found = where
			v.report.Find(where, "%s refers to it (%s), and it is missing", r.by, r.kind)
		})
	if err != nil || !v.report.LogSound {
		return err
	}
	err = v.eachRef(ctx, `SELECT owner, ref, kind, '' FROM @.blobs b
		WHERE NOT EXISTS (SELECT 1 FROM `+foundRefs+" r WHERE r.owner = b.owner AND r.ref = b.ref) ORDER BY owner, ref",
		func(r foundRef) { v.report.Find("blob "+r.owner+" "+r.ref, "no event refers to it") })
	if err != nil {
		return err
	}
	// Equal bytes are one blob, of the kind of whoever came first.
	return v.eachRef(ctx, "SELECT b.owner, b.ref, b.kind, min(r.by_row) FROM @.blobs b JOIN "+foundRefs+` r ON r.owner = b.owner AND r.ref = b.ref
		GROUP BY b.owner, b.ref, b.kind HAVING NOT bool_or(r.kind = b.kind) ORDER BY b.owner, b.ref`,
		func(r foundRef) { v.report.Find("blob "+r.owner+" "+r.ref, "is not of a kind that %s allows", r.by) })
}

func (v *verification) eachRef(ctx context.Context, query string, found func(foundRef)) error {
	list, err := manyOf(ctx, v.s, v.tx, query, nil, func(r *foundRef) []any { return []any{&r.owner, &r.ref, &r.kind, &r.by} })
	for _, r := range list {
		found(r)
	}
	return err
}

// checkAssets checks that assets are what their digests say, and that runs use
// such as are there.
func (v *verification) checkAssets(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, v.s.sql("SELECT asset_id, user_id, ref, n_bytes, bytes FROM @.assets"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var a eventlog.AssetRow
		var data []byte
		if err := scanRow(rows, []any{&a.ID, &a.UserID, &a.Ref, &a.Bytes, &data}); err != nil {
			return err
		}
		v.report.Blobs++
		if event.RefOf(data) != a.Ref || event.AssetIDFor(a.UserID, a.Ref) != a.ID || int64(len(data)) != a.Bytes {
			v.report.Find("asset "+string(a.ID), "bytes do not match the digest, or the digest not the id")
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil || !v.report.LogSound {
		return err
	}
	return v.eachRef(ctx, "SELECT asset_id, min(run_id), '', '' FROM "+rebuiltPrefix+`asset_uses u
		WHERE NOT EXISTS (SELECT 1 FROM @.assets a WHERE a.asset_id = u.asset_id) GROUP BY asset_id ORDER BY asset_id`,
		func(r foundRef) { v.report.Find("asset "+r.owner, "%s refers to it, and it is missing", r.ref) })
}

// checkSnapshots finds snapshots that are not what the log gives. One after the
// other is in memory, with a part of its session's events.
func (v *verification) checkSnapshots(ctx context.Context) error {
	for after := ""; ; {
		t, err := oneOf(ctx, v.s, v.tx, snapshotQuery+" WHERE session_id > ? ORDER BY session_id LIMIT 1", []any{after}, snapshotDest)
		if errors.Is(err, eventlog.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		snap := t.row()
		after = string(snap.SessionID)
		if err := v.checkSnapshot(ctx, snap); err != nil {
			return err
		}
	}
}

// snapshotChunk bounds the events that are in memory while a snapshot is compared.
const snapshotChunk = 512

func (v *verification) checkSnapshot(ctx context.Context, snap eventlog.Snapshot) error {
	where := "snapshot of " + string(snap.SessionID)
	stream := snap.SessionID.Stream()
	at := v.streams[stream]
	switch {
	case at == nil || at.head.Seq < snap.Head:
		v.report.Find(where, "its event %d is not in the log", snap.Head)
		return nil
	case at.erasedBy > 0:
		v.report.Find(where, "is there although the session was erased")
		return nil
	}
	events, err := readEvents(ctx, v.s, v.tx, stream, snap.Head-1, 1, math.MaxInt)
	if err != nil {
		return err
	}
	if len(events) == 0 || events[0].Seq != snap.Head || events[0].Hash != snap.Hash {
		v.report.Find(where, "event %d of the log has another hash", snap.Head)
		return nil
	}
	if v.s.cfg.CheckSnapshot == nil {
		return nil
	}
	var failed error // of reading, which is no finding
	err = v.s.cfg.CheckSnapshot(snap, func(after int64) ([]event.Event, error) {
		var events []event.Event
		events, failed = readEvents(ctx, v.s, v.tx, stream, after, snapshotChunk, v.s.cfg.MaxReadBytes)
		return events, failed
	})
	if err != nil && failed == nil {
		v.report.Find(where, "%v", err)
	}
	return failed
}
