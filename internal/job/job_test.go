package job_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/job"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// log is a job's stream in the making.
type log struct {
	t      interface{ Fatalf(string, ...any) }
	st     *job.State
	events []event.Event
}

func (l *log) add(at time.Time, datas ...event.Data) {
	for _, d := range datas {
		e := event.Event{Stream: "job:job_1", Seq: int64(len(l.events) + 1), Epoch: 1, Time: at, UserID: "ann", Data: d}
		l.events = append(l.events, e)
		if err := l.st.Apply(&e); err != nil {
			l.t.Fatalf("%v", err)
		}
	}
}

func planned(t interface{ Fatalf(string, ...any) }, perTarget ...int) *log {
	l := &log{t: t, st: &job.State{ID: "job_1"}}
	var items []event.JobItem
	for target, n := range perTarget {
		for i := range n {
			items = append(items, event.JobItem{DeliveryID: event.DeliveryID(fmt.Sprintf("dlv_%d_%d", target, i)), TargetID: event.TargetID(fmt.Sprint("tgt_", target)), LaneSeq: int64(i)})
		}
	}
	l.add(noon, &event.JobPlanned{Count: len(items), Digest: job.Digest(items), Kind: job.Replay})
	for chunk := range slices.Chunk(items, 3) {
		l.add(noon, &event.JobItemsAdded{Items: chunk})
	}
	return l
}

// Every delivery of a job is come to once, those of a target in order and never
// faster than the pace, whatever is skipped and however often the job changes hands.
func TestWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 70).Draw(t, "deliveries of each target")
		pace := rapid.IntRange(1, 20).Draw(t, "pace")
		l := planned(t, sizes...)
		if a := l.st.Next(noon, pace); len(a.Items) > 0 || a.End != "" || !a.Wait.IsZero() {
			t.Fatalf("a plan asks for %+v", a)
		}
		l.add(noon, &event.JobStarted{})
		now, seen, last, order := noon, map[event.DeliveryID]bool{}, map[event.TargetID]time.Time{}, map[event.TargetID]int64{}
		for step := 0; ; step++ {
			if step > 5000 {
				t.Fatalf("no end: %d left", l.st.Left())
			}
			if rapid.IntRange(0, 9).Draw(t, "hands") == 0 { // another owner folds the log
				st := &job.State{ID: "job_1"}
				for i := range l.events {
					if err := st.Apply(&l.events[i]); err != nil {
						t.Fatalf("%v", err)
					}
				}
				l.st = st
			}
			a := l.st.Next(now, pace)
			switch {
			case a.End != "":
				if a.End != job.Completed || l.st.Left() != 0 {
					t.Fatalf("%+v with %d left", a, l.st.Left())
				}
				l.add(now, l.st.End(a.End))
				continue
			case len(a.Items) > 0:
				var done []event.DeliveryID
				var skipped []event.JobSkipped
				targets := map[event.TargetID]bool{}
				for _, it := range a.Items {
					if seen[it.DeliveryID] || targets[it.TargetID] || len(a.Items) > job.MaxStep {
						t.Fatalf("%v twice, or too much at once", it)
					}
					if it.LaneSeq != order[it.TargetID] {
						t.Fatalf("%v out of order", it)
					}
					seen[it.DeliveryID], targets[it.TargetID] = true, true
					order[it.TargetID]++
					if rapid.IntRange(0, 4).Draw(t, "skip") == 0 {
						skipped = append(skipped, event.JobSkipped{DeliveryID: it.DeliveryID, Code: job.SkipGone})
						continue
					}
					if was, ok := last[it.TargetID]; ok && now.Sub(was) < time.Second/time.Duration(pace) {
						t.Fatalf("%v after %v", it, now.Sub(was))
					}
					last[it.TargetID] = now
					done = append(done, it.DeliveryID)
				}
				l.add(now, l.st.Advance(done, skipped)...)
				continue
			case !a.Wait.IsZero():
				if !a.Wait.After(now) {
					t.Fatalf("waits for what is over")
				}
				now = a.Wait
				continue
			}
			break
		}
		total := 0
		for _, n := range sizes {
			total += n
		}
		if len(seen) != total || l.st.Done+l.st.Skipped != total || l.st.Status != job.Completed {
			t.Fatalf("%d of %d, %d done, %d skipped, %s", len(seen), total, l.st.Done, l.st.Skipped, l.st.Status)
		}
		ends := 0
		for _, e := range l.events {
			if _, ok := e.Data.(*event.JobEnded); ok {
				ends++
			}
		}
		if ends != 1 { // I-05
			t.Fatalf("%d ends", ends)
		}
	})
}

// A job that is called off ends at once; what was done stays, and a word that
// comes late changes nothing.
func TestCancel(t *testing.T) {
	l := planned(t, 4)
	l.add(noon, &event.JobStarted{})
	l.add(noon, &event.JobAdvanced{Done: []event.DeliveryID{"dlv_0_0", "dlv_0_0", "dlv_none"}})
	if l.st.Done != 1 || l.st.Left() != 3 {
		t.Fatalf("%d done, %d left", l.st.Done, l.st.Left())
	}
	l.add(noon, &event.JobCancelRequested{})
	a := l.st.Next(noon, 1)
	if a.End != job.Cancelled || len(a.Items) > 0 {
		t.Fatalf("%+v", a)
	}
	if d := l.st.End(a.End).(*event.JobEnded); d.Done != 1 || d.Left != 3 {
		t.Errorf("%+v", d)
	}
	l.add(noon, l.st.End(a.End), &event.JobCancelRequested{})
	if a := l.st.Next(noon, 1); a.End != "" || len(a.Items) > 0 || l.st.Status != job.Cancelled {
		t.Errorf("%+v %s", a, l.st.Status)
	}
}

func TestDrift(t *testing.T) {
	set := func(list ...string) (items []event.JobItem) {
		for _, x := range list {
			items = append(items, event.JobItem{DeliveryID: event.DeliveryID(x[:1]), LaneSeq: int64(x[1])})
		}
		return items
	}
	for _, c := range []struct {
		was, is []event.JobItem
		want    string
	}{
		{set("a1", "b1"), set("b1", "a1"), "[] [] []"}, {set("a1"), set("a1", "b1"), "[b] [] []"}, {set("a1", "b1"), set("a1"), "[] [b] []"},
		{set("a1"), set("a2"), "[] [] [a]"}, {nil, nil, "[] [] []"},
	} {
		d := job.Compare(c.was, c.is)
		if got := fmt.Sprint(d.Added, d.Removed, d.Changed); got != c.want || d.None() != (job.Digest(c.was) == job.Digest(c.is)) {
			t.Errorf("%v to %v: %s, want %s", c.was, c.is, got, c.want)
		}
	}
}

// I-03: rows follow from events alone, and count what they say.
func TestRows(t *testing.T) {
	l := planned(t, 2)
	l.add(noon, &event.JobStarted{}, &event.JobAdvanced{Done: []event.DeliveryID{"dlv_0_0"}, Skipped: []event.JobSkipped{{DeliveryID: "dlv_0_1", Code: "gone"}}},
		&event.JobEnded{Status: job.Completed})
	row := map[string]any{}
	for _, c := range job.Rows(l.events) {
		if c.Table != derived.Jobs || len(c.Key) != 1 || c.Key[0].Value != "job_1" {
			t.Fatalf("%v", c)
		}
		for _, col := range c.Cols {
			if n, ok := row[col.Name].(int64); ok && c.Op == derived.Add {
				row[col.Name] = n + col.Value.(int64)
				continue
			}
			row[col.Name] = col.Value
		}
	}
	if row["status"] != job.Completed || row["n_done"] != int64(1) || row["n_skipped"] != int64(1) || row["n_total"] != int64(2) || row["user_id"] != "ann" || row["finished_at"] == "" {
		t.Errorf("%v", row)
	}
	l.add(noon, &event.JobExpired{})
	if c := job.Rows(l.events[len(l.events)-1:]); len(c) != 1 || c[0].Op != derived.Delete {
		t.Errorf("%v", c)
	}
	if c := job.Rows([]event.Event{{Stream: "job:job_1"}}); c != nil {
		t.Errorf("of an erased event: %v", c)
	}
}
