package sqlite

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const (
	secretColumns = "owner, name, version, key_id, sealed, hosts, created_at, until, created_by"
	secretQuery   = "SELECT " + secretColumns + " FROM secrets"
	newestSecrets = `SELECT owner, name, version, key_id, hosts, created_at, former, created_by FROM (
		SELECT s.*, COALESCE((SELECT max(o.until) FROM secrets o WHERE o.owner = s.owner AND o.name = s.name AND o.version < s.version), '') AS former
		FROM secrets s WHERE s.version = (SELECT max(n.version) FROM secrets n WHERE n.owner = s.owner AND n.name = s.name)) AS newest`
)

func secretDest(r *eventlog.SecretRow) []any {
	return []any{&r.Owner, &r.Name, &r.Version, &r.KeyID, &r.Sealed, &r.Hosts, &r.CreatedAt, &r.Until, &r.CreatedBy}
}

func newestDest(r *eventlog.SecretRow) []any {
	return []any{&r.Owner, &r.Name, &r.Version, &r.KeyID, &r.Hosts, &r.CreatedAt, &r.Until, &r.CreatedBy}
}

// changeSecrets has the writer change secrets in a transaction of its own.
func (s *Store) changeSecrets(ctx context.Context, op string, f func(ctx context.Context, w *writer) error) error {
	err := s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error { return f(context.Background(), w) }, nil)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// count runs a statement and says how many rows it changed.
func (w *writer) count(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := w.st.exec(ctx, []byte(text), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// PutSecret implements eventlog.Secrets.
func (s *Store) PutSecret(ctx context.Context, r eventlog.SecretRow, formerUntil string, quota int) error {
	return s.changeSecrets(ctx, "put secret", func(ctx context.Context, w *writer) error {
		var newest, names int64
		if err := w.st.row(ctx, []byte("SELECT COALESCE(max(version), 0) FROM main.secrets WHERE owner = ? AND name = ?"), []any{r.Owner, r.Name}, &newest); err != nil {
			return err
		}
		if r.Version != newest+1 {
			return eventlog.ErrSecretMoved
		}
		if newest == 0 {
			if err := w.st.row(ctx, []byte("SELECT count(DISTINCT name) FROM main.secrets WHERE owner = ?"), []any{r.Owner}, &names); err != nil {
				return err
			}
			if names >= int64(quota) {
				return eventlog.ErrQuota
			}
		}
		var err error
		if formerUntil == "" {
			_, err = w.st.exec(ctx, []byte("DELETE FROM main.secrets WHERE owner = ? AND name = ?"), r.Owner, r.Name)
		} else {
			_, err = w.st.exec(ctx, []byte("UPDATE main.secrets SET until = ?1 WHERE owner = ?2 AND name = ?3 AND (until = '' OR until > ?1)"), formerUntil, r.Owner, r.Name)
		}
		if err != nil {
			return err
		}
		_, err = w.st.exec(ctx, []byte("INSERT INTO main.secrets ("+secretColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, '', ?)"),
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
	return s.changeSecrets(ctx, "delete secret", func(ctx context.Context, w *writer) error {
		n, err := w.count(ctx, "DELETE FROM main.secrets WHERE owner = ? AND name = ?", owner, name)
		if err == nil && n == 0 {
			err = eventlog.ErrNotFound
		}
		return err
	})
}

// SecretKeys implements eventlog.Secrets.
func (s *Store) SecretKeys(ctx context.Context) ([]eventlog.SecretKey, error) {
	return many(ctx, s, "count secrets", "SELECT key_id, count(*) FROM secrets GROUP BY key_id ORDER BY key_id", nil,
		func(k *eventlog.SecretKey) []any { return []any{&k.ID, &k.Versions} })
}

// SecretsUnder implements eventlog.Secrets.
func (s *Store) SecretsUnder(ctx context.Context, notKey string, limit int) ([]eventlog.SecretRow, error) {
	return many(ctx, s, "read secrets", secretQuery+" WHERE key_id <> ? ORDER BY owner, name, version LIMIT ?", []any{notKey, limit}, secretDest)
}

// ResealSecret implements eventlog.Secrets.
func (s *Store) ResealSecret(ctx context.Context, r eventlog.SecretRow, was []byte) (done bool, err error) {
	err = s.changeSecrets(ctx, "reseal secret", func(ctx context.Context, w *writer) error {
		n, err := w.count(ctx, "UPDATE main.secrets SET key_id = ?, sealed = ? WHERE owner = ? AND name = ? AND version = ? AND sealed = ?",
			r.KeyID, r.Sealed, r.Owner, r.Name, r.Version, was)
		done = n == 1
		return err
	})
	return done, err
}

// DropSecrets implements eventlog.Secrets.
func (s *Store) DropSecrets(ctx context.Context, now string, limit int) (dropped int, err error) {
	err = s.changeSecrets(ctx, "drop secrets", func(ctx context.Context, w *writer) error {
		n, err := w.count(ctx, "DELETE FROM main.secrets WHERE rowid IN (SELECT rowid FROM main.secrets WHERE until <> '' AND until <= ? LIMIT ?)", now, limit)
		dropped = int(n)
		return err
	})
	return dropped, err
}
