package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// remembered is how long nodes that ended are listed.
const remembered = time.Hour

// beatNode writes the one row of a node. All times are the database's (I-16).
const (
	beatNode = `INSERT INTO @.nodes AS old (node_id, name, version, roots, active, most, draining, since, until, released)
		SELECT $1::text, $2::text, $3::text, $4::text[], $5::int, $6::int, $7::boolean, now, now + $8::bigint * interval '1 microsecond', false
		FROM (SELECT clock_timestamp() AS now) c
		ON CONFLICT (node_id) DO UPDATE SET name = excluded.name, version = excluded.version, roots = excluded.roots, active = excluded.active,
			most = excluded.most, draining = excluded.draining, until = excluded.until, released = false
		RETURNING until - $8::bigint * interval '1 microsecond', until`
	dropNodes = `DELETE FROM @.nodes WHERE until < clock_timestamp() - $1::bigint * interval '1 microsecond'`
)

// Beat implements eventlog.Nodes. With the first beat of a node, and no other,
// nodes that ended long ago are forgotten.
func (s *Store) Beat(ctx context.Context, n eventlog.Node, ttl time.Duration) (l eventlog.Lease, err error) {
	if ttl <= 0 {
		return l, fmt.Errorf("beat: a lease of %v; on a database that processes share it must end", ttl)
	}
	roots := slices.Sorted(slices.Values(n.Roots))
	if roots == nil {
		roots = []string{}
	}
	args := []any{string(n.ID), n.Name, n.Version, roots, n.Active, n.Most, n.Draining, ttl.Microseconds()}
	err = s.writePrime(ctx, "beat", func(ctx context.Context, tx pgx.Tx) error {
		l, err = oneOf(ctx, s, tx, beatNode, slices.Clone(args), func(l *eventlog.Lease) []any { return []any{&l.Now, &l.Until} })
		return err
	})
	l.Now, l.Until = l.Now.UTC(), l.Until.UTC()
	if _, loaded := s.beaten.LoadOrStore(n.ID, true); err == nil && !loaded {
		err = s.writePrime(ctx, "beat", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, s.sql(dropNodes), remembered.Microseconds())
			return err
		})
	}
	return l, err
}

// Release implements eventlog.Nodes.
func (s *Store) Release(ctx context.Context, id eventlog.NodeID) error {
	return s.writePrime(ctx, "release node", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql("UPDATE @.nodes SET released = true, until = least(until, clock_timestamp()) WHERE node_id = $1"), toText(string(id)))
		return err
	})
}

// ListNodes implements eventlog.Nodes.
func (s *Store) ListNodes(ctx context.Context) ([]eventlog.NodeRow, error) {
	rows, err := many(ctx, s, "list nodes", `SELECT node_id, name, version, roots, active, most, draining, since, until, released,
		NOT released AND until > clock_timestamp() FROM @.nodes
		WHERE until > clock_timestamp() - $1::bigint * interval '1 microsecond' ORDER BY since, node_id`, []any{remembered.Microseconds()},
		func(r *eventlog.NodeRow) []any {
			return []any{&r.ID, &r.Name, &r.Version, &r.Roots, &r.Active, &r.Most, &r.Draining, &r.Since, &r.Until, &r.Released, &r.Alive}
		})
	for i := range rows {
		rows[i].Since, rows[i].Until = rows[i].Since.UTC(), rows[i].Until.UTC()
	}
	return rows, err
}

// takeStreams hands out streams. Who holds streams that want work is found by
// a walk over the index, of which each step is a search: they are few, whatever
// they hold. Of those that are dead, and of nobody, as many as are asked for are
// looked at.
const takeStreams = `WITH RECURSIVE holders(id) AS (
		SELECT (SELECT holder FROM @.streams WHERE kind = $2 AND ready_since IS NOT NULL ORDER BY holder LIMIT 1)
		UNION ALL
		SELECT (SELECT holder FROM @.streams WHERE kind = $2 AND ready_since IS NOT NULL AND holder > holders.id ORDER BY holder LIMIT 1)
		FROM holders WHERE holders.id IS NOT NULL),
	free AS MATERIALIZED (SELECT h.id FROM holders h WHERE h.id IS NOT NULL
		AND NOT EXISTS (SELECT 1 FROM @.nodes n WHERE n.node_id = h.id AND NOT n.released AND n.until > clock_timestamp())),
	work AS MATERIALIZED (SELECT c.stream, c.ready_since FROM free CROSS JOIN LATERAL (
			SELECT s.stream, s.ready_since FROM @.streams s
			WHERE s.kind = $2 AND s.holder = free.id AND s.ready_since IS NOT NULL AND s.roots <@ $4::text[] AND s.version <= $5
			ORDER BY s.ready_since, s.stream LIMIT $3 FOR UPDATE SKIP LOCKED) c
		ORDER BY c.ready_since, c.stream LIMIT $3)
	UPDATE @.streams s SET holder = $1 FROM work WHERE s.stream = work.stream RETURNING s.stream, s.ready_since`

// heldStreams are those that a node holds already.
const heldStreams = `SELECT stream FROM @.streams WHERE kind = $1 AND holder = $2 AND ready_since IS NOT NULL ORDER BY ready_since, stream LIMIT $3`

// Take implements eventlog.Nodes.
func (s *Store) Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error) {
	type taken struct {
		stream event.Stream
		since  time.Time
	}
	var held []event.Stream
	var got []taken
	err := s.writePrime(ctx, "take", func(ctx context.Context, tx pgx.Tx) error {
		held, got = nil, nil
		// The row is locked, so that a release comes before or after.
		roots, err := oneOf(ctx, s, tx, `SELECT roots FROM @.nodes WHERE node_id = $1 AND NOT released AND until > clock_timestamp() FOR SHARE`,
			[]any{string(id)}, func(r *[]string) []any { return []any{r} })
		if errors.Is(err, eventlog.ErrNotFound) {
			return fmt.Errorf("%w: %s has no lease", eventlog.ErrFenced, id)
		}
		if err != nil {
			return err
		}
		if mine {
			if held, err = manyOf(ctx, s, tx, heldStreams, []any{string(kind), string(id), limit}, func(x *event.Stream) []any { return []any{x} }); err != nil {
				return err
			}
		}
		if left := limit - len(held); left > 0 {
			got, err = manyOf(ctx, s, tx, takeStreams, []any{string(id), string(kind), left, roots, s.cfg.Program},
				func(x *taken) []any { return []any{&x.stream, &x.since} })
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(got, func(a, b taken) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		if a.stream < b.stream {
			return -1
		}
		return 1
	})
	for _, x := range got {
		held = append(held, x.stream)
	}
	return held, nil
}

// Rest implements eventlog.Nodes. Streams are locked in their order, as the
// writer does.
func (s *Store) Rest(ctx context.Context, id eventlog.NodeID, streams []eventlog.Rested) error {
	names, heads := make([]string, len(streams)), make([]int64, len(streams))
	for i, r := range streams {
		names[i], heads[i] = toText(string(r.Stream)), r.Head
	}
	return s.letGo(ctx, "rest", `UPDATE @.streams s SET holder = '', ready_since = NULL FROM unnest($1::text[], $2::bigint[]) AS u(stream, head)
		WHERE s.stream = u.stream AND s.head = u.head AND s.holder IN ('', $3)`, names, heads, toText(string(id)))
}

// Yield implements eventlog.Nodes.
func (s *Store) Yield(ctx context.Context, id eventlog.NodeID, streams []event.Stream) error {
	names := make([]string, len(streams))
	for i, stream := range streams {
		names[i] = toText(string(stream))
	}
	return s.letGo(ctx, "yield", `UPDATE @.streams SET holder = '' WHERE stream = ANY($1::text[]) AND holder = $2`, names, toText(string(id)))
}

func (s *Store) letGo(ctx context.Context, op, text string, names []string, more ...any) error {
	if len(names) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(names))
	return s.writePrime(ctx, op, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql("SELECT 1 FROM @.streams WHERE stream = ANY($1::text[]) ORDER BY stream FOR UPDATE"), sorted); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql(text), append([]any{names}, more...)...)
		return err
	})
}
