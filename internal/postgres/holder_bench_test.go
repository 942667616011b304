package postgres

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// BenchmarkHolder is the check of an owner's append against its stream's row,
// and what the append does to it. The row itself comes with the lock of the stream.
func BenchmarkHolder(b *testing.B) {
	stream := newSession(b).Stream()
	t := &transaction{s: &Store{cfg: Config{Program: 1}}}
	st := &streamState{Head: eventlog.Head{Seq: 1, Epoch: 1}, holder: "a", ready: true, version: 1}
	e := &eventlog.Entry{Stream: stream, Expect: 1, Epoch: 1, Node: "a"}
	row := &event.Row{First: 1, Count: 1, Epoch: 1}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t.check(st, e); err != nil {
			b.Fatal(err)
		}
		st.moves(e, row, false, 1)
	}
}
