package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// byWriter has the writer do work between two transactions.
func (s *Store) byWriter(ctx context.Context, work func(*writer) error) error {
	return s.wait(ctx, &request{ctx: ctx, work: work, done: make(chan struct{})})
}

// AddToken implements eventlog.Tokens. An id or hash that exists is an error.
func (s *Store) AddToken(ctx context.Context, t eventlog.TokenRow) error {
	err := s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error {
			_, err := w.st.exec(context.Background(),
				[]byte("INSERT INTO main.tokens (id, name, role, user_id, hash, created_at, expires_at, last_used) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"),
				t.ID, t.Name, t.Role, t.UserID, t.Hash, event.FormatTime(t.CreatedAt), storecore.OptionalTime(t.ExpiresAt), storecore.OptionalTime(t.LastUsed))
			return err
		}, nil)
	})
	if err != nil {
		return fmt.Errorf("add token: %w", err)
	}
	return nil
}

// DeleteToken implements eventlog.Tokens.
func (s *Store) DeleteToken(ctx context.Context, id string) error {
	err := s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error {
			res, err := w.st.exec(context.Background(), []byte("DELETE FROM main.tokens WHERE id = ?"), id)
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n == 1 {
				return err
			}
			return eventlog.ErrNotFound
		}, nil)
	})
	if err != nil {
		return fmt.Errorf("delete token: %w", err)
	}
	return nil
}

// TouchTokens implements eventlog.Tokens.
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	err := s.byWriter(ctx, func(w *writer) error {
		return w.inTx(func() error {
			for _, id := range slices.Sorted(maps.Keys(used)) {
				at := event.FormatTime(used[id])
				if _, err := w.st.exec(context.Background(), []byte("UPDATE main.tokens SET last_used = ? WHERE id = ? AND last_used < ?"), at, id, at); err != nil {
					return err
				}
			}
			return nil
		}, nil)
	})
	if err != nil {
		return fmt.Errorf("touch tokens: %w", err)
	}
	return nil
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

const tokenQuery = "SELECT id, name, role, user_id, hash, created_at, expires_at, last_used FROM tokens"

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
