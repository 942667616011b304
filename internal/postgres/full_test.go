package postgres

import (
	"errors"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A server without room, and one that calls its data corrupt, say so by their
// codes, in the middle of a transaction: the append is refused whole, and is taken
// when it is sent again. // C70 I-02
func TestServerWithoutRoom(t *testing.T) {
	s := open(t, Config{})
	ctx := within(t)
	id := newSession(t)
	mustAppend(t, s, created(id, "a"))
	for code, want := range map[string]error{"53100": eventlog.ErrFull, "XX001": eventlog.ErrDamaged, "XX002": eventlog.ErrDamaged} {
		for _, text := range []string{
			"CREATE FUNCTION @.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION USING ERRCODE = ''" + code + "'', MESSAGE = ''no''; END'",
			"CREATE TRIGGER refuse BEFORE INSERT ON @.log FOR EACH STATEMENT EXECUTE FUNCTION @.refuse()",
		} {
			if _, err := s.pool.Exec(ctx, s.sql(text)); err != nil {
				t.Fatal(err)
			}
		}
		before, err := s.Head(ctx, id.Stream())
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Append(ctx, said(id, "x"))
		var full *eventlog.FullError
		if !errors.Is(err, want) || eventlog.Refusal(err) != "" || errors.As(err, &full) && !full.Database {
			t.Errorf("%s: %v", code, err)
		}
		if h, err := s.Head(ctx, id.Stream()); err != nil || h != before {
			t.Errorf("%s: %+v, %v", code, h, err)
		}
		if _, err := s.pool.Exec(ctx, s.sql("DROP FUNCTION @.refuse() CASCADE")); err != nil {
			t.Fatal(err)
		}
		if stamps := mustAppend(t, s, said(id, "x")); stamps[0].Head != before.Seq+1 {
			t.Errorf("%s: %+v", code, stamps)
		}
	}
	mustVerify(t, s)
}
