package storecore

import (
	"fmt"
	"time"
)

// VerifyOptions says what a verification does.
type VerifyOptions struct {
	// Rebuild replaces the derived rows by those that follow from the log, and
	// drops the snapshots, unless the log itself is damaged. Appends wait meanwhile.
	Rebuild bool
	// Progress is told now and then which stream was read last and how many
	// events were read so far.
	Progress func(stream string, events int)
}

// Finding is one thing that is not as it must be. It names places, never content.
type Finding struct {
	Where string // a row of the log, a stream, a blob, or a derived row
	Text  string
}

// maxFindings bounds the findings of a report.
const maxFindings = 100

// Report is the outcome of a verification.
type Report struct {
	Streams, Events int
	Erased          int // events without content
	Blobs           int
	Findings        []Finding // the first ones
	More            int       // findings beyond those
	LogSound        bool      // false: derived rows and snapshots were not compared
	Rebuilt         bool
}

// OK says whether nothing was found.
func (r *Report) OK() bool { return len(r.Findings) == 0 }

// Find adds a finding.
func (r *Report) Find(where, format string, args ...any) {
	if len(r.Findings) == maxFindings {
		r.More++
		return
	}
	r.Findings = append(r.Findings, Finding{where, fmt.Sprintf(format, args...)})
}

// NewerError says that a newer version of the program has had the database.
type NewerError struct {
	What         string // what is newer: tables, derived rows, or events of a type
	Found, Known int    // versions; Known 0: the program knows no such thing
	Copy         string // what an upgrade was to be made a copy of
}

func (e *NewerError) Error() string {
	known := "this program knows none"
	if e.Known > 0 {
		known = fmt.Sprintf("this program knows version %d", e.Known)
	}
	return fmt.Sprintf("the database belongs to a newer version of holdfast: its %s are of version %d, %s; run the newer program, "+
		"or put back the copy of the %s that was made before the upgrade", e.What, e.Found, known, e.Copy)
}

// Batch is one transaction of the writer, as a store tells of it.
type Batch struct {
	Appends int           // that were committed
	Refused int           // that took no part
	Events  int           // that were committed
	Took    time.Duration // from the begin of the transaction to the end of its commit
	// Longest is what the append that was handed over first has waited for, and
	// with it all others of the batch at most: its place in the queue, and Took.
	Longest time.Duration
	Failed  bool // the transaction did not commit; its appends are tried alone, or have failed
}
