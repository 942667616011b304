package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// AddToken implements eventlog.Tokens. An id or hash that exists is an error.
func (s *Store) AddToken(ctx context.Context, t eventlog.TokenRow) error {
	return s.write(ctx, "add token", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql("INSERT INTO @.tokens (id, name, role, user_id, hash, created_at, expires_at, last_used) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"),
			toTexts([]any{t.ID, t.Name, t.Role, t.UserID, t.Hash, event.FormatTime(t.CreatedAt), storecore.OptionalTime(t.ExpiresAt), storecore.OptionalTime(t.LastUsed)})...)
		return err
	})
}

// DeleteToken implements eventlog.Tokens.
func (s *Store) DeleteToken(ctx context.Context, id string) error {
	return s.write(ctx, "delete token", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.sql("DELETE FROM @.tokens WHERE id = ?"), toText(id))
		if err == nil && tag.RowsAffected() == 0 {
			err = eventlog.ErrNotFound
		}
		return err
	})
}

// TouchTokens implements eventlog.Tokens. The order is that of ids, so that two
// nodes do not wait for each other's rows.
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.write(ctx, "touch tokens", func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		for _, id := range slices.Sorted(maps.Keys(used)) {
			at := event.FormatTime(used[id])
			b.Queue(s.sql("UPDATE @.tokens SET last_used = ? WHERE id = ? AND last_used < ?"), toTexts([]any{at, id, at})...)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// tokenText is a token as it is stored.
type tokenText struct {
	eventlog.TokenRow
	createdAt, expiresAt, lastUsed string
}

func tokenDest(t *tokenText) []any {
	return []any{&t.ID, &t.Name, &t.Role, &t.UserID, &t.Hash, &t.createdAt, &t.expiresAt, &t.lastUsed}
}

func (t tokenText) row() (eventlog.TokenRow, error) {
	var err, expires, used error
	t.CreatedAt, err = event.ParseTime(t.createdAt)
	t.ExpiresAt, expires = storecore.ParseOptional(t.expiresAt)
	t.LastUsed, used = storecore.ParseOptional(t.lastUsed)
	return t.TokenRow, errors.Join(err, expires, used)
}

const tokenQuery = "SELECT id, name, role, user_id, hash, created_at, expires_at, last_used FROM @.tokens"

// TokenByID implements eventlog.Tokens.
func (s *Store) TokenByID(ctx context.Context, id string) (eventlog.TokenRow, error) {
	return s.token(ctx, " WHERE id = ?", id)
}

// TokenByHash implements eventlog.Tokens.
func (s *Store) TokenByHash(ctx context.Context, hash string) (eventlog.TokenRow, error) {
	return s.token(ctx, " WHERE hash = ?", hash)
}

func (s *Store) token(ctx context.Context, where, value string) (eventlog.TokenRow, error) {
	t, err := one(ctx, s, "read token", tokenQuery+where, []any{value}, tokenDest)
	if err != nil {
		return eventlog.TokenRow{}, err
	}
	return t.row()
}

// ListTokens implements eventlog.Tokens. The order is that of their making.
func (s *Store) ListTokens(ctx context.Context) ([]eventlog.TokenRow, error) {
	texts, err := many(ctx, s, "list tokens", tokenQuery+" ORDER BY created_at, id", nil, tokenDest)
	if err != nil {
		return nil, err
	}
	list := make([]eventlog.TokenRow, len(texts))
	for i, t := range texts {
		if list[i], err = t.row(); err != nil {
			return nil, fmt.Errorf("list tokens: %w", err)
		}
	}
	return list, nil
}
