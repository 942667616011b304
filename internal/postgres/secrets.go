package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const (
	secretColumns = "owner, name, version, key_id, sealed, hosts, created_at, until, created_by"
	secretQuery   = "SELECT " + secretColumns + " FROM @.secrets"
	newestSecrets = `SELECT owner, name, version, key_id, hosts, created_at, former, created_by FROM (
		SELECT s.*, coalesce((SELECT max(o.until) FROM @.secrets o WHERE o.owner = s.owner AND o.name = s.name AND o.version < s.version), '') AS former
		FROM @.secrets s WHERE s.version = (SELECT max(n.version) FROM @.secrets n WHERE n.owner = s.owner AND n.name = s.name)) AS newest`
)

func secretDest(r *eventlog.SecretRow) []any {
	return []any{&r.Owner, &r.Name, &r.Version, &r.KeyID, &r.Sealed, &r.Hosts, &r.CreatedAt, &r.Until, &r.CreatedBy}
}

func newestDest(r *eventlog.SecretRow) []any {
	return []any{&r.Owner, &r.Name, &r.Version, &r.KeyID, &r.Hosts, &r.CreatedAt, &r.Until, &r.CreatedBy}
}

// counted runs a statement and says how many rows it changed.
func (s *Store) counted(ctx context.Context, tx pgx.Tx, text string, args ...any) (int64, error) {
	tag, err := tx.Exec(ctx, s.sql(text), toTexts(args)...)
	return tag.RowsAffected(), err
}

// PutSecret implements eventlog.Secrets. The secrets of one owner are put one
// after the other, so that two together do not pass the quota.
func (s *Store) PutSecret(ctx context.Context, r eventlog.SecretRow, formerUntil string, quota int) error {
	return s.write(ctx, "put secret", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::int, hashtext('secrets of ' || $2))", s.feedLock, toText(r.Owner)); err != nil {
			return err
		}
		number := func(text string, args ...any) (int64, error) {
			return oneOf(ctx, s, tx, text, args, func(n *int64) []any { return []any{n} })
		}
		newest, err := number("SELECT coalesce(max(version), 0)::bigint FROM @.secrets WHERE owner = ? AND name = ?", r.Owner, r.Name)
		if err != nil {
			return err
		}
		if r.Version != newest+1 {
			return eventlog.ErrSecretMoved
		}
		if newest == 0 {
			names, err := number("SELECT count(DISTINCT name) FROM @.secrets WHERE owner = ?", r.Owner)
			if err != nil {
				return err
			}
			if names >= int64(quota) {
				return eventlog.ErrQuota
			}
		}
		if formerUntil == "" {
			_, err = s.counted(ctx, tx, "DELETE FROM @.secrets WHERE owner = ? AND name = ?", r.Owner, r.Name)
		} else {
			_, err = s.counted(ctx, tx, "UPDATE @.secrets SET until = ? WHERE owner = ? AND name = ? AND (until = '' OR until > ?)", formerUntil, r.Owner, r.Name, formerUntil)
		}
		if err != nil {
			return err
		}
		_, err = s.counted(ctx, tx, "INSERT INTO @.secrets ("+secretColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, '', ?)",
			r.Owner, r.Name, r.Version, r.KeyID, r.Sealed, r.Hosts, r.CreatedAt, r.CreatedBy)
		return err
	})
}

// Secret implements eventlog.Secrets.
func (s *Store) Secret(ctx context.Context, owner, name string) ([]eventlog.SecretRow, error) {
	list, err := many(ctx, s, "read secret", secretQuery+" WHERE owner = ? AND name = ? ORDER BY version DESC", []any{owner, name}, secretDest)
	if err == nil && len(list) == 0 {
		err = s.readErr("read secret", eventlog.ErrNotFound)
	}
	return list, err
}

// ListSecrets implements eventlog.Secrets.
func (s *Store) ListSecrets(ctx context.Context, owner string, p eventlog.Page) ([]eventlog.SecretRow, string, error) {
	l := &storecore.List{Hide: hidden, Kind: "secrets", Asc: true, From: newestSecrets, Order: []string{"owner", "name"}}
	l.Match("owner", owner)
	return page(ctx, s, "list secrets", l, p, newestDest, func(r *eventlog.SecretRow) []string { return []string{r.Owner, r.Name} })
}

// DeleteSecret implements eventlog.Secrets.
func (s *Store) DeleteSecret(ctx context.Context, owner, name string) error {
	return s.write(ctx, "delete secret", func(ctx context.Context, tx pgx.Tx) error {
		n, err := s.counted(ctx, tx, "DELETE FROM @.secrets WHERE owner = ? AND name = ?", owner, name)
		if err == nil && n == 0 {
			err = eventlog.ErrNotFound
		}
		return err
	})
}

// SecretKeys implements eventlog.Secrets.
func (s *Store) SecretKeys(ctx context.Context) ([]eventlog.SecretKey, error) {
	return many(ctx, s, "count secrets", "SELECT key_id, count(*) FROM @.secrets GROUP BY key_id ORDER BY key_id", nil,
		func(k *eventlog.SecretKey) []any { return []any{&k.ID, &k.Versions} })
}

// SecretsUnder implements eventlog.Secrets.
func (s *Store) SecretsUnder(ctx context.Context, notKey string, limit int) ([]eventlog.SecretRow, error) {
	return many(ctx, s, "read secrets", secretQuery+" WHERE key_id <> ? ORDER BY owner, name, version LIMIT ?", []any{notKey, limit}, secretDest)
}

// ResealSecret implements eventlog.Secrets.
func (s *Store) ResealSecret(ctx context.Context, r eventlog.SecretRow, was []byte) (done bool, err error) {
	err = s.write(ctx, "reseal secret", func(ctx context.Context, tx pgx.Tx) error {
		n, err := s.counted(ctx, tx, "UPDATE @.secrets SET key_id = ?, sealed = ? WHERE owner = ? AND name = ? AND version = ? AND sealed = ?",
			r.KeyID, r.Sealed, r.Owner, r.Name, r.Version, was)
		done = n == 1
		return err
	})
	return done, err
}

// DropSecrets implements eventlog.Secrets.
func (s *Store) DropSecrets(ctx context.Context, now string, limit int) (dropped int, err error) {
	err = s.write(ctx, "drop secrets", func(ctx context.Context, tx pgx.Tx) error {
		n, err := s.counted(ctx, tx, "DELETE FROM @.secrets WHERE ctid IN (SELECT ctid FROM @.secrets WHERE until <> '' AND until <= ? LIMIT ?)", now, limit)
		dropped = int(n)
		return err
	})
	return dropped, err
}
