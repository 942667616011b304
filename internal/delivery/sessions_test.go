package delivery_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// I-25: a target that several sessions answer to gets all in order, whoever's they
// are; what is told of one delivery stands under its own session.
func TestSeveralSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		const url = "https://a.test/"
		address, err := json.Marshal(event.ReplyTarget{Type: "webhook", URL: url}, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		const n = 12
		sessionOf := func(i int) event.SessionID { return []event.SessionID{"ses_1", "ses_2", "ses_2", "ses_3"}[i%4] }
		for _, id := range []event.SessionID{"ses_2", "ses_3"} {
			put1(t, p, id.Stream(), event.Event{SessionID: id, UserID: user, Data: &event.SessionCreated{}})
		}
		for i := range n {
			s, id := sessionOf(i), event.DeliveryID(fmt.Sprintf("dlv_%02d", i))
			body, at := event.NewBlob(s, event.BlobDelivery, []byte(fmt.Sprintf(`{"id":%q}`, id))), event.NewBlob(s, event.BlobDelivery, address)
			put1(t, p, target(url).Stream(), event.Event{SessionID: s, UserID: user, RunID: event.RunID("run_" + string(s)), Data: &event.DeliveryEnqueued{
				Address: at.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"}}, body, at)
		}
		p.open(nil)
		time.Sleep(time.Minute)
		p.mu.Lock()
		attempts := slices.Clone(p.attempts)
		p.mu.Unlock()
		for i := range n {
			if len(attempts) != n || attempts[i].m.ID != event.DeliveryID(fmt.Sprintf("dlv_%02d", i)) {
				t.Fatalf("attempts %+v", attempts)
			}
		}
		events, err := p.store.Read(t.Context(), target(url).Stream(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		delivered := 0
		for i := range events {
			if err := events[i].Decode(); err != nil {
				t.Fatal(err)
			}
			if d, ok := events[i].Data.(*event.DeliveryDelivered); ok {
				if want := sessionOf(delivered); events[i].SessionID != want || events[i].RunID != event.RunID("run_"+string(want)) {
					t.Errorf("%s stands under %s, %s", d.DeliveryID, events[i].SessionID, events[i].RunID)
				}
				delivered++
			}
		}
		if delivered != n {
			t.Errorf("%d delivered, want %d", delivered, n)
		}
		p.close()
	})
}

func put1(t *testing.T, p *post, s event.Stream, e event.Event, blobs ...event.Blob) {
	t.Helper()
	if _, err := p.store.Append(t.Context(), eventlog.Append{Blobs: blobs, Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: []event.Event{e}}}}); err != nil {
		t.Fatal(err)
	}
}
