package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// AddToken implements eventlog.Tokens. An id or hash that exists is an error.
func (s *Store) AddToken(ctx context.Context, t eventlog.TokenRow) error {
	return s.write(ctx, "add token", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql("INSERT INTO @.tokens (id, name, role, user_id, hash, created_at) VALUES (?, ?, ?, ?, ?, ?)"),
			toTexts([]any{t.ID, t.Name, t.Role, t.UserID, t.Hash, event.FormatTime(t.CreatedAt)})...)
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

// tokenText is a token as it is stored.
type tokenText struct {
	eventlog.TokenRow
	createdAt string
}

func tokenDest(t *tokenText) []any {
	return []any{&t.ID, &t.Name, &t.Role, &t.UserID, &t.Hash, &t.createdAt}
}

func (t tokenText) row() (eventlog.TokenRow, error) {
	var err error
	t.CreatedAt, err = event.ParseTime(t.createdAt)
	return t.TokenRow, err
}

const tokenQuery = "SELECT id, name, role, user_id, hash, created_at FROM @.tokens"

// TokenByHash implements eventlog.Tokens.
func (s *Store) TokenByHash(ctx context.Context, hash string) (eventlog.TokenRow, error) {
	t, err := one(ctx, s, "read token", tokenQuery+" WHERE hash = ?", []any{hash}, tokenDest)
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
