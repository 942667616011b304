package live_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

func rung(s *live.Subscription) bool {
	select {
	case <-s.Bell:
		return true
	default:
		return false
	}
}

// grown are events that end at a sequence, one for each run.
func grown(head int64, runs ...event.RunID) []event.Event {
	var events []event.Event
	for i, run := range runs {
		events = append(events, event.Event{Seq: head - int64(len(runs)-1-i), RunID: run})
	}
	return events
}

// A bell holds one ring; it is heard by who listens to the stream, or to all.
func TestBells(t *testing.T) {
	var h live.Hub
	h.Ring("session:a", grown(1, "")) // nobody is there
	a, b, all := h.Subscribe("session:a"), h.Subscribe("session:b"), h.Subscribe("")
	if a.Head() != 0 {
		t.Error("nothing was told yet")
	}
	for i := range int64(5) {
		h.Ring("session:a", grown(i+2, "run_1", "run_2"))
	}
	h.Ring("session:a", grown(3, "")) // what comes late
	if !rung(a) || rung(a) || rung(b) || !rung(all) || rung(all) || a.Head() != 6 || b.Head() != 0 {
		t.Errorf("a ring is heard once, by whom it concerns; the heads are %d and %d", a.Head(), b.Head())
	}
	a.Close()
	a.Close()
	all.Close()
	h.Ring("session:a", grown(9, ""))
	if rung(a) || rung(all) {
		t.Error("a closed subscription hears")
	}
	b.Close()
}

// Who follows a run hears of it, and of what is about no run. Who waits for it
// to settle hears of nothing else.
func TestBellsOfARun(t *testing.T) {
	var h live.Hub
	s, quiet := h.Follow("session:a", "run_1"), h.Watch("session:a")
	defer s.Close()
	defer quiet.Close()
	end := grown(1, "run_2")
	end[0].Type = event.TypeRunCompleted
	if h.Ring("session:a", end); rung(s) || !rung(quiet) {
		t.Error("who waits for any run does not hear of one")
	}
	quiet.Narrow("run_1")
	h.Ring("session:a", grown(2, "run_2", "run_3"))
	h.Publish("session:a", api.Delta{RunID: "run_2"})
	if rung(s) || rung(quiet) || s.Head() != 2 || s.Delta() != nil {
		t.Error("other runs are heard")
	}
	h.Ring("session:a", grown(4, "run_2", "run_1"))
	if !rung(s) || rung(quiet) || s.Head() != 4 {
		t.Error("its own run is not heard, or by who waits for its end")
	}
	for _, typ := range []event.Type{event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted, event.TypeNeedsAttention} {
		other, own := grown(4, "run_1", "run_2"), grown(4, "run_1")
		other[1].Type, own[0].Type = typ, typ
		h.Ring("session:a", other[1:])
		if rung(s) || rung(quiet) {
			t.Errorf("%s of another run is heard", typ)
		}
		if h.Ring("session:a", own); !rung(s) || !rung(quiet) {
			t.Errorf("%s is not heard", typ)
		}
	}
	h.Ring("session:a", grown(5, ""))
	if !rung(s) || !rung(quiet) || s.Head() != 5 {
		t.Error("what is about the session is not heard")
	}
	h.Publish("session:a", api.Delta{RunID: "run_1", Text: "x"})
	if !rung(s) || rung(quiet) || quiet.Delta() != nil {
		t.Error("deltas are heard by who wants them")
	}
	if d := s.Delta(); d == nil || d.Text != "x" || s.Delta() != nil {
		t.Errorf("%+v", d)
	}
}

// Deltas go to who listens to their stream; who does not read loses the oldest
// and holds up nobody (I-17).
func TestDeltas(t *testing.T) {
	var h live.Hub
	if h.Listening("session:a") {
		t.Error("nobody listens")
	}
	h.Publish("session:a", api.Delta{Text: "lost"})
	a, slow, all := h.Subscribe("session:a"), h.Subscribe("session:a"), h.Subscribe("")
	defer all.Close()
	for i := range live.DeltaBuffer + 10 {
		h.Publish("session:a", api.Delta{Part: i})
		if d := a.Delta(); d == nil || d.Part != i || a.Delta() != nil {
			t.Fatalf("delta %d is %+v", i, d)
		}
	}
	late := h.Subscribe("session:a")
	if late.Delta() != nil || all.Delta() != nil {
		t.Error("deltas from before are heard")
	}
	late.Close()
	for i := range live.DeltaBuffer {
		if d := slow.Delta(); d == nil || d.Part != i+10 {
			t.Fatalf("delta %d of the slow one is %+v", i, d)
		}
	}
	if slow.Delta() != nil {
		t.Error("there are more than fit")
	}
	if !h.Listening("session:a") || h.Listening("session:b") {
		t.Error("who listens is not known")
	}
	a.Close()
	slow.Close()
	if h.Listening("session:a") {
		t.Error("who left still listens")
	}
}

// A delta reads on the wire as it is, whatever its bytes are.
func TestWire(t *testing.T) {
	d := &live.Delta{Delta: api.Delta{Type: "text.delta", RunID: "run_1", Text: "<é>\n\xff"}}
	var got api.Delta
	if err := json.Unmarshal(d.Wire(), &got); err != nil || got.Text != "<é>\n\ufffd" || got.RunID != "run_1" {
		t.Errorf("%s %v", d.Wire(), err)
	}
}

// However many listen, each hears, and who has the bells rung does not wait for
// all of them.
func TestMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h live.Hub
		const n = 1000
		subs := make([]*live.Subscription, n)
		for i := range subs {
			run := event.RunID("")
			if i%2 == 1 {
				run = "run_1"
			}
			subs[i] = h.Follow("session:a", run)
		}
		h.Ring("session:a", grown(1, "run_1"))
		if subs[n-1].Head() != 1 { // though its bell may still be to ring
			t.Error("the head is not known at once")
		}
		for i := range int64(100) {
			h.Ring("session:a", grown(2*i+2, "run_1"))
			h.Publish("session:a", api.Delta{RunID: "run_1", Text: fmt.Sprint(i)})
		}
		h.Wait()
		for i, s := range subs {
			if !rung(s) || s.Head() != 200 || s.Delta().Text != "0" {
				t.Fatalf("%d stands at %d", i, s.Head())
			}
		}
		h.Ring("session:a", grown(201, "run_2"))
		h.Wait()
		for i, s := range subs {
			if rung(s) != (i%2 == 0) {
				t.Fatalf("%d hears what is not about its run, or not what is", i)
			}
		}
		for _, s := range slices.Backward(subs) {
			s.Close()
		}
		if h.Listening("session:a") {
			t.Error("somebody is left")
		}
	})
}

// The hub may be used by all at once.
func TestAtOnce(t *testing.T) {
	var h live.Hub
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range int64(200) {
				var subs []*live.Subscription
				for range 20 {
					subs = append(subs, h.Follow("session:a", "run_1"))
				}
				h.Ring("session:a", grown(i, "run_1"))
				h.Publish("session:a", api.Delta{RunID: "run_1"})
				h.Listening("session:a")
				for _, s := range subs {
					s.Delta()
					s.Close()
				}
			}
		})
	}
	wg.Wait()
	h.Wait()
	if h.Listening("session:a") {
		t.Error("somebody is left")
	}
}

// What one hears of by its head alone rings everybody once, and what is known rings nobody.
func TestTell(t *testing.T) {
	var h live.Hub
	h.Tell("session:a", 1) // nobody is there
	a, quiet, other, all := h.Follow("session:a", "run_1"), h.Watch("session:a"), h.Subscribe("session:b"), h.Subscribe("")
	for _, s := range []*live.Subscription{a, quiet, other, all} {
		defer s.Close()
	}
	quiet.Narrow("run_1")
	h.Tell("session:a", 4)
	if !rung(a) || !rung(quiet) || rung(other) || !rung(all) || a.Head() != 4 {
		t.Errorf("the head is %d, or a bell was not rung", a.Head())
	}
	h.Ring("session:a", grown(6, "run_1"))
	rung(a)
	for _, known := range []int64{6, 5, 0, -1} {
		if h.Tell("session:a", known); rung(a) || rung(quiet) || a.Head() != 6 {
			t.Errorf("%d was known", known)
		}
	}
}

// I-11, I-17: what comes twice and what a former owner sends is not heard,
// whether the claim was seen by its event or by the new owner's deltas.
func TestLateAndDouble(t *testing.T) {
	var h live.Hub
	s := h.Subscribe("session:a")
	defer s.Close()
	send := func(epoch, number int64, step string, attempt int) {
		h.Deliver("session:a", api.Delta{StepID: step, Attempt: attempt, Epoch: epoch, Number: number, Text: fmt.Sprintf("%d %d %s %d", epoch, number, step, attempt)})
	}
	want := func(list ...string) {
		t.Helper()
		var got []string
		for d := s.Delta(); d != nil; d = s.Delta() {
			got = append(got, d.Text)
		}
		if !slices.Equal(got, list) {
			t.Fatalf("got %q, want %q", got, list)
		}
	}
	for _, n := range []int64{1, 2, 2, 1, 4, 3} { // 3 was told of as missing when 4 came
		send(1, n, "s", 1)
	}
	want("1 1 s 1", "1 2 s 1", "1 4 s 1")
	send(1, 1, "s", 2) // numbers begin anew
	send(1, 1, "t", 2)
	want("1 1 s 2", "1 1 t 2")
	claimed := grown(9, "")
	claimed[0].Epoch = 2
	h.Ring("session:a", claimed)
	send(1, 2, "t", 2)
	h.Publish("session:a", api.Delta{StepID: "t", Attempt: 2, Epoch: 1, Number: 3}) // nor by who wakes up here
	want()
	send(2, 1, "t", 3)
	send(3, 1, "t", 4) // its claim is still on its way
	send(2, 2, "t", 3)
	want("2 1 t 3", "3 1 t 4")
	h.Deliver("session:a", api.Delta{Text: "bare"}) // whose owner says nothing of epochs
	want("bare")
}

// Who is too slow is told so, once; and everybody where the way was lossy.
func TestLost(t *testing.T) {
	var h live.Hub
	s, ready, all, deaf := h.Subscribe("session:a"), h.Subscribe("session:a"), h.Subscribe(""), h.Watch("session:a")
	for i := range live.DeltaBuffer {
		h.Publish("session:a", api.Delta{Part: i})
	}
	if s.Lost() != live.None {
		t.Error("nothing is lost yet")
	}
	for ready.Delta() != nil {
	}
	h.Publish("session:a", api.Delta{Part: -1})
	if s.Lost() != live.Slow || s.Lost() != live.None || ready.Lost() != live.None {
		t.Error("one delta too many")
	}
	if d := s.Delta(); d.Part != 1 || s.Lost() != live.None {
		t.Errorf("%+v", d)
	}
	rung(s)
	h.Lost("session:b")
	if s.Lost() != live.None || rung(s) {
		t.Error("another stream lost something")
	}
	h.Lost("session:b", "session:a")
	late := h.Subscribe("session:a")
	for _, x := range []*live.Subscription{s, ready} {
		if !rung(x) || x.Lost() != live.Bus || x.Lost() != live.None {
			t.Error("what was lost is told once")
		}
	}
	if late.Lost() != live.None || all.Lost() != live.None || deaf.Lost() != live.None || rung(deaf) {
		t.Error("told to who could not have heard it")
	}
	if h.Lost(); late.Lost() != live.Bus {
		t.Error("lost everywhere")
	}
	before := h.Shifts()
	if h.Shift(); !rung(late) || h.Shifts() != before+1 {
		t.Error("nobody learns that the way has changed")
	}
}

// way is a Far that writes down what it is asked.
type way struct {
	wants bool
	log   []string
}

func (w *way) Wants(event.Stream) bool { return w.wants }
func (w *way) Send(s event.Stream, d *live.Delta) {
	w.log = append(w.log, fmt.Sprint("send ", s, " ", d.Part))
}

func (w *way) Listen(s event.Stream, on bool) {
	w.log = append(w.log, fmt.Sprint("listen ", s, " ", on))
}

// The way to other nodes learns when the first one here hears deltas of a
// stream, and when the last one leaves; it gets what is published here, never
// what came from there.
func TestFar(t *testing.T) {
	var h live.Hub
	w := &way{}
	h.Connect(w)
	if h.Listening("session:a") {
		t.Error("nobody listens")
	}
	if w.wants = true; !h.Listening("session:a") {
		t.Error("somebody listens elsewhere")
	}
	quiet, all := h.Watch("session:a"), h.Subscribe("")
	a := h.Follow("session:a", "run_1")
	b := h.Follow("session:a", "run_2")
	h.Publish("session:a", api.Delta{Part: 1})
	h.Deliver("session:a", api.Delta{Part: 2})
	h.Publish("session:b", api.Delta{Part: 3})
	a.Close()
	a.Close()
	b.Close()
	c := h.Subscribe("session:a")
	c.Close()
	quiet.Close()
	all.Close()
	want := []string{"listen session:a true", "send session:a 1", "send session:b 3", "listen session:a false", "listen session:a true", "listen session:a false"}
	if !slices.Equal(w.log, want) {
		t.Errorf("%q, want %q", w.log, want)
	}
}

// Without the lease no delta is shown, and what was published before it ended
// never is; who waits for it is told. // I-11
func TestDeltasUnderALease(t *testing.T) {
	var h live.Hub
	held := true
	h.Under(func() bool { return held })
	sub := h.Follow("session:a", "")
	defer sub.Close()
	part := func() int {
		if d := sub.Delta(); d != nil {
			return d.Part
		}
		return 0
	}
	for n := range 3 {
		h.Publish("session:a", api.Delta{Part: n + 1})
	}
	if got := part(); got != 1 {
		t.Fatalf("part %d", got)
	}
	held = false
	if got := part(); got != 0 || !sub.Quiet() {
		t.Errorf("part %d without the lease", got)
	}
	held = true // the beat was late
	if got := part(); got != 2 || sub.Lost() != live.None {
		t.Errorf("part %d after a beat that was late", got)
	}
	<-sub.Bell
	h.Drop()
	if got := part(); got != 0 || sub.Lost() == live.None || sub.Lost() != live.None {
		t.Errorf("part %d of a lease that has ended", got)
	}
	select {
	case <-sub.Bell:
	default:
		t.Error("nobody says so")
	}
	h.Publish("session:a", api.Delta{Part: 9})
	if got := part(); got != 9 {
		t.Errorf("part %d under the next lease", got)
	}
}
