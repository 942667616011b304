package logs_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

func TestLogAndFeed(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	for i := range 5 {
		run := w.Submit(s.ID, fmt.Sprint(i))
		w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "ok"}})
	}
	pages := func(path string, end func(api.List[api.Event]) bool) (all []api.Event) {
		after := "0"
		for range 100 {
			page := apitest.Into[api.List[api.Event]](w.Do("GET", path+"limit=3&after="+after, w.Admin, nil).Want(200))
			all = append(all, page.Items...)
			if end(page) {
				return all
			}
			after = page.NextCursor
		}
		t.Fatal("no end")
		return nil
	}
	last := func(p api.List[api.Event]) bool { return p.NextCursor == "" }
	events := pages("/v1/sessions/"+s.ID+"/events?", last)
	if len(events) != 1+5*5 {
		t.Errorf("%d events", len(events))
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has seq %d", i, e.Seq)
		}
	}
	run := events[6].RunID
	mine := pages("/v1/runs/"+run+"/events?", last)
	if len(mine) != 5 || mine[0].Type != "run.created" || mine[4].Type != "run.completed" {
		t.Errorf("%d events of the run", len(mine))
	}
	empty := func(p api.List[api.Event]) bool { return len(p.Items) == 0 }
	if all := pages("/v1/events?", empty); len(all) != 26+20 {
		t.Errorf("%d events in the feed", len(all))
	}
	if some := pages("/v1/events?type=run.completed&", empty); len(some) != 5 {
		t.Errorf("%d events in the filtered feed", len(some))
	}
	w.Do("GET", "/v1/events?type=no.such", w.Admin, nil).Want(400, "invalid_parameter")
}
