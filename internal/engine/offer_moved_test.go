package engine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A session that another node has worked on since, and that rests, is claimed by the
// append of the submission, behind one that is refused: a node that has it in turn with
// others does not fall back. // I-11 I-15
func TestOfferWhereAnotherWorkedSince(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_1")
		b.between = func() { h.submit(b.s, "elsewhere"); h.drive(h.other("gen_0"), b.s.ID) }
		id, created, err := b.submit("go", "")
		if err != nil || !created || !slices.Equal(b.taken, []bool{true}) || b.err != nil {
			t.Fatalf("created %v, %v; taken %v, the drive %v", created, err, b.taken, b.err)
		}
		// One that is refused, the one that claims, and the end of the run.
		if len(b.appends) != 3 || slices.Contains(b.appends[0], event.TypeOwnerClaimed) || b.appends[1][0] != event.TypeOwnerClaimed || !slices.Contains(b.appends[1], event.TypeRunStarted) {
			t.Errorf("appends %v", b.appends)
		}
		h.status(id, "completed")
		b.goesOn()
	})
}

// An erased session gets nothing more: no claim behind an offer of which nobody knows
// whether it came. Where the state is behind, the session has moved on, and the offer came or
// cannot come any more; where it is known to be erased, nothing is offered.
func TestOfferToAnErasedSession(t *testing.T) {
	for name, fault := range map[string]struct {
		try           int // of the offer
		before, after error
	}{
		"the first does not come":             {1, errors.New("no answer came"), nil},
		"the second, were there one, is lost": {2, nil, errors.New("no answer came")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *house, p *play) {
				b := newBench(h, "gen_1")
				b.between = func() {
					if err := h.adm.Erase(t.Context(), admission.Caller{}, b.s); err != nil {
						t.Fatal(err)
					}
				}
				tries := 0
				b.fault = func(eventlog.Append) (before, after error) {
					if tries++; tries == fault.try {
						return fault.before, fault.after
					}
					return nil, nil
				}
				if _, created, err := b.submit("go", ""); err == nil || created {
					t.Errorf("created %v, %v", created, err)
				}
				<-b.done
				if b.err != nil || len(b.appends) != 1 {
					t.Errorf("the drive %v, appends %v", b.err, b.appends)
				}
				if types := h.types(b.s.ID); types[len(types)-1] != string(event.TypeSessionErased) {
					t.Errorf("behind the end of the session: %v", types[len(types)-3:])
				}
				if b.st.AtRest() {
					t.Error("an erased session passes for one at rest")
				}
				h.verify()
			})
		})
	}
}
