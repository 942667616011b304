package postgres

import (
	"context"
	"errors"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const foundRefs = "pg_temp.found_refs"

// putRefs notes the references that were gathered, in a table, as they are as
// long as the log.
func (v *verification) putRefs(ctx context.Context) error {
	var columns [4][]string
	for _, f := range v.follows {
		for _, r := range f.Refs {
			for i, text := range []string{r.Owner, r.Ref, string(r.Kind), r.By} {
				columns[i] = append(columns[i], toText(text))
			}
		}
	}
	if columns[0] == nil {
		return nil
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
		WHERE NOT EXISTS (SELECT 1 FROM @.blobs b WHERE b.owner = r.Owner AND b.ref = r.Ref) ORDER BY owner, ref`,
		func(r storecore.FoundRef) {
			where := "blob " + r.Owner + " " + r.Ref
			if where == found || r.Kind == event.BlobDelivery && v.WasErased(event.SessionID(r.Owner)) {
				return
			}
			found = where
			v.Report.Find(where, "%s refers to it (%s), and it is missing", r.By, r.Kind)
		})
	if err != nil || !v.Report.LogSound {
		return err
	}
	err = v.eachRef(ctx, `SELECT owner, ref, kind, '' FROM @.blobs b
		WHERE NOT EXISTS (SELECT 1 FROM `+foundRefs+" r WHERE r.Owner = b.owner AND r.ref = b.ref) ORDER BY owner, ref",
		func(r storecore.FoundRef) { v.Report.Find("blob "+r.Owner+" "+r.Ref, "no event refers to it") })
	if err != nil {
		return err
	}
	// Equal bytes are one blob, of the kind of whoever came first.
	return v.eachRef(ctx, "SELECT b.owner, b.ref, b.kind, min(r.by_row) FROM @.blobs b JOIN "+foundRefs+` r ON r.Owner = b.owner AND r.ref = b.ref
		GROUP BY b.owner, b.ref, b.kind HAVING NOT bool_or(r.kind = b.kind) ORDER BY b.owner, b.ref`,
		func(r storecore.FoundRef) {
			v.Report.Find("blob "+r.Owner+" "+r.Ref, "is not of a kind that %s allows", r.By)
		})
}

func (v *verification) eachRef(ctx context.Context, query string, found func(storecore.FoundRef)) error {
	list, err := manyOf(ctx, v.s, v.tx, query, nil, func(r *storecore.FoundRef) []any { return []any{&r.Owner, &r.Ref, &r.Kind, &r.By} })
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
		v.Report.Blobs++
		if event.RefOf(data) != a.Ref || event.AssetIDFor(a.UserID, a.Ref) != a.ID || int64(len(data)) != a.Bytes {
			v.Report.Find("asset "+string(a.ID), "bytes do not match the digest, or the digest not the id")
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil || !v.Report.LogSound {
		return err
	}
	return v.eachRef(ctx, "SELECT asset_id, min(run_id), '', '' FROM "+rebuiltPrefix+`asset_uses u
		WHERE NOT EXISTS (SELECT 1 FROM @.assets a WHERE a.asset_id = u.asset_id) GROUP BY asset_id ORDER BY asset_id`,
		func(r storecore.FoundRef) {
			v.Report.Find("asset "+r.Owner, "%s refers to it, and it is missing", r.Ref)
		})
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
		err = v.Walk.Snapshot(snap, func(after int64, limit int) ([]event.Event, error) {
			return readEvents(ctx, v.s, v.tx, snap.SessionID.Stream(), after, limit, v.s.cfg.MaxReadBytes)
		}, v.s.cfg.CheckSnapshot)
		if err != nil {
			return err
		}
	}
}
