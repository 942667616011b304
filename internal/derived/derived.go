// Package derived is the language of derived rows: which tables follow from
// the log, and the changes that one append makes to them.
//
// What changes is computed once, from the events of an append alone, by a pure
// function of the core; a store only executes it. So the stores cannot drift,
// and the rows rebuilt from the log are the rows in place (I-03).
package derived

import "fmt"

// Table names a derived table.
type Table string

// The derived tables.
const (
	Sessions    Table = "sessions"    // one row a session; of an erased one a tombstone
	Aliases     Table = "aliases"     // (user, alias) → session
	Runs        Table = "runs"        // one row a run
	Queue       Table = "queue"       // runs that are not at their end
	Outbox      Table = "outbox"      // deliveries
	Attempts    Table = "attempts"    // of deliveries, those that are not told by their rows: failed ones, and what a forced replay supersedes
	Targets     Table = "targets"     // how each receiver fares
	Idempotency Table = "idempotency" // keys of submissions
	Inbound     Table = "inbound"     // events that connectors took
	ToolStarts  Table = "tool_starts" // calls that began, so that none begins twice
	AssetUses   Table = "asset_uses"  // files that runs were given
	Replays     Table = "replays"     // of deliveries that the ledger has
	Jobs        Table = "jobs"        // work over many deliveries
)

// Spec describes a derived table for stores and for verification.
type Spec struct {
	Table Table
	Key   []string
	// Columns besides the key. A column whose name begins with "n_" or ends
	// with "_seq" or "_version" holds an integer; all others hold text. No
	// column is ever null: zero and the empty string stand for "nothing".
	Columns []string
	// Guarded: an insert of a key that exists fails its append alone, as a
	// conflict. In the other tables it is a programmer's mistake.
	Guarded bool
}

// Specs lists the derived tables. The list is everybody's, and not to be changed.
func Specs() []Spec { return specs }

var specs = []Spec{
	{Table: Sessions, Key: []string{"session_id"}, Columns: []string{
		"user_id", "alias", "thread_id", "status", "title", "created_at", "updated_at", "settings_version",
		"instructions", "metadata", "tools", "on_doubt", "n_max_turns", "n_history_limit",
		"input_contract", "output_contract", "route_policy", "reply_targets"}},
	{Table: Aliases, Key: []string{"user_id", "alias"}, Columns: []string{"session_id"}, Guarded: true},
	{Table: Runs, Key: []string{"session_id", "run_id"}, Columns: []string{
		"user_id", "status", "kind", "submitted_at", "updated_at", "started_at", "finished_at",
		"created_seq", "output_seq", "source", "actor", "text_preview", "route", "provider", "model",
		"error_code", "error_message", "totals", "waiting_on"}},
	{Table: Queue, Key: []string{"session_id", "run_id"}, Columns: []string{"created_seq", "status", "submitted_at", "user_id"}},
	{Table: Outbox, Key: []string{"target_id", "delivery_id"}, Columns: []string{
		"lane_seq", "session_id", "run_id", "user_id", "type", "status", "body", "address",
		"created_at", "updated_at", "next_at", "n_attempts", "n_cycle", "n_open", "n_open_epoch", "last_code", "n_last_status",
		"cycle_at", "last_class", "last_at", "n_last_ms", "n_delivered",
		"n_replays", "resolved_at", "resolved_by", "resolved_reason"}},
	{Table: Attempts, Key: []string{"target_id", "delivery_id", "n_attempt"}, Columns: []string{
		"ended_at", "code", "class", "n_status", "n_duration_ms", "excerpt", "retry_at"}},
	{Table: Targets, Key: []string{"target_id"}, Columns: []string{
		"user_id", "type", "created_at", "updated_at", "circuit", "n_failures", "n_opens", "open_until", "held_until",
		"last_code", "last_class", "failed_at", "n_paused", "paused_at", "paused_by", "paused_code", "pause_reason", "resumed_at", "reset_at"}},
	{Table: Idempotency, Key: []string{"session_id", "operation", "key_hash"},
		Columns: []string{"fingerprint", "contract", "run_id"}, Guarded: true},
	{Table: Inbound, Key: []string{"user_id", "connector", "event_hash"},
		Columns: []string{"fingerprint", "session_id", "run_id"}, Guarded: true},
	{Table: AssetUses, Key: []string{"session_id", "run_id", "asset_id"}, Columns: []string{"user_id"}},
	{Table: Replays, Key: []string{"target_id", "delivery_id", "replay_seq"}, Columns: []string{"at", "actor", "reason", "n_forced", "job_id"}},
	{Table: Jobs, Key: []string{"job_id"}, Columns: []string{
		"user_id", "kind", "status", "actor", "reason", "created_at", "updated_at", "started_at", "finished_at", "expires_at",
		"n_total", "n_done", "n_skipped", "n_limit", "n_force", "n_truncated", "filter", "digest", "token_hash"}},
	{Table: ToolStarts, Key: []string{"session_id", "call_id"}, Columns: []string{"run_id"}, Guarded: true},
}

// SpecOf gives the description of a table.
func SpecOf(t Table) Spec {
	for _, s := range specs {
		if s.Table == t {
			return s
		}
	}
	panic("derived: no such table: " + string(t))
}

// Col is a column and its value: an int64 or a string.
type Col struct {
	Name  string
	Value any
}

// Op says what a change does.
type Op string

// The operations.
const (
	Insert Op = "insert" // Key and Cols make the row; columns not named are zero
	Set    Op = "set"    // Cols of the row of that key
	Add    Op = "add"    // adds to integer columns of the row of that key
	Delete Op = "delete" // all rows that match Key, which may name any columns
)

// Change is one change of one table.
type Change struct {
	Table Table
	Op    Op
	Key   []Col
	Cols  []Col
}

// String is for test output and logs: it shows names and keys.
func (c Change) String() string { return fmt.Sprintf("%s %s %v %v", c.Op, c.Table, c.Key, c.Cols) }

// Merge joins the changes of one append: a set of a row that the append also
// inserts or sets becomes part of that one change. Order is kept otherwise.
func Merge(changes []Change) []Change {
	out := changes[:0:0]
	for _, c := range changes {
		if c.Op == Set {
			if i := lastOf(out, c); i >= 0 {
				out[i].Cols = override(out[i].Cols, c.Cols)
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

// lastOf finds the insert or set of the same row that c may join; a delete of
// the same table in between forbids it.
func lastOf(changes []Change, c Change) int {
	for i := len(changes) - 1; i >= 0; i-- {
		d := changes[i]
		if d.Table != c.Table {
			continue
		}
		if d.Op == Delete || d.Op == Add {
			return -1
		}
		if sameKey(d.Key, c.Key) {
			return i
		}
	}
	return -1
}

func sameKey(a, b []Col) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func override(cols, by []Col) []Col {
	cols = append([]Col(nil), cols...)
next:
	for _, c := range by {
		for i := range cols {
			if cols[i].Name == c.Name {
				cols[i].Value = c.Value
				continue next
			}
		}
		cols = append(cols, c)
	}
	return cols
}
