package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const assetColumns = "asset_id, user_id, ref, media_type, name, n_bytes, created_at"

func assetDest(a *eventlog.AssetRow) []any {
	return []any{&a.ID, &a.UserID, &a.Ref, &a.MediaType, &a.Name, &a.Bytes, &a.CreatedAt}
}

// PutAsset implements eventlog.Assets. Files of one user are put one after the
// other, so that two together do not pass the quota.
func (s *Store) PutAsset(ctx context.Context, a eventlog.AssetRow, data []byte, quota int64) (row eventlog.AssetRow, created bool, err error) {
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	err = s.write(ctx, "put asset", func(ctx context.Context, tx pgx.Tx) error {
		row, created, err = s.putAsset(ctx, tx, a, data, quota)
		return err
	})
	if err != nil {
		return eventlog.AssetRow{}, false, err
	}
	return row, created, nil
}

func (s *Store) putAsset(ctx context.Context, tx pgx.Tx, a eventlog.AssetRow, data []byte, quota int64) (eventlog.AssetRow, bool, error) {
	// The lock is one of the table and the user.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::int, hashtext('assets of ' || $2))", s.feedLock, toText(a.UserID)); err != nil {
		return a, false, err
	}
	old, err := oneOf(ctx, s, tx, "UPDATE @.assets SET touched_at = ? WHERE asset_id = ? RETURNING "+assetColumns, []any{a.CreatedAt, string(a.ID)}, assetDest)
	if !errors.Is(err, eventlog.ErrNotFound) {
		return old, false, err
	}
	held, err := oneOf(ctx, s, tx, "SELECT coalesce(sum(n_bytes), 0)::bigint FROM @.assets WHERE user_id = ?", []any{a.UserID}, func(n *int64) []any { return []any{n} })
	if err != nil {
		return a, false, err
	}
	if held+a.Bytes > quota {
		return a, false, eventlog.ErrQuota
	}
	_, err = tx.Exec(ctx, s.sql("INSERT INTO @.assets ("+assetColumns+", touched_at, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"),
		toTexts([]any{string(a.ID), a.UserID, a.Ref, a.MediaType, a.Name, a.Bytes, a.CreatedAt, a.CreatedAt, data})...)
	return a, true, err
}

// Asset implements eventlog.Assets.
func (s *Store) Asset(ctx context.Context, id event.AssetID) (eventlog.AssetRow, error) {
	return one(ctx, s, "read asset", "SELECT "+assetColumns+" FROM @.assets WHERE asset_id = ?", []any{string(id)}, assetDest)
}

// AssetBytes implements eventlog.Assets.
func (s *Store) AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error) {
	return one(ctx, s, "read asset", "SELECT bytes FROM @.assets WHERE asset_id = ?", []any{string(id)}, func(b *[]byte) []any { return []any{b} })
}

// ListAssets implements eventlog.Assets.
func (s *Store) ListAssets(ctx context.Context, user string, p eventlog.Page) ([]eventlog.AssetRow, string, error) {
	l := &storecore.List{Hide: hidden, Kind: "assets", From: "SELECT " + assetColumns + " FROM @.assets", Order: []string{"created_at", "asset_id"}}
	l.Match("user_id", user)
	return page(ctx, s, "list assets", l, p, assetDest, func(a *eventlog.AssetRow) []string { return []string{a.CreatedAt, string(a.ID)} })
}

// collectBytes bounds what one transaction takes out, in bytes, save that it
// takes one asset whatever its size.
const collectBytes = 16 << 20

// idleAssets locks what may be collected. What an append has in hand is passed
// over: it may be about to use it.
const idleAssets = `SELECT asset_id, n_bytes FROM @.assets a WHERE touched_at < $1
	AND NOT EXISTS (SELECT 1 FROM @.asset_uses u WHERE u.asset_id = a.asset_id)
	ORDER BY touched_at, asset_id LIMIT $2 FOR UPDATE SKIP LOCKED`

// dropAssets looks once more, behind the locks: a use that was committed
// before they were had shows now, and none can come.
const dropAssets = `DELETE FROM @.assets a WHERE asset_id = ANY($1::text[])
	AND NOT EXISTS (SELECT 1 FROM @.asset_uses u WHERE u.asset_id = a.asset_id)`

// CollectAssets implements eventlog.Assets.
func (s *Store) CollectAssets(ctx context.Context, before time.Time, limit int) (n int, err error) {
	type idle struct {
		id    string
		bytes int64
	}
	err = s.write(ctx, "collect assets", func(ctx context.Context, tx pgx.Tx) error {
		list, err := manyOf(ctx, s, tx, idleAssets, []any{event.FormatTime(before), limit}, func(x *idle) []any { return []any{&x.id, &x.bytes} })
		if err != nil || len(list) == 0 {
			n = 0
			return err
		}
		var ids []string
		size := int64(0)
		for _, x := range list {
			if size += x.bytes; size > collectBytes && len(ids) > 0 {
				break
			}
			ids = append(ids, toText(x.id))
		}
		tag, err := tx.Exec(ctx, s.sql(dropAssets), ids)
		n = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
