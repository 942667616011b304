package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// C50 on one node: 50 submissions to one session at once. One run is active at
// any instant, they run in the order in which they were accepted, and each is
// shown the answers of all before it.
func TestC50(t *testing.T) { // C50, I-06
	const runs = 50
	var active atomic.Int64
	h := newHouse(t, func(n int, req chatstub.Request) chatstub.Reply {
		if active.Add(1) != 1 {
			t.Error("two runs of one session ask the model at once")
		}
		defer active.Add(-1)
		var roles []string
		for i, m := range req.Messages {
			if roles = append(roles, m.Role); m.Role == "assistant" && m.Text() != fmt.Sprint("answer ", i/2) {
				t.Errorf("request %d is shown %q as answer %d", n, m.Text(), i/2)
			}
		}
		if want := strings.Repeat("user assistant ", n) + "user"; strings.Join(roles, " ") != want {
			t.Errorf("request %d: %s", n, roles)
		}
		return chatstub.Reply{Text: fmt.Sprint("answer ", n)}
	})
	s := h.session(&api.CreateSession{})
	var wait sync.WaitGroup
	ids := make([]string, runs)
	for i := range runs {
		wait.Go(func() {
			r, _, err := h.c.Submit(t.Context(), s, &api.SubmitRun{Content: api.Text(fmt.Sprint("line ", i))})
			if err != nil {
				t.Error(err)
				return
			}
			if r, err = h.c.Wait(t.Context(), r.ID); err != nil || r.Status != api.RunCompleted || len(r.Outputs) != 1 {
				t.Errorf("%v %+v", err, r)
			}
			ids[i] = r.ID
		})
	}
	wait.Wait()
	var created, started, ended []string
	running := ""
	for after := int64(0); ; {
		page, err := h.c.SessionEvents(t.Context(), s, client.EventsQuery{}, after, 500)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Items {
			after = e.Seq
			switch e.Type {
			case "run.created":
				created = append(created, e.RunID)
			case "run.started":
				if started = append(started, e.RunID); running != "" {
					t.Errorf("%s starts while %s is active", e.RunID, running)
				}
				running = e.RunID
			case "run.completed":
				ended, running = append(ended, e.RunID), ""
			}
		}
		if page.NextCursor == "" {
			break
		}
	}
	if len(created) != runs || !slices.Equal(created, started) || !slices.Equal(created, ended) {
		t.Errorf("%d runs; accepted\n%v, started\n%v, ended\n%v", len(created), created, started, ended)
	}
	slices.Sort(ids)
	slices.Sort(created)
	if !slices.Equal(ids, created) {
		t.Error("the callers were told of other runs than there are")
	}
}
