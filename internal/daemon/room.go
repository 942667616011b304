package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/headroom"
	"github.com/holdfast-dev/holdfast/internal/metrics"
)

// newRoom makes what says whether there is room for more. A database on a server
// has its own disk, of which only its refusals tell.
func (d *Daemon) newRoom(opt Options) {
	dir := d.cfg.Path(d.cfg.DataDir)
	cfg := headroom.Config{Logger: d.log, Free: opt.Free}
	if d.backend != nil && !d.cfg.DatabaseURL.Set() {
		cfg.Reserve = d.cfg.Store.ReserveBytes()
		if cfg.Free == nil {
			cfg.Free = func() (uint64, bool) { return diskfs.Free(dir) }
		}
		marker := filepath.Join(dir, headroom.RestoredFile)
		cfg.Restored = func() bool { _, err := os.Lstat(marker); return err == nil }
	} else if cfg.Free != nil {
		cfg.Reserve = d.cfg.Store.ReserveBytes()
	}
	if s, ok := d.backend.(interface{ Damaged() error }); ok {
		cfg.Damaged = s.Damaged
	}
	d.room = headroom.New(cfg)
}

// roomStats are the figures of the room.
func (d *Daemon) roomStats() metrics.Room {
	s := d.room.State()
	return metrics.Room{Free: s.Free, Known: s.Known, Reserve: s.Reserve, Low: s.Low || s.Full, Held: s.Held(), Damaged: s.Damaged != nil, Refused: s.Refused}
}

// roomyStore takes what would bring more work only while there is room for it.
type roomyStore struct {
	Store
	room *headroom.Room
}

// Append implements eventlog.Log.
func (s *roomyStore) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	if err := s.room.Take(&a); err != nil {
		return nil, err
	}
	stamps, err := s.Store.Append(ctx, a)
	s.room.Note(err)
	return stamps, err
}

// PutAsset implements eventlog.Assets.
func (s *roomyStore) PutAsset(ctx context.Context, a eventlog.AssetRow, data []byte, quota int64) (eventlog.AssetRow, bool, error) {
	if err := s.room.Grow(); err != nil {
		return a, false, err
	}
	row, created, err := s.Store.PutAsset(ctx, a, data, quota)
	s.room.Note(err)
	return row, created, err
}

// AddToken implements eventlog.Tokens.
func (s *roomyStore) AddToken(ctx context.Context, t eventlog.TokenRow) error {
	if err := s.room.Grow(); err != nil {
		return err
	}
	return s.Store.AddToken(ctx, t)
}

// PutSecret implements eventlog.Secrets. One that leaked is replaced whatever room
// there is; a new one waits.
func (s *roomyStore) PutSecret(ctx context.Context, r eventlog.SecretRow, formerUntil string, quota int) error {
	if r.Version == 1 {
		if err := s.room.Grow(); err != nil {
			return err
		}
	}
	return s.Store.PutSecret(ctx, r, formerUntil, quota)
}

// SaveSnapshot implements eventlog.Snapshots. A snapshot saves time and is not
// missed: where there is no room none is made.
func (s *roomyStore) SaveSnapshot(ctx context.Context, snap eventlog.Snapshot) error {
	if st := s.room.State(); st.Low {
		return nil
	}
	return s.Store.SaveSnapshot(ctx, snap)
}
