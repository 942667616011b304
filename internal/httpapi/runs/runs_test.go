package runs_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/runs"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// away is a store of which facts cannot be read.
type away struct{ httpapi.Store }

func (away) Facts(context.Context, []eventlog.Place) ([]event.Event, error) {
	return nil, eventlog.ErrAway
}

// A run that is in the log is told of as accepted, also when it cannot be read: who is
// told to try again has it done twice (I-07).
func TestAcceptedAndNotReadable(t *testing.T) {
	w := apitest.New(t, func(cfg *httpapi.Config) { cfg.Store = away{cfg.Store} })
	s := w.Session("")
	for _, path := range []string{"", "?wait=1ms"} {
		got := w.Do("POST", "/v1/sessions/"+s.ID+"/runs"+path, w.Admin, `{"content":"once"}`, "Idempotency-Key", "k"+path).Want(202)
		run := apitest.Into[api.Run](got)
		if run.SessionID != s.ID || run.UserID != s.UserID || run.Status != api.RunQueued || got.Header.Get("Location") != "/v1/runs/"+run.ID {
			t.Errorf("%s: %s", path, got.Body)
		}
		w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"once"}`, "Idempotency-Key", "k"+path).Want(503, "store_unavailable") // nothing is accepted by this one
		w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(503, "store_unavailable")
	}
}

func TestRunLife(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	made := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":{"b":1,"a":[2]},"metadata":{"trace":"x"}}`, "Idempotency-Key", "k").Want(202)
	run := apitest.Into[api.Run](made)
	if made.Header.Get("Location") != "/v1/runs/"+run.ID || run.Status != "queued" || run.QueuePosition != 1 || string(run.InputMetadata) != `{"trace":"x"}` {
		t.Errorf("run %s", made.Body)
	}
	if run.Request.TextPreview != `{"b":1,"a":[2]}` {
		t.Errorf("raw content became %q", run.Request.TextPreview)
	}
	again := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":{"b":1,"a":[2]}}`, "Idempotency-Key", "k").Want(200)
	if apitest.Into[api.Run](again).ID != run.ID {
		t.Error("the key gave another run")
	}
	w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"other"}`, "Idempotency-Key", "k").Want(409, "idempotency_conflict")
	w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"other"}`, "Idempotency-Key", "a b").Want(400, "invalid_idempotency_key")

	big := `"` + strings.Repeat("x", event.InlineLimit) + `"`
	dlv := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputStructured, Content: event.Content{Text: big}})
	got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(200))
	if !got.Terminal() || string(got.StructuredOutput) != big || got.Outputs[0].Content != big || got.Usage.Input != 40 || got.Counters.Steps != 2 {
		t.Errorf("run %+v", got)
	}
	if len(got.Deliveries) != 1 || got.Deliveries[0].ID != string(dlv) || got.Deliveries[0].LastStatus != 500 {
		t.Errorf("deliveries %+v", got.Deliveries)
	}
	list := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs?session_id="+s.ID+"&status=completed", w.Admin, nil).Want(200))
	if len(list.Items) != 1 || list.Items[0].Outputs[0].ContentRef != event.RefOf([]byte(big)) || list.Items[0].Outputs[0].Content != "" {
		t.Fatalf("list %+v", list)
	}
	blob := w.Do("GET", "/v1/sessions/"+s.ID+"/blobs/"+list.Items[0].Outputs[0].ContentRef, w.Admin, nil).Want(200)
	if string(blob.Body) != big || blob.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(blob.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("blob headers %v", blob.Header)
	}
	// I-33: what is sealed, and the body of a delivery, are there for nobody.
	sealed := event.NewBlob(event.SessionID(s.ID), event.BlobSealed, []byte("state"))
	w.AppendTo(event.SessionID(s.ID).Stream(), []event.Blob{sealed}, event.Event{SessionID: event.SessionID(s.ID), UserID: "default", Data: &event.SessionClosed{}})
	for _, ref := range []string{sealed.Ref, event.RefOf([]byte("body of " + run.ID)), "sha256:00", "..%2f..%2fetc"} {
		w.Do("GET", "/v1/sessions/"+s.ID+"/blobs/"+ref, w.Admin, nil).Want(404, "blob_not_found")
	}

	w.Do("POST", "/v1/runs/"+run.ID+"/cancel", w.Admin, nil).Want(409, "run_state_conflict")
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"call_id":"c","resolution":"retry"}`).Want(409, "call_not_in_doubt")
	w.Do("POST", "/v1/deliveries/"+string(dlv)+"/replay", w.Admin, nil).Want(202)
	d := apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+string(dlv), w.Admin, nil).Want(200))
	if d.Status != api.DeliveryPending || d.Replays != 1 || len(d.ReplayHistory) != 1 || d.ReplayHistory[0].Actor == "" {
		t.Errorf("a delivery that was replayed is %+v", d)
	}
	for status, n := range map[string]int{"": 1, "retrying": 0, "pending": 1, "delivered": 0} {
		list := apitest.Into[api.List[api.Delivery]](w.Do("GET", "/v1/deliveries?run_id="+run.ID+"&status="+status, w.Admin, nil).Want(200))
		if len(list.Items) != n {
			t.Errorf("%d deliveries are %q, want %d", len(list.Items), status, n)
		}
	}
	w.Do("DELETE", "/v1/sessions/"+s.ID, w.Admin, nil).Want(409, "session_active")
}

func TestNeedsAttention(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	if apitest.Into[api.Interrupt](w.Do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.Admin, nil).Want(202)).Requested {
		t.Error("a queued run was interrupted")
	}
	w.Append(&run, &event.RunStarted{}, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "call_1", Name: "charge", Reason: "the answer was lost"}}})
	got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.Admin, nil).Want(200)) // at once
	if got.Status != "needs_attention" || len(got.Attention) != 1 || got.Attention[0] != (api.Attention{CallID: "call_1", Tool: "charge", Reason: "the answer was lost"}) {
		t.Fatalf("run %+v", got)
	}
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"resolution":"retry"}`).Want(400, "invalid_body")
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"call_id":"call_1","resolution":"completed","output":"done"}`).Want(202)
	if !apitest.Into[api.Interrupt](w.Do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.Admin, `{"reason":"r"}`).Want(202)).Requested {
		t.Error("the active run was not interrupted")
	}
	w.Append(&run, &event.RunCancelled{Reason: "enough"})
	got = apitest.Into[api.Run](w.Do("POST", "/v1/runs/"+run.ID+"/cancel", w.Admin, nil).Want(202))
	if got.Error == nil || got.Error.Code != "cancelled" || got.Error.Message != "enough" {
		t.Errorf("error %+v", got.Error)
	}
}

// C53, I-07
func TestEqualSubmissionsAtOnce(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	var wg sync.WaitGroup
	ids, statuses := make([]string, 20), make([]int, 20)
	for i := range ids {
		wg.Go(func() {
			req := w.Request("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"hello"}`, "Idempotency-Key", "k-1")
			res, err := w.Server.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			var run api.Run
			if err := json.NewDecoder(res.Body).Decode(&run); err != nil {
				t.Error(err)
			}
			ids[i], statuses[i] = run.ID, res.StatusCode
		})
	}
	wg.Wait()
	slices.Sort(statuses)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("runs %v", ids)
	}
	if statuses[0] != 200 || statuses[18] != 200 || statuses[19] != 202 {
		t.Errorf("statuses %v", statuses)
	}
	if list := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil)); len(list.Items) != 1 {
		t.Errorf("%d run.created", len(list.Items))
	}
}

// A full queue is answered as documented.
func TestQueueFull(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) {
		c.Admission = apitest.AdmissionOf(t, c.Store.(*sqlite.Store), admission.Limits{QueuedRuns: 1})
	})
	s := w.Session("")
	w.Submit(s.ID, "x")
	r := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, api.SubmitRun{Content: api.Text("y")}).Want(429, "queue_full")
	if r.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t)
		w.Admin = w.Token("admin", "")
		ask := func(method, path, body string) *apitest.Reply {
			k := apitest.Knock{Method: method, Path: path, Token: w.Admin, Body: body}
			if body != "" {
				k.Header = []string{"Content-Type", "application/json"}
			}
			return w.Knock(k)
		}
		s := apitest.Into[api.Session](ask("POST", "/v1/sessions", `{}`).Want(201))
		run := apitest.Into[api.Run](ask("POST", "/v1/sessions/"+s.ID+"/runs", `{"content":"x"}`).Want(202))
		begin := time.Now()
		if got := apitest.Into[api.Run](ask("GET", "/v1/runs/"+run.ID+"?wait=5ms", "").Want(200)); got.Status != "queued" || time.Since(begin) != 5*time.Millisecond {
			t.Errorf("status %s after %s", got.Status, time.Since(begin))
		}
		begin = time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if got := apitest.Into[api.Run](ask("GET", "/v1/runs/"+run.ID+"?wait=60s", "")); got.Status != "completed" || len(got.Outputs) != 1 {
					t.Errorf("status %s", got.Status)
				}
			})
		}
		synctest.Wait()
		w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "ok"}})
		wg.Wait()
		if took := time.Since(begin); took >= runs.LookAgain {
			t.Errorf("it took %s: nobody heard the bell", took)
		}
	})
}
