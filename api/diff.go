package api

import "time"

// Kinds of changes of a file.
const (
	FileAdded    = "added"
	FileModified = "modified"
	FileDeleted  = "deleted"
	FileMode     = "mode" // its permissions alone
)

// FilesDiff says what differs between two snapshots of a session's workspace,
// whoever changed it.
type FilesDiff struct {
	SessionID string       `json:"session_id"`
	From      FileSnapshot `json:"from"`
	To        FileSnapshot `json:"to"`
	// Files are in the order of folders and names, 1,000 at most.
	Files []FileDiff `json:"files"`
	More  int        `json:"more,omitempty"` // files that differ and are not listed
}

// FileSnapshot is the content of a workspace before or after a step.
type FileSnapshot struct {
	Tree   string    `json:"tree"`              // sha256:…; equal files, equal trees
	Node   string    `json:"node"`              // in whose private store it stands
	Time   time.Time `json:"time"`              // when it was recorded
	Seq    int64     `json:"seq"`               // of the event that records it
	StepID string    `json:"step_id,omitempty"` // the step
	RunID  string    `json:"run_id,omitempty"`
	After  bool      `json:"after,omitempty"` // it is the workspace after the step, else before
}

// FileDiff is one file or link that differs. Lines are counted where both sides
// are text; the content of a link is where it leads.
type FileDiff struct {
	Path    string `json:"path"`             // bytes that are no UTF-8 are replaced, and a long path is cut
	Change  string `json:"change"`           // added, modified, deleted or mode: its permissions alone
	Before  int64  `json:"before,omitempty"` // its size before, in bytes
	Bytes   int64  `json:"bytes,omitempty"`  // its size, in bytes
	Added   int    `json:"added,omitempty"`  // lines
	Deleted int    `json:"deleted,omitempty"`
	// Diff is the unified difference: its hunks, without the lines that name the
	// file. It is absent with stat, and where there is nothing to show.
	Diff string `json:"diff,omitempty"`
	// Cut: the difference is larger than what is shown of it, if anything is.
	Cut     bool `json:"cut,omitempty"`
	Binary  bool `json:"binary,omitempty"`   // no text, and not shown
	NotHeld bool `json:"not_held,omitempty"` // too large to be held, or could not be read: that it changed is all that is known
}
