package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// NewerError says that a newer version of the program has had the database.
type NewerError = storecore.NewerError

func newer(what string, found, known int) error {
	return &NewerError{What: what, Found: found, Known: known, Copy: "data directory"}
}

// eventFact begins the names of facts that say which version of a type of
// event the database may hold: the newest that a program knew which opened it.
const eventFact = "event:"

// newerFacts gives a *NewerError when a program that opened the database made
// other derived rows, or knew events, that this one does not know. The database
// has its first tables.
func newerFacts(ctx context.Context, conn *sql.Conn, generation int) error {
	rows, err := conn.QueryContext(ctx, "SELECT name, value FROM facts ORDER BY name")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var found int
		if err := rows.Scan(&name, &found); err != nil {
			return err
		}
		if name == "generation" && found > generation {
			return newer("derived rows", found, generation)
		}
		if t, ok := strings.CutPrefix(name, eventFact); ok {
			_, known, _ := event.New(event.Type(t))
			if found > known {
				return newer("events of type "+t, found, known)
			}
		}
	}
	return rows.Err()
}

// recordEvents notes the versions of all types of events that this program
// may write, before it writes the first.
func (w *writer) recordEvents(ctx context.Context) error {
	noted := map[string]int{}
	rows, err := w.st.query(ctx, []byte("SELECT name, value FROM main.facts"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var value int
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		noted[name] = value
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var fresh []any
	for _, t := range event.Types() {
		if _, version, _ := event.New(t); noted[eventFact+string(t)] < version {
			fresh = append(fresh, eventFact+string(t), version)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return w.inTx(func() error {
		for ; len(fresh) > 0; fresh = fresh[2:] {
			if _, err := w.st.exec(ctx, []byte("INSERT INTO main.facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"),
				fresh[:2]...); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}
