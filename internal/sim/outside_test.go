package sim_test

import (
	"strings"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/sim"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

func (h *history) stream(s event.Stream) []event.Event {
	h.t.Helper()
	events, err := h.life.store.Read(h.t.Context(), s, 0, 100_000)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range events {
		if err := events[i].Decode(); err != nil {
			h.t.Fatal(err)
		}
	}
	return events
}

// check holds the log, the derived rows and the world's own counters against
// each other. It may be asked at any time; at the end everything is settled.
func (h *history) check(end bool) {
	h.t.Helper()
	var sessions, targets []event.Event
	streams := map[event.Stream]bool{}
	for _, s := range h.sessions {
		// The counters first: what they count was in the log before.
		h.w.mu.Lock()
		asked := h.w.asked[string(s.id)]
		h.w.mu.Unlock()
		events := h.stream(s.id.Stream())
		for _, text := range sim.Session(events) {
			h.w.find("%s", text)
		}
		started := 0
		for i := range events {
			switch d := events[i].Data.(type) {
			case *event.ModelCallStarted:
				started++
			case *event.OutputEmitted:
				for _, t := range d.Targets {
					streams[t.TargetID.Stream()] = true
				}
			case *event.RunCreated:
				for tag, why := range h.refused {
					if strings.Contains(d.TextPreview, tag) {
						h.w.find("I-07: the run %s is there although %s", events[i].RunID, why)
					}
				}
			}
		}
		if asked > started {
			h.w.find("I-11: the model was asked %d times, %d attempts were recorded in %s", asked, started, s.id)
		}
		sessions = append(sessions, events...)
	}
	for s := range streams {
		events := h.stream(s)
		for _, text := range sim.Target(events) {
			h.w.find("%s", text)
		}
		targets = append(targets, events...)
	}
	if end {
		for _, text := range sim.Deliveries(sessions, targets) {
			h.w.find("%s", text)
		}
		h.tools(sessions)
		h.deliveries(targets)
		h.keys(sessions)
		h.count(sessions, targets)
	}
	report, err := h.life.store.Verify(h.t.Context(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		h.w.find("I-01, I-03, I-04: verify: %v %+v", err, report.Findings)
	}
}

// tools checks effects outside against what the log says of their calls (I-13).
func (h *history) tools(events []event.Event) {
	h.w.mu.Lock()
	runs, effects := h.w.runs, h.w.effects
	h.w.mu.Unlock()
	starts := map[string]int{}
	for i := range events {
		e := &events[i]
		id := string(e.CallID)
		switch d := e.Data.(type) {
		case *event.ToolStarted, *event.ToolRetrying:
			starts[id]++
		case *event.ToolCompleted:
			if effects[id] == 0 {
				h.w.find("%s completed and had no effect", id)
			}
		case *event.ToolFailed:
			if effects[id] != 0 && !strings.Contains(d.Message.Text, "internal error") {
				h.w.find("I-13: %s failed for sure and had its effect", id)
			}
		case *event.ToolInterrupted:
			if d.Outcome == "" && effects[id] != 0 && h.level(events, e.CallID) >= 2 {
				h.w.find("I-13: %s had an effect and is not in doubt", id)
			}
		case *event.ToolRejected:
			if runs[id] != 0 {
				h.w.find("I-13: %s was rejected and ran", id)
			}
		}
	}
	for id, n := range runs {
		if n > starts[id] {
			h.w.find("I-13: %s ran %d times and was started %d times", id, n, starts[id])
		}
		if effects[id] > 1 && h.level(events, event.CallID(id)) >= 2 {
			h.w.find("I-13: %s had its effect %d times", id, effects[id])
		}
	}
}

// level is the side-effect level of a call as a number: 2 is write.
func (h *history) level(events []event.Event, id event.CallID) int {
	for i := range events {
		if d, ok := events[i].Data.(*event.ToolRequested); ok && events[i].CallID == id {
			return map[string]int{"none": 0, "read": 1}[d.Level] + 2*map[bool]int{true: 1}[d.Level != "none" && d.Level != "read"]
		}
	}
	h.w.find("the call %s is not in the log", id)
	return 0
}

// deliveries checks what the receivers saw against the outbox (I-24, I-26).
func (h *history) deliveries(events []event.Event) {
	started := map[event.DeliveryID]int{}
	for i := range events {
		if d, ok := events[i].Data.(*event.DeliveryAttemptStarted); ok {
			started[d.DeliveryID]++
		}
	}
	rows, _, err := h.life.store.Deliveries(h.t.Context(), eventlog.DeliveryFilter{}, eventlog.Page{Limit: 10_000})
	if err != nil {
		h.t.Fatal(err)
	}
	h.w.mu.Lock()
	seen := h.w.received
	h.w.mu.Unlock()
	known := 0
	for _, row := range rows {
		r := seen[row.ID]
		if r == nil {
			r = &received{}
		} else {
			known++
			body, _, err := h.life.store.Blob(h.t.Context(), row.SessionID, row.Body)
			if err != nil || string(body) != string(r.body) {
				h.w.find("I-26: the receiver of %s got other bytes than are stored (%v)", row.ID, err)
			}
		}
		if row.Status == outbox.Delivered && r.accepted == 0 {
			h.w.find("I-24: %s is delivered and the receiver never took it", row.ID)
		}
		if row.Status == outbox.Pending {
			h.w.find("I-24: %s is pending at the end", row.ID)
		}
		if r.attempts > started[row.ID] {
			h.w.find("%s was sent %d times, %d attempts were recorded", row.ID, r.attempts, started[row.ID])
		}
	}
	if known != len(seen) {
		h.w.find("receivers know %d deliveries, the outbox %d of them", len(seen), known)
	}
}

// keys checks that an acknowledged key has exactly the run it was acknowledged
// with, and another at most one (I-07).
func (h *history) keys(events []event.Event) {
	for _, k := range h.keyed {
		found := 0
		for i := range events {
			if d, ok := events[i].Data.(*event.RunCreated); ok && d.Idempotency != nil && strings.Contains(d.TextPreview, k.tag()) {
				found++
				if k.id != "" && events[i].RunID != k.id {
					h.w.find("I-07: %s was acknowledged with %s and is %s", k.key, k.id, events[i].RunID)
				}
			}
		}
		if found > 1 || found == 0 && k.id != "" {
			h.w.find("I-07: %s has %d runs", k.key, found)
		}
	}
}

func (k *keyed) tag() string {
	text := string(k.req.Content)
	from := strings.Index(text, "task-")
	return text[from : from+strings.Index(text[from:], ".")+1]
}

// count notes what the history had.
func (h *history) count(sessions, targets []event.Event) {
	for i := range sessions {
		switch sessions[i].Data.(type) {
		case *event.RunCompleted:
			h.seen["run completed"]++
		case *event.RunFailed:
			h.seen["run failed"]++
		case *event.RunCancelled:
			h.seen["run cancelled"]++
		case *event.RunInterrupted:
			h.seen["run interrupted"]++
		case *event.RepairRequested:
			h.seen["repair"]++
		case *event.ToolRetrying:
			h.seen["tool retried"]++
		}
	}
	for i := range targets {
		switch targets[i].Data.(type) {
		case *event.DeliveryDelivered:
			h.seen["delivered"]++
		case *event.DeliveryDeadLettered:
			h.seen["dead-lettered"]++
		}
	}
}

// erase forgets one session: its content is gone, the chains stay whole.
func (h *history) erase() {
	if len(h.sessions) == 0 {
		return
	}
	s := h.sessions[0]
	row, err := h.life.adm.Find(h.t.Context(), h.caller(s), string(s.id), "")
	if err == nil {
		err = h.life.adm.Erase(h.t.Context(), admission.Caller{}, row)
	}
	if err != nil {
		h.w.find("erase: %v", err)
		return
	}
	for _, e := range h.stream(s.id.Stream()) {
		if _, last := e.Data.(*event.SessionErased); !e.Erased() && !last {
			h.w.find("%s keeps its content", e.Type)
		}
	}
	report, err := h.life.store.Verify(h.t.Context(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		h.w.find("I-04: verify behind an erasure: %v %+v", err, report.Findings)
	}
}
