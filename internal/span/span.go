// Package span folds the events of one run into the spans of one trace. It is
// pure: the same events give the same spans with the same ids, in whatever
// process life and however often, so that a run is one trace over restarts.
//
// Names follow the semantic conventions for generative AI of OpenTelemetry.
// Spans hold ids, names, numbers and words of closed sets; never an input, an
// answer, an argument, a result or the text of an error (I-33).
package span

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// TraceID names a trace, ID a span in it.
type (
	TraceID [16]byte
	ID      [8]byte
)

// Kind says on which side of a call a span stands.
type Kind int

// The kinds.
const (
	Internal Kind = iota
	Client        // a call that leaves the daemon
)

// Attr is an attribute: its value is a string, an int64, a float64, a bool or a []string.
type Attr struct {
	Key   string
	Value any
}

// Mark is something that happened within a span.
type Mark struct {
	Name  string
	Time  time.Time
	Attrs []Attr
}

// Span is one span. Error is a word of a closed set, or empty.
type Span struct {
	ID, Parent ID // no parent: zero
	Name       string
	Kind       Kind
	Start, End time.Time
	Attrs      []Attr
	Marks      []Mark
	Error      string
}

// Trace is the spans of one run, the run's own first.
type Trace struct {
	ID      TraceID
	Spans   []Span
	Dropped int // spans that had no place
}

// MaxSpans bounds the spans of one trace, MaxMarks the marks of one span.
const (
	MaxSpans = 4096
	MaxMarks = 64
)

// TraceOf derives the id of a run's trace.
func TraceOf(run event.RunID) TraceID {
	sum := sha256.Sum256([]byte("holdfast trace\x00" + string(run)))
	return TraceID(sum[:16])
}

// idOf derives the id of a span from what it is about.
func idOf(kind, about string) ID {
	sum := sha256.Sum256([]byte("holdfast span\x00" + kind + "\x00" + about))
	return ID(sum[:8])
}

// Sampled says whether a trace is among the given share of all. It looks at the
// id alone, so that every process decides alike.
func (t TraceID) Sampled(share float64) bool {
	return share >= 1 || float64(binary.BigEndian.Uint64(t[8:])>>11) < share*math.Exp2(53)
}
