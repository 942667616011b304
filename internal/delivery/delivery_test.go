package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

const (
	ses  = event.SessionID("ses_1")
	user = "ann"
)

// post is the room over a real store, with receivers that a test plays.
type post struct {
	t     *testing.T
	store *sqlite.Store
	room  *delivery.Room
	lease *tenure.Tenure
	lives int

	enqueued int // so many so far

	mu       sync.Mutex
	attempts []attempt
	receive  func(ctx context.Context, m delivery.Message, n int) delivery.Result // n: of this id, from 1
	fault    func(a eventlog.Append) error
}

type attempt struct {
	m  delivery.Message
	at time.Duration // since the bubble began
}

var (
	taken = delivery.Result{Delivered: true, Status: 200}
	began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
)

func newPost(t *testing.T, receive func(context.Context, delivery.Message, int) delivery.Result) *post {
	t.Helper()
	p := &post{t: t, receive: receive}
	var err error
	if p.store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows}); err != nil {
		t.Fatal(err)
	}
	p.put(ses.Stream(), &event.SessionCreated{})
	return p
}

// store with faults
type faulty struct {
	*sqlite.Store
	p *post
}

func (f faulty) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	f.p.mu.Lock()
	fault := f.p.fault
	f.p.mu.Unlock()
	if fault != nil {
		if err := fault(a); err != nil {
			return nil, err
		}
	}
	return f.Store.Append(ctx, a)
}

// rules are those of every target.
func rules(r outbox.Rules) func(event.TargetID, event.ReplyTarget) outbox.Rules {
	return func(event.TargetID, event.ReplyTarget) outbox.Rules { return r }
}

// open begins a life of the room.
func (p *post) open(change func(*delivery.Config)) {
	p.t.Helper()
	cfg := delivery.Config{
		Store: faulty{p.store, p}, Send: p.send, Rand: rand.New(rand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Rules: rules(outbox.Rules{MaxAttempts: 4, InitialBackoff: 10 * time.Second, Factor: 2, MaxBackoff: time.Hour}),
	}
	if change != nil {
		change(&cfg)
	}
	if p.lease != nil {
		p.lease.Stop(p.t.Context())
	}
	p.lives++
	p.lease = tenure.New(tenure.Config{Nodes: p.store, Node: eventlog.Node{ID: eventlog.NodeID(fmt.Sprint("n", p.lives))}, Logger: cfg.Logger})
	if err := p.lease.Start(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	cfg.Tenure = p.lease
	p.room = delivery.New(cfg)
	p.room.Start()
}

func (p *post) send(ctx context.Context, m delivery.Message) delivery.Result {
	p.mu.Lock()
	p.attempts = append(p.attempts, attempt{m, time.Since(began)})
	n := 0
	for _, a := range p.attempts {
		if a.m.ID == m.ID {
			n++
		}
	}
	p.mu.Unlock()
	return p.receive(ctx, m, n)
}

// kill ends the room as a crash would.
func (p *post) kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.room.Stop(ctx)
	p.lease.Stop(context.WithoutCancel(ctx)) // its lock proves that it is dead
}

func (p *post) close() {
	p.kill()
	report, err := p.store.Verify(context.Background(), sqlite.VerifyOptions{})
	if err = errors.Join(err, p.store.Close(context.Background())); err != nil || !report.OK() {
		p.t.Errorf("close: %v %+v", err, report.Findings)
	}
}

func (p *post) put(s event.Stream, datas ...event.Data) {
	p.t.Helper()
	var events []event.Event
	for _, d := range datas {
		events = append(events, event.Event{SessionID: ses, UserID: user, RunID: "run_1", Data: d})
	}
	if _, err := p.store.Append(p.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: events}}}); err != nil {
		p.t.Fatal(err)
	}
}

func target(url string) event.TargetID { return event.TargetIDFor(user, "webhook", url) }

// enqueue puts a delivery in a target's lane and wakes it; the deliveries of a
// lane are of two sessions.
func (p *post) enqueue(url string, id event.DeliveryID) {
	p.t.Helper()
	p.enqueueTo(event.ReplyTarget{Type: "webhook", URL: url}, id)
}

func (p *post) row(id event.DeliveryID) eventlog.DeliveryRow {
	p.t.Helper()
	row, err := p.store.Delivery(context.Background(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return row
}

func (p *post) status(id event.DeliveryID, status string, attempts int64) {
	p.t.Helper()
	if row := p.row(id); row.Status != status || row.Attempts != attempts || row.Open != 0 {
		p.t.Errorf("%s is %s after %d attempts (open %d, %s), want %s after %d", id, row.Status, row.Attempts, row.Open, row.LastCode, status, attempts)
	}
}

func (p *post) types(url string) []event.Type {
	p.t.Helper()
	events, err := p.store.Read(context.Background(), target(url).Stream(), 0, 1000)
	if err != nil {
		p.t.Fatal(err)
	}
	var out []event.Type
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

// ids are those of the attempts, in order.
func (p *post) ids() []event.DeliveryID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []event.DeliveryID
	for _, a := range p.attempts {
		out = append(out, a.m.ID)
	}
	return out
}

func rest(d time.Duration) { <-time.After(d); synctest.Wait() }

const urlA, urlB = "http://a.test/", "http://b.test/"

// I-25: per target in order; what waits for a retry holds those behind it, and
// no other target.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, m delivery.Message, n int) delivery.Result {
			switch {
			case m.ID == "dlv_1" && n == 1:
				return delivery.Result{Code: "http_500", Status: 500}
			case m.Target.URL == urlB:
				<-ctx.Done() // hangs
				return delivery.Result{Code: "timeout"}
			}
			return taken
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlB, "dlv_b")
		for _, id := range []event.DeliveryID{"dlv_1", "dlv_2", "dlv_3"} {
			p.enqueue(urlA, id)
		}
		synctest.Wait()
		p.status("dlv_2", outbox.Pending, 0)
		rest(13 * time.Second)
		if got := p.ids(); !slices.Equal(slices.DeleteFunc(got, func(id event.DeliveryID) bool { return id == "dlv_b" }), []event.DeliveryID{"dlv_1", "dlv_1", "dlv_2", "dlv_3"}) {
			t.Errorf("attempts %v", got)
		}
		for _, id := range []event.DeliveryID{"dlv_2", "dlv_3"} {
			p.status(id, outbox.Delivered, 1)
		}
		if row := p.row("dlv_b"); row.Open != 1 {
			t.Errorf("the hung attempt is in flight: %+v", row)
		}
	})
}

// Retries keep their durable times over a restart; past the last comes the
// dead letter, and the lane goes on.
func TestScheduleOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, m delivery.Message, n int) delivery.Result {
			if m.ID == "dlv_2" {
				return taken
			}
			return delivery.Result{Code: "http_503", Status: 503}
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		p.enqueue(urlA, "dlv_2")
		for range 60 { // a crash every two seconds
			rest(2 * time.Second)
			p.kill()
			p.open(nil)
		}
		synctest.Wait()
		p.status("dlv_1", outbox.DeadLettered, 4)
		p.status("dlv_2", outbox.Delivered, 1)
		var gaps []time.Duration
		for i := 1; i < 4; i++ {
			gaps = append(gaps, p.attempts[i].at-p.attempts[i-1].at)
		}
		for i, least := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			if gaps[i] < least*4/5 || gaps[i] > least*6/5+2*time.Second { // jitter, and who was down
				t.Errorf("attempts are apart %v", gaps)
			}
		}
		if row := p.row("dlv_1"); row.LastCode != "http_503" {
			t.Errorf("the last code is %s", row.LastCode)
		}
	})
}

func TestVerdicts(t *testing.T) {
	for name, row := range map[string]struct {
		result   delivery.Result
		after    time.Duration
		attempts int // by then
		status   string
	}{
		"permanent":        {delivery.Result{Code: "http_410", Status: 410, Permanent: true}, time.Hour, 1, outbox.DeadLettered},
		"retry after, not": {delivery.Result{Code: "http_429", Status: 429, RetryAfter: 30 * time.Minute}, 29 * time.Minute, 1, outbox.Pending},
		"retry after":      {delivery.Result{Code: "http_429", Status: 429, RetryAfter: 30 * time.Minute}, 31 * time.Minute, 2, outbox.Pending},
		"asked for much":   {delivery.Result{Code: "http_429", Status: 429, RetryAfter: 100 * time.Hour}, 61 * time.Minute, 2, outbox.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return row.result })
				defer p.close()
				p.open(nil)
				p.enqueue(urlA, "dlv_1")
				rest(row.after)
				p.status("dlv_1", row.status, int64(row.attempts))
			})
		})
	}
}

// C56, I-26: 500, then taken without an answer, then a crash in mid-attempt,
// then 200, then a forced replay: one id, one body.
func TestSameBytesOnAllAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, m delivery.Message, n int) delivery.Result {
			switch n {
			case 1:
				return delivery.Result{Code: "http_500", Status: 500}
			case 2:
				<-ctx.Done()
				return delivery.Result{Code: "timeout"}
			case 3:
				<-ctx.Done() // until the crash
			}
			return taken
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		rest(10*time.Second + 3*time.Second + 15*time.Second + 26*time.Second)
		if row := p.row("dlv_1"); row.Open != 3 {
			t.Fatalf("the third attempt is in flight: %+v", row)
		}
		p.kill()
		p.open(nil)
		synctest.Wait()
		p.status("dlv_1", outbox.Delivered, 4)
		if types := p.types(urlA); types[len(types)-3] != event.TypeDeliveryAttemptFailed || types[len(types)-2] != event.TypeDeliveryAttemptStarted {
			t.Errorf("the attempt in doubt is closed before the next begins: %v", types)
		}
		p.put(target(urlA).Stream(), &event.DeliveryReplayed{DeliveryID: "dlv_1", Forced: true})
		p.room.Wake(target(urlA))
		synctest.Wait()
		p.status("dlv_1", outbox.Delivered, 5)
		for _, a := range p.attempts {
			if a.m.ID != "dlv_1" || !bytes.Equal(a.m.Body, p.attempts[0].m.Body) || a.m.Target.URL != urlA || a.m.At.Sub(began) > a.at {
				t.Errorf("attempt %+v", a)
			}
		}
	})
}

// A replay joins the tail of its lane, with a new round of attempts.
func TestReplayJoinsTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		p := newPost(t, func(_ context.Context, m delivery.Message, n int) delivery.Result {
			if m.ID == "dlv_1" && n <= 5 || m.ID == "dlv_2" && !open.Load() {
				return delivery.Result{Code: "http_500", Status: 500}
			}
			return taken
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		rest(5 * time.Minute)
		p.status("dlv_1", outbox.DeadLettered, 4)
		p.enqueue(urlA, "dlv_2") // waits for its retry
		synctest.Wait()
		p.put(target(urlA).Stream(), &event.DeliveryReplayed{DeliveryID: "dlv_1"})
		p.room.Wake(target(urlA))
		synctest.Wait()
		p.status("dlv_1", outbox.Pending, 4)
		open.Store(true)
		rest(time.Minute)
		p.status("dlv_1", outbox.Delivered, 6)
		if got := p.ids()[4:]; !slices.Equal(got, []event.DeliveryID{"dlv_2", "dlv_2", "dlv_1", "dlv_1"}) {
			t.Errorf("attempts %v", got)
		}
	})
}

// A crash that comes again and again in mid-attempt spends the attempts.
func TestAbandonedAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, _ delivery.Message, _ int) delivery.Result { <-ctx.Done(); return taken })
		defer p.close()
		p.enqueue(urlA, "dlv_1")
		for range 7 {
			p.open(nil)
			rest(time.Second)
			p.kill()
		}
		p.status("dlv_1", outbox.DeadLettered, 4)
		if len(p.attempts) != 4 {
			t.Errorf("%d attempts", len(p.attempts))
		}
	})
}

// A body that is not there any more can never be sent.
func TestErasedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		p.enqueue(urlA, "dlv_1")
		if _, err := p.store.Append(t.Context(), eventlog.Append{Erase: ses, Entries: []eventlog.Entry{{
			Stream: ses.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{SessionID: ses, UserID: user, Data: &event.SessionErased{}}},
		}}}); err != nil {
			t.Fatal(err)
		}
		p.open(nil)
		p.enqueue(urlA, "dlv_2")
		synctest.Wait()
		p.status("dlv_1", outbox.DeadLettered, 0)
		p.status("dlv_2", outbox.Delivered, 1)
	})
}

// A store in trouble costs no outcome: what was delivered is not sent again.
func TestOutcomeSurvivesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		p.fault = func(a eventlog.Append) error {
			if _, ok := a.Entries[0].Events[0].Data.(*event.DeliveryDelivered); ok && time.Since(began) < time.Minute {
				return errors.New("a fault that was put in")
			}
			return nil
		}
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		rest(2 * time.Minute)
		p.status("dlv_1", outbox.Delivered, 1)
		if len(p.attempts) != 1 {
			t.Errorf("sent %d times", len(p.attempts))
		}
	})
}

// Stopping begins nothing, and waits for what is in flight until its time is over.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, _ delivery.Message, _ int) delivery.Result {
			select {
			case <-time.After(5 * time.Second):
				return taken
			case <-ctx.Done():
				return delivery.Result{Code: "interrupted"}
			}
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		p.enqueue(urlA, "dlv_2")
		synctest.Wait()
		p.room.Stop(context.Background())
		p.status("dlv_1", outbox.Delivered, 1)
		p.status("dlv_2", outbox.Pending, 0)
		p.room.Wake(target(urlA)) // too late
		p.open(nil)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p.room.Stop(ctx)
		if row := p.row("dlv_2"); row.Open != 1 { // in doubt, not failed
			t.Errorf("%+v", row)
		}
	})
}

// A lane that another life claimed is not written to with the old epoch (I-11).
func TestFencedLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, _ delivery.Message, n int) delivery.Result {
			<-time.After(5 * time.Second)
			return taken
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		synctest.Wait()
		empty := event.NewBlob(ses, event.BlobDelivery, nil)
		if _, err := p.store.Append(t.Context(), eventlog.Append{Blobs: []event.Blob{empty}, Entries: []eventlog.Entry{{Stream: target(urlA).Stream(), Expect: eventlog.AnyHead, Claim: true,
			Events: []event.Event{{SessionID: ses, UserID: user, RunID: "run_1", Data: &event.DeliveryEnqueued{Address: event.RefOf(nil), Body: event.RefOf(nil), DeliveryID: "dlv_2", Type: "webhook"}}}}}}); err != nil {
			t.Fatal(err)
		}
		<-time.After(6 * time.Second)
		synctest.Wait()
		if types := p.types(urlA); slices.Contains(types, event.TypeDeliveryDelivered) {
			t.Errorf("the former owner wrote: %v", types)
		}
	})
}

// An append that lands behind its caller's end begins no attempt that was made
// meanwhile (I-26).
func TestLateStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, _ delivery.Message, n int) delivery.Result {
			if n == 1 {
				return delivery.Result{Code: "http_500", Status: 500}
			}
			return taken
		})
		defer p.close()
		var late *eventlog.Append // the first start, whose answer never came
		p.fault = func(a eventlog.Append) error {
			if late == nil && a.Entries[0].Node != "" {
				late = &a
				return errors.New("the connection is gone")
			}
			return nil
		}
		p.enqueue(urlA, "dlv_1")
		p.open(nil)
		rest(5 * time.Second)
		p.status("dlv_1", outbox.Pending, 1)
		p.kill() // what it held is free
		_, err := p.store.Append(t.Context(), *late)
		var condition *eventlog.ConditionError
		if !errors.As(err, &condition) {
			t.Errorf("a start that was made meanwhile is made once more: %v", err)
		}
		p.open(nil)
		rest(time.Minute)
		p.status("dlv_1", outbox.Delivered, 2)
	})
}

// With few slots no more attempts are in flight at once, and none is lost.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return taken
		})
		defer p.close()
		p.open(func(c *delivery.Config) { c.Slots = 6 }) // of which three to those that nobody knows yet
		for i := range 10 {
			p.enqueue(fmt.Sprintf("http://%d.test/", i), event.DeliveryID(fmt.Sprintf("dlv_%d", i)))
		}
		rest(5 * time.Second)
		if most != 3 || len(p.attempts) != 10 {
			t.Errorf("%d at once, %d in all", most, len(p.attempts))
		}
		for _, a := range p.attempts {
			if a.m.At.Sub(began) != a.at { // signed with the time it goes out, not that at which it began to wait
				t.Errorf("an attempt at %v is stamped %v", a.at, a.m.At.Sub(began))
			}
		}
	})
}
