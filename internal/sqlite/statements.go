package sqlite

import (
	"context"
	"database/sql"
	"sync"
)

// maxStatements bounds the statements kept prepared. Their texts come from the
// code, so that there are a few dozen of them.
const maxStatements = 512

// preparer is a pool of connections, or one connection.
type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// statements keeps statements prepared, by their text.
type statements struct {
	db preparer

	mu   sync.Mutex
	kept map[string]*sql.Stmt
}

func newStatements(db preparer) *statements {
	return &statements{db: db, kept: make(map[string]*sql.Stmt)}
}

// get gives the statement of a text. The bytes are not kept.
func (s *statements) get(ctx context.Context, text []byte) (*sql.Stmt, error) {
	s.mu.Lock()
	stmt, ok := s.kept[string(text)]
	s.mu.Unlock()
	if ok {
		return stmt, nil
	}
	stmt, err := s.db.PrepareContext(ctx, string(text))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, ok := s.kept[string(text)]; ok {
		return other, stmt.Close()
	}
	if len(s.kept) < maxStatements {
		s.kept[string(text)] = stmt
	}
	return stmt, nil
}

// lend gives the statement of a text for one use, until release. With keep it
// stays prepared; texts that come in many forms do not.
func (s *statements) lend(ctx context.Context, text string, keep bool) (stmt *sql.Stmt, release func(), err error) {
	if keep {
		stmt, err = s.get(ctx, []byte(text))
		return stmt, func() {}, err
	}
	stmt, err = s.db.PrepareContext(ctx, text)
	return stmt, func() { stmt.Close() }, err
}

func (s *statements) exec(ctx context.Context, text []byte, args ...any) (sql.Result, error) {
	stmt, err := s.get(ctx, text)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

func (s *statements) query(ctx context.Context, text []byte, args ...any) (*sql.Rows, error) {
	stmt, err := s.get(ctx, text)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// row scans the one row of a query into dest; sql.ErrNoRows when there is none.
func (s *statements) row(ctx context.Context, text []byte, args []any, dest ...any) error {
	stmt, err := s.get(ctx, text)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}

// close closes the statements.
func (s *statements) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.kept {
		stmt.Close()
	}
	clear(s.kept)
}
