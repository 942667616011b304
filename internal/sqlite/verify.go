package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// What a verification takes and gives is the same for every store.
type (
	VerifyOptions = storecore.VerifyOptions
	Report        = storecore.Report
	Finding       = storecore.Finding
)

// Verify reads the whole log and checks that sequences are gap-free (I-01),
// that epochs never fall (I-15), that hashes and digests lead to each other
// (I-04) and to the heads of the streams, that blobs are what their names say,
// that events refer to all of them and only to such as are there, and that the derived rows (I-03) and the snapshots are those
// that follow from the log. It sees one moment of the database; appends go on beside it, save with Rebuild.
func (s *Store) Verify(ctx context.Context, opt VerifyOptions) (Report, error) {
	if opt.Rebuild {
		var report Report
		err := s.byWriter(ctx, func(w *writer) (err error) {
			report, err = w.rebuild(ctx, opt)
			return err
		})
		if err != nil { // perhaps of a wait that was given up: the report may still be in the making
			return Report{}, fmt.Errorf("rebuild derived rows: %w", err)
		}
		return report, nil
	}
	report, err := s.verifySnapshot(ctx, opt)
	if err != nil {
		return Report{}, s.readErr("verify", err)
	}
	return report, nil
}

// verifySnapshot verifies in a read transaction.
func (s *Store) verifySnapshot(ctx context.Context, opt VerifyOptions) (report Report, err error) {
	if !s.queue.Unless(func() { s.reading.Add(1) }) {
		return report, eventlog.ErrClosed
	}
	defer s.reading.Done()

	conn, err := s.readers.db.(*sql.DB).Conn(ctx)
	if err != nil {
		return report, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return report, err
	}
	defer func() { // takes the temporary tables with it
		_, e := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		err = errors.Join(err, e)
	}()
	v := newVerification(s, conn, opt)
	defer v.st.close()
	err = v.run(ctx)
	return v.Report, err
}

// rebuild verifies in a transaction of the writer and replaces the derived
// rows when the log is sound.
func (w *writer) rebuild(ctx context.Context, opt VerifyOptions) (report Report, err error) {
	v := newVerification(w.s, w.conn, opt)
	defer v.st.close()
	err = w.inTx(func() error {
		if err := v.run(ctx); err != nil {
			return err
		}
		if v.Report.LogSound {
			if err := v.replace(ctx); err != nil {
				return err
			}
			v.Report.Rebuilt = true
		}
		return v.drop(ctx)
	}, nil)
	return v.Report, err
}

// checkGeneration brings the derived rows up to the generation of the code.
func (w *writer) checkGeneration(ctx context.Context) error {
	const query = "SELECT value FROM main.facts WHERE name = 'generation'"
	var found int
	err := w.st.row(ctx, []byte(query), nil, &found)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	known := w.s.cfg.Generation
	switch { // newerFacts refused what is newer
	case found == known:
		return nil
	case found > 0:
		report, err := w.rebuild(ctx, VerifyOptions{})
		if err != nil {
			return fmt.Errorf("rebuild derived rows: %w", err)
		}
		if !report.Rebuilt {
			f := report.Findings[0]
			return fmt.Errorf("the log is damaged, derived rows cannot be rebuilt: %s: %s", f.Where, f.Text)
		}
	}
	_, err = w.st.exec(ctx, []byte("INSERT INTO main.facts (name, value) VALUES ('generation', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"), known)
	return err
}

// verification is one pass over the log in the order of commits. Derived rows
// are computed into temporary tables on the way.
type verification struct {
	*storecore.Walk
	s       *Store
	st      *statements
	rebuilt *tables
	opt     VerifyOptions
}

const rebuiltPrefix = "temp.rebuilt_"

func newVerification(s *Store, conn *sql.Conn, opt VerifyOptions) *verification {
	st := newStatements(conn)
	return &verification{Walk: storecore.NewWalk(s.cfg.Rows), s: s, st: st, rebuilt: newTables(st, rebuiltPrefix), opt: opt}
}

func (v *verification) run(ctx context.Context) error {
	if err := v.create(ctx); err != nil {
		return err
	}
	if err := v.walk(ctx); err != nil {
		return err
	}
	if err := v.checkHeads(ctx); err != nil {
		return err
	}
	v.Report.LogSound = v.Report.OK()
	if err := v.checkBlobs(ctx); err != nil {
		return err
	}
	if err := v.checkRefs(ctx); err != nil {
		return err
	}
	if err := v.checkAssets(ctx); err != nil {
		return err
	}
	if !v.Report.LogSound {
		return nil
	}
	if err := v.checkSnapshots(ctx); err != nil {
		return err
	}
	for _, spec := range derived.Specs() {
		if err := v.compare(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

// verifyChunk bounds the rows that are in memory at a time.
const verifyChunk = 64

func (v *verification) walk(ctx context.Context) error {
	for after := int64(0); ; {
		select {
		case <-v.s.queue.Closing():
			return eventlog.ErrClosed
		default:
		}
		rows, err := v.st.query(ctx, []byte("SELECT "+logColumns+" FROM main.log WHERE id > ? ORDER BY id LIMIT ?"), after, verifyChunk)
		if err != nil {
			return err
		}
		chunk, err := collect(rows, scanLogRow)
		if err != nil {
			return err
		}
		for i := range chunk {
			if f := v.Row(&chunk[i].Row, chunk[i].bad); f != nil {
				if err := v.follow(ctx, f); err != nil {
					return err
				}
			}
		}
		if len(chunk) == 0 {
			return nil
		}
		last := &chunk[len(chunk)-1]
		after = last.id
		if v.opt.Progress != nil {
			v.opt.Progress(string(last.Stream), v.Report.Events)
		}
	}
}

// follow notes what follows from a row: references, and derived rows.
func (v *verification) follow(ctx context.Context, f *storecore.Follows) error {
	for _, r := range f.Refs {
		if err := v.refer(ctx, r); err != nil {
			return err
		}
	}
	for _, c := range f.Changes {
		err := v.rebuilt.apply(ctx, c)
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil {
			v.Find(f.Where, "derived row cannot be built: %v", err)
		}
	}
	return nil
}

// checkHeads compares the ends of the streams with those that were read.
func (v *verification) checkHeads(ctx context.Context) error {
	rows, err := v.st.query(ctx, []byte("SELECT stream, head, epoch, hash FROM main.streams ORDER BY stream"))
	if err != nil {
		return err
	}
	defer rows.Close()
	stored := 0
	for rows.Next() {
		var stream event.Stream
		var h eventlog.Head
		var hash []byte
		if err := rows.Scan(&stream, &h.Seq, &h.Epoch, &hash); err != nil {
			return err
		}
		copy(h.Hash[:], hash)
		stored++
		v.Ends(stream, h)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	v.Listed(stored)
	return nil
}

func (v *verification) checkBlobs(ctx context.Context) error {
	rows, err := v.st.query(ctx, []byte("SELECT owner, ref, bytes FROM main.blobs"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var owner, ref string
		var data []byte
		if err := rows.Scan(&owner, &ref, &data); err != nil {
			return err
		}
		v.Report.Blobs++
		if event.RefOf(data) != ref {
			v.Report.Find("blob "+owner+" "+ref, "bytes do not match the digest")
		}
	}
	return rows.Err()
}
