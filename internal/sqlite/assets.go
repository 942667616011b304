package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const assetColumns = "asset_id, user_id, ref, media_type, name, n_bytes, created_at"

func assetDest(a *eventlog.AssetRow) []any {
	return []any{&a.ID, &a.UserID, &a.Ref, &a.MediaType, &a.Name, &a.Bytes, &a.CreatedAt}
}

// PutAsset implements eventlog.Assets.
func (s *Store) PutAsset(ctx context.Context, a eventlog.AssetRow, data []byte, quota int64) (row eventlog.AssetRow, created bool, err error) {
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	err = s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error {
			row, created, err = w.putAsset(a, data, quota)
			return err
		}, nil)
	})
	if err != nil {
		return eventlog.AssetRow{}, false, fmt.Errorf("put asset: %w", err)
	}
	return row, created, nil
}

func (w *writer) putAsset(a eventlog.AssetRow, data []byte, quota int64) (eventlog.AssetRow, bool, error) {
	ctx := context.Background()
	var old eventlog.AssetRow
	err := w.st.row(ctx, []byte("SELECT "+assetColumns+" FROM main.assets WHERE asset_id = ?"), []any{string(a.ID)}, assetDest(&old)...)
	switch {
	case err == nil:
		_, err = w.st.exec(ctx, []byte("UPDATE main.assets SET touched_at = ? WHERE asset_id = ?"), a.CreatedAt, string(a.ID))
		return old, false, err
	case !errors.Is(err, sql.ErrNoRows):
		return a, false, err
	}
	var held int64
	err = w.st.row(ctx, []byte("SELECT COALESCE(sum(n_bytes), 0) FROM main.assets WHERE user_id = ?"), []any{a.UserID}, &held)
	if err != nil {
		return a, false, err
	}
	if held+a.Bytes > quota {
		return a, false, eventlog.ErrQuota
	}
	_, err = w.st.exec(ctx, []byte("INSERT INTO main.assets ("+assetColumns+", touched_at, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"),
		string(a.ID), a.UserID, a.Ref, a.MediaType, a.Name, a.Bytes, a.CreatedAt, a.CreatedAt, data)
	return a, true, err
}

// Asset implements eventlog.Assets.
func (s *Store) Asset(ctx context.Context, id event.AssetID) (eventlog.AssetRow, error) {
	return one(ctx, s, "read asset", "SELECT "+assetColumns+" FROM assets WHERE asset_id = ?", []any{string(id)}, assetDest)
}

// AssetBytes implements eventlog.Assets.
func (s *Store) AssetBytes(ctx context.Context, id event.AssetID) ([]byte, error) {
	return one(ctx, s, "read asset", "SELECT bytes FROM assets WHERE asset_id = ?", []any{string(id)}, func(b *[]byte) []any { return []any{b} })
}

// ListAssets implements eventlog.Assets.
func (s *Store) ListAssets(ctx context.Context, user string, p eventlog.Page) ([]eventlog.AssetRow, string, error) {
	l := &storecore.List{Hide: hidden, Kind: "assets", From: "SELECT " + assetColumns + " FROM assets", Order: []string{"created_at", "asset_id"}}
	l.Match("user_id", user)
	return page(ctx, s, "list assets", l, p, assetDest, func(a *eventlog.AssetRow) []string { return []string{a.CreatedAt, string(a.ID)} })
}

const unusedAsset = " AND NOT EXISTS (SELECT 1 FROM main.asset_uses u WHERE u.asset_id = assets.asset_id)"

// collectBytes bounds what one transaction takes out, in bytes, save that it
// takes one asset whatever its size: what is freed is overwritten, and everybody
// who appends waits for that.
const collectBytes = 16 << 20

const collectAssets = `DELETE FROM main.assets WHERE asset_id IN (SELECT asset_id FROM (
	SELECT asset_id, n_bytes, sum(n_bytes) OVER (ORDER BY touched_at, asset_id ROWS UNBOUNDED PRECEDING) AS upto FROM (
		SELECT asset_id, n_bytes, touched_at FROM main.assets WHERE touched_at < ?1` + unusedAsset + ` ORDER BY touched_at, asset_id LIMIT ?2))
	WHERE upto <= ?3 OR upto = n_bytes)`

// CollectAssets implements eventlog.Assets.
func (s *Store) CollectAssets(ctx context.Context, before time.Time, limit int) (n int, err error) {
	err = s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error {
			res, err := w.st.exec(context.Background(), []byte(collectAssets), event.FormatTime(before), limit, collectBytes)
			if err != nil {
				return err
			}
			gone, err := res.RowsAffected()
			if n = int(gone); n > 0 {
				w.erased = true
				return errors.Join(err, w.exec(markUnswept))
			}
			return err
		}, nil)
	})
	if err != nil {
		return 0, fmt.Errorf("collect assets: %w", err)
	}
	return n, nil
}

// checkUses finds the assets that an append refers to.
func (w *writer) checkUses(ctx context.Context, ids []event.AssetID) error {
	for _, id := range ids {
		var one int
		err := w.st.row(ctx, []byte("SELECT 1 FROM main.assets WHERE asset_id = ?"), []any{string(id)}, &one)
		if errors.Is(err, sql.ErrNoRows) {
			return &eventlog.AssetError{ID: id}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseAssets deletes the assets that only this session uses. Its rows of use
// are there still.
func (w *writer) eraseAssets(ctx context.Context, id event.SessionID) error {
	_, err := w.st.exec(ctx, []byte(`DELETE FROM main.assets WHERE asset_id IN (SELECT asset_id FROM main.asset_uses WHERE session_id = ?)
		AND NOT EXISTS (SELECT 1 FROM main.asset_uses u WHERE u.asset_id = assets.asset_id AND u.session_id <> ?)`), string(id), string(id))
	return err
}

// checkAssets checks that assets are what their digests say, and that runs use
// such as are there.
func (v *verification) checkAssets(ctx context.Context) error {
	rows, err := v.st.query(ctx, []byte("SELECT asset_id, user_id, ref, n_bytes, bytes FROM main.assets"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var a eventlog.AssetRow
		var data []byte
		if err := rows.Scan(&a.ID, &a.UserID, &a.Ref, &a.Bytes, &data); err != nil {
			return err
		}
		v.Report.Blobs++
		if event.RefOf(data) != a.Ref || event.AssetIDFor(a.UserID, a.Ref) != a.ID || int64(len(data)) != a.Bytes {
			v.Report.Find("asset "+string(a.ID), "bytes do not match the digest, or the digest not the id")
		}
	}
	if err := rows.Err(); err != nil || !v.Report.LogSound {
		return err
	}
	return v.eachRef(ctx, "SELECT asset_id, min(run_id), '', '' FROM "+rebuiltPrefix+`asset_uses u
		WHERE NOT EXISTS (SELECT 1 FROM main.assets a WHERE a.asset_id = u.asset_id) GROUP BY asset_id ORDER BY asset_id`,
		func(id, run, _, _ string) { v.Report.Find("asset "+id, "%s refers to it, and it is missing", run) })
}
