package postgres

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// eraseChunk bounds the rows that are in memory while a stream is erased.
const eraseChunk = 64

// eraseContent takes the content out of all rows of the session's stream and
// deletes its blobs and its snapshot. It shares its transaction with nobody, and
// the stream is locked. The derived rows go with the changes of the same append.
func (t *transaction) eraseContent() error {
	err := t.eraseRows()
	if err == nil {
		err = t.eraseRest()
	}
	if err != nil {
		return fmt.Errorf("erase %s: %w", t.erase, err)
	}
	return nil
}

func (t *transaction) eraseRows() error {
	for after := int64(0); ; {
		rows, err := t.conn.Query(t.ctx, t.s.sql("SELECT "+logColumns+
			" FROM @.log WHERE stream = $1 AND first_seq > $2 AND data IS NOT NULL ORDER BY first_seq LIMIT $3"),
			toText(string(t.erase.Stream())), after, eraseChunk)
		if err != nil {
			return err
		}
		firsts, digests, err := erased(rows)
		if err != nil {
			return err
		}
		if len(firsts) == 0 {
			return nil
		}
		after = firsts[len(firsts)-1]
		if _, err := t.conn.Exec(t.ctx, t.s.sql(`UPDATE @.log l SET data = NULL, salt = NULL, digests = u.digests
			FROM unnest($2::bigint[], $3::bytea[]) AS u(first_seq, digests) WHERE l.stream = $1 AND l.first_seq = u.first_seq`),
			toText(string(t.erase.Stream())), firsts, digests); err != nil {
			return err
		}
	}
}

// erased gives the digests of rows in place of their content.
func erased(rows pgx.Rows) (firsts []int64, digests [][]byte, err error) {
	defer rows.Close()
	for rows.Next() {
		var r logRow
		if err := scanLog(rows, &r); err != nil {
			return nil, nil, err
		}
		if err := r.Erase(); err != nil {
			return nil, nil, err
		}
		firsts, digests = append(firsts, r.First), append(digests, r.Digests)
	}
	return firsts, digests, rows.Err()
}

// eraseRest deletes what stands beside the log. Of the assets, those that only
// this session uses go; its rows of use are there still. A use by another session
// that is being committed has the asset's lock, and shows behind it.
func (t *transaction) eraseRest() error {
	b := &pgx.Batch{}
	id := toText(string(t.erase))
	b.Queue(t.s.sql("DELETE FROM @.blobs WHERE owner = $1"), id)
	b.Queue(t.s.sql("DELETE FROM @.snapshots WHERE session_id = $1"), id)
	b.Queue(t.s.sql(`SELECT 1 FROM @.assets WHERE asset_id IN (SELECT asset_id FROM @.asset_uses WHERE session_id = $1) ORDER BY asset_id FOR UPDATE`), id)
	b.Queue(t.s.sql(`DELETE FROM @.assets a WHERE asset_id IN (SELECT asset_id FROM @.asset_uses WHERE session_id = $1)
		AND NOT EXISTS (SELECT 1 FROM @.asset_uses u WHERE u.asset_id = a.asset_id AND u.session_id <> $1)`), id)
	return t.conn.SendBatch(t.ctx, b).Close()
}
