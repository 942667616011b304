package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// Verify reads the whole log and checks that sequences are gap-free (I-01),
// that epochs never fall (I-15), that hashes and digests lead to each other
// (I-04) and to the heads of the streams, that the feed has all of it, that blobs
// are what their names say, that events refer to all of them and only to such as
// are there, and that the derived rows (I-03) and the snapshots are those that
// follow from the log. It sees one moment of the database; appends of all nodes go on
// beside it, save with Rebuild.
func (s *Store) Verify(ctx context.Context, opt VerifyOptions) (report Report, err error) {
	if !s.queue.Unless(func() { s.working.Add(1) }) {
		return Report{}, s.readErr("verify", eventlog.ErrClosed)
	}
	defer s.working.Done()
	if opt.Rebuild {
		err = s.alone(ctx, func(tx pgx.Tx) error {
			report, err = s.rebuild(ctx, tx, opt)
			return err
		})
		if err != nil {
			return Report{}, s.readErr("rebuild derived rows", err)
		}
		return report, nil
	}
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		defer tx.Rollback(context.WithoutCancel(ctx)) // takes the temporary tables with it
		if err = unhurried(ctx, tx); err == nil {
			v := newVerification(s, tx, opt)
			err = v.run(ctx)
			report = v.Report
		}
	}
	if err != nil {
		return Report{}, s.readErr("verify", err)
	}
	return report, nil
}

// rebuild verifies in a transaction and replaces the derived rows when the log
// is sound. Nobody appends meanwhile.
func (s *Store) rebuild(ctx context.Context, tx pgx.Tx, opt VerifyOptions) (Report, error) {
	if _, err := tx.Exec(ctx, s.sql("LOCK TABLE @.streams IN EXCLUSIVE MODE")); err != nil {
		return Report{}, err
	}
	v := newVerification(s, tx, opt)
	if err := v.run(ctx); err != nil {
		return Report{}, err
	}
	if v.Report.LogSound {
		if err := v.replace(ctx); err != nil {
			return Report{}, err
		}
		v.Report.Rebuilt = true
	}
	return v.Report, nil
}

// checkGeneration brings the derived rows up to the generation of the code. A
// node of an older program that is still at work is refused from then on.
func (s *Store) checkGeneration(ctx context.Context) error {
	return s.alone(ctx, func(tx pgx.Tx) error {
		found, err := oneOf(ctx, s, tx, "SELECT value FROM @.facts WHERE name = '"+generationFact+"'", nil, func(n *int64) []any { return []any{n} })
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return err
		}
		known := int64(s.cfg.Generation)
		switch { // newerFacts refused what is newer
		case found == known:
			return nil
		case found > 0:
			report, err := s.rebuild(ctx, tx, VerifyOptions{})
			if err != nil {
				return fmt.Errorf("rebuild derived rows: %w", err)
			}
			if !report.Rebuilt {
				f := report.Findings[0]
				return fmt.Errorf("the log is damaged, derived rows cannot be rebuilt: %s: %s", f.Where, f.Text)
			}
		}
		_, err = tx.Exec(ctx, s.sql(noteFacts), []string{generationFact}, []int32{int32(known)})
		return err
	})
}

// verification is one pass over the log. Derived rows are computed into
// temporary tables on the way.
type verification struct {
	*storecore.Walk
	s   *Store
	tx  pgx.Tx
	opt VerifyOptions
	// follows is what follows from the rows that are in hand.
	follows []*storecore.Follows
}

const rebuiltPrefix = "pg_temp.rebuilt_"

func newVerification(s *Store, tx pgx.Tx, opt VerifyOptions) *verification {
	return &verification{Walk: storecore.NewWalk(s.cfg.Rows), s: s, tx: tx, opt: opt}
}

func (v *verification) run(ctx context.Context) error {
	steps := []func(context.Context) error{v.create, v.walk, v.checkHeads, v.checkFeed}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	v.Report.LogSound = v.Report.OK()
	for _, step := range []func(context.Context) error{v.checkBlobs, v.checkRefs, v.checkAssets} {
		if err := step(ctx); err != nil {
			return err
		}
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
const verifyChunk = 256

// walk reads the log by blocks: those of one stream are in its order.
func (v *verification) walk(ctx context.Context) error {
	block, place := int64(-1), int64(0)
	for {
		select {
		case <-v.s.queue.Closing():
			return eventlog.ErrClosed
		default:
		}
		rows, err := v.tx.Query(ctx, v.s.sql("SELECT block, place, "+logColumns+" FROM @.log WHERE (block, place) > ($1, $2) ORDER BY block, place LIMIT $3"),
			block, place, verifyChunk)
		if err != nil {
			return err
		}
		var chunk []logRow
		for rows.Next() {
			var r logRow
			if err := scanLog(rows, &r, &r.block, &r.place); err != nil {
				rows.Close()
				return err
			}
			chunk = append(chunk, r)
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return err
		}
		if len(chunk) == 0 {
			return nil
		}
		for i := range chunk {
			if f := v.Row(&chunk[i].Row, chunk[i].bad); f != nil {
				v.follows = append(v.follows, f)
			}
		}
		if err := v.put(ctx); err != nil {
			return err
		}
		last := &chunk[len(chunk)-1]
		block, place = last.block, last.place
		if v.opt.Progress != nil {
			v.opt.Progress(string(last.Stream), v.Report.Events)
		}
	}
}

// put puts the changes that were gathered into the temporary tables: all
// together, or where that does not work one after the other.
func (v *verification) put(ctx context.Context) error {
	defer func() { v.follows = nil }()
	if err := v.putRefs(ctx); err != nil {
		return err
	}
	set := newChangeSet()
	for _, f := range v.follows {
		for _, c := range f.Changes {
			if _, err := storecore.CheckChange(c); err != nil {
				v.Report.Find(f.Where, "derived row cannot be built: %v", err)
				continue
			}
			set.add(c)
		}
	}
	err := v.inPart(ctx, set)
	if err == nil || broken(err) {
		return err
	}
	for _, f := range v.follows {
		for _, c := range f.Changes {
			if _, err := storecore.CheckChange(c); err != nil {
				continue
			}
			one := newChangeSet()
			one.add(c)
			err := v.inPart(ctx, one)
			if err != nil && broken(err) {
				return err
			}
			if err != nil {
				v.Report.Find(f.Where, "derived row cannot be built: %s %s: code %s", c.Op, c.Table, codeOf(err))
			}
		}
	}
	return nil
}

// inPart makes changes that may fail without the rest of the transaction.
func (v *verification) inPart(ctx context.Context, set *changeSet) error {
	part, err := v.tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer part.Rollback(context.WithoutCancel(ctx))
	b := &pgx.Batch{}
	set.queue(b, v.s.sql, rebuiltPrefix)
	if b.Len() > 0 {
		if err := part.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
	}
	return part.Commit(ctx)
}

// checkHeads compares the ends of the streams with those that were read.
func (v *verification) checkHeads(ctx context.Context) error {
	type row struct {
		stream event.Stream
		eventlog.Head
		hash []byte
	}
	rows, err := manyOf(ctx, v.s, v.tx, "SELECT stream, head, epoch, hash FROM @.streams ORDER BY stream", nil,
		func(r *row) []any { return []any{&r.stream, &r.Seq, &r.Epoch, &r.hash} })
	if err != nil {
		return err
	}
	for i := range rows {
		copy(rows[i].Hash[:], rows[i].hash)
		v.Ends(rows[i].stream, rows[i].Head)
	}
	v.Listed(len(rows))
	return nil
}

// checkFeed finds rows of the log that the feed does not have, and positions
// that have none.
func (v *verification) checkFeed(ctx context.Context) error {
	if !v.Report.OK() {
		return nil // what is missing in the log is missing in the feed
	}
	type row struct{ pos, rows, first, found int64 }
	bad, err := manyOf(ctx, v.s, v.tx, `SELECT pos, rows, before, found FROM (
			SELECT f.pos, f.rows, coalesce(lag(f.pos) OVER (ORDER BY f.pos), 0) AS before,
				(SELECT count(*) FROM @.log l WHERE l.block = f.block AND l.place BETWEEN 0 AND f.rows - 1) AS found FROM @.feed f) x
		WHERE before <> pos - rows OR found <> rows ORDER BY pos LIMIT 10`, nil, func(r *row) []any { return []any{&r.pos, &r.rows, &r.first, &r.found} })
	if err != nil {
		return err
	}
	for _, r := range bad {
		v.Report.Find(fmt.Sprintf("feed at %d", r.pos), "%d rows from %d on, of which the log has %d", r.rows, r.first+1, r.found)
	}
	left, err := oneOf(ctx, v.s, v.tx, "SELECT count(*) FROM @.log l WHERE NOT EXISTS (SELECT 1 FROM @.feed f WHERE f.block = l.block)", nil,
		func(n *int64) []any { return []any{n} })
	if err == nil && left > 0 {
		v.Report.Find("feed", "%d rows of the log have no place in it", left)
	}
	return err
}

func (v *verification) checkBlobs(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, v.s.sql("SELECT owner, ref, bytes FROM @.blobs"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var owner, ref string
		var data []byte
		if err := scanRow(rows, []any{&owner, &ref, &data}); err != nil {
			return err
		}
		v.Report.Blobs++
		if event.RefOf(data) != ref {
			v.Report.Find("blob "+owner+" "+ref, "bytes do not match the digest")
		}
	}
	return rows.Err()
}
