package delivery_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

var signing = []byte("0123456789abcdef0123456789abcdef")

// network is the receivers of a test, by host. Requests are read whole and
// verified; what they answer is a script.
type network struct {
	t      *testing.T
	answer func(host string, n int) string // what is written back; n: attempts of that host

	mu   sync.Mutex
	seen map[string][]string // by host: id, body
	gone sync.WaitGroup
}

func (n *network) dial(_ context.Context, _, addr string) (net.Conn, error) {
	host, _, _ := strings.Cut(addr, ":")
	if strings.HasPrefix(host, "dns") {
		n.note(host, "")
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	ours, theirs := net.Pipe()
	n.gone.Go(func() { n.serve(host, theirs) })
	return ours, nil
}

func (n *network) note(host, what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[host] = append(n.seen[host], what)
	return len(n.seen[host])
}

func (n *network) serve(host string, c net.Conn) {
	defer c.Close()
	if strings.HasPrefix(host, "tls") {
		n.note(host, "")
		n.gone.Go(func() { _, _ = io.Copy(io.Discard, c) }) // a pipe holds nothing
		_, _ = io.WriteString(c, "HTTP/1.1 400 this is no TLS\r\n\r\n")
		return
	}
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		n.t.Error(err)
	}
	if err := webhook.Verify(r.Header, body, signing, time.Now(), 0); err != nil { // C56: every attempt
		n.t.Errorf("%s: %v", host, err)
	}
	count := n.note(host, r.Header.Get(webhook.HeaderID)+" "+string(body))
	switch {
	case strings.HasPrefix(host, "reset"):
		return
	case strings.HasPrefix(host, "slow"):
		select {
		case <-time.After(40 * time.Second):
		case <-n.t.Context().Done():
		}
	}
	_, _ = io.WriteString(c, n.answer(host, count))
}

func answered(status int) string {
	text := fmt.Sprintf(`{"said":%d}`, status)
	if status == 204 || status == 304 {
		text = ""
	}
	return fmt.Sprintf("HTTP/1.1 %d X\r\nConnection: close\r\nLocation: http://elsewhere.test/\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text)
}

// sending is a sender of webhooks over the network.
func (n *network) sending(t *testing.T) delivery.Sender {
	t.Helper()
	guard, err := netguard.New(netguard.Config{Dial: n.dial})
	if err != nil {
		t.Fatal(err)
	}
	sender := webhook.NewSender(webhook.Config{}, guard)
	t.Cleanup(func() { sender.Close(); n.gone.Wait() })
	return func(ctx context.Context, m delivery.Message) delivery.Result {
		out := sender.Send(ctx, webhook.Request{URL: m.Target.URL, Body: m.Body, ID: string(m.ID), Secret: signing, Timestamp: m.At})
		if out.Delivered() {
			return delivery.Result{Delivered: true, Status: out.Status}
		}
		f := out.Failed
		return delivery.Result{Code: f.Code, Status: out.Status, RetryAfter: f.RetryAfter, Permanent: f.Permanent, Gone: f.Gone, Detail: f.Detail, Excerpt: f.Excerpt}
	}
}

// C58: every receiver of the case. What is refused for good is a dead letter after
// the first attempt, with the status and the beginning of the answer; what may
// heal is tried again to the end; redirects are not followed; the counts of the
// metrics are those of the ledger.
func TestC58(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := metrics.New(metrics.Config{})
		p := &post{t: t}
		var err error
		p.store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows, OnCommit: counted.Committed})
		if err != nil {
			t.Fatal(err)
		}
		net := &network{t: t, seen: map[string][]string{}, answer: func(host string, _ int) string {
			var status int
			if _, err := fmt.Sscanf(host, "h%d.", &status); err != nil {
				status = 200
			}
			return answered(status)
		}}
		send := net.sending(t)
		p.receive = func(ctx context.Context, m delivery.Message, _ int) delivery.Result { return send(ctx, m) }
		p.open(func(c *delivery.Config) { c.Rules = rules(outbox.Rules{MaxAttempts: 3, InitialBackoff: time.Second}) })
		type want struct {
			status, class string
			attempts      int
		}
		cases := map[string]want{
			"slow.test": {outbox.DeadLettered, outbox.ClassTimeout, 3}, "reset.test": {outbox.DeadLettered, outbox.ClassNetwork, 3},
			"dns.test": {outbox.DeadLettered, outbox.ClassDNS, 3}, "tls.test": {outbox.DeadLettered, outbox.ClassTLS, 3},
		}
		for status, class := range map[int]string{
			200: "", 204: "", 301: outbox.ClassRedirect, 400: outbox.ClassRefused, 401: outbox.ClassRefused, 404: outbox.ClassRefused,
			408: outbox.ClassThrottled, 410: outbox.ClassGone, 413: outbox.ClassRefused, 422: outbox.ClassRefused, 425: outbox.ClassThrottled,
			429: outbox.ClassThrottled, 500: outbox.ClassServer, 503: outbox.ClassServer, 507: outbox.ClassServer,
		} {
			w := want{outbox.DeadLettered, class, 1}
			switch {
			case class == "":
				w.status = outbox.Delivered
			case outbox.Retryable(class):
				w.attempts = 3
			}
			cases[fmt.Sprintf("h%d.test", status)] = w
		}
		url := func(host string) string {
			if host == "tls.test" {
				return "https://" + host + "/"
			}
			return "http://" + host + "/"
		}
		for host := range cases {
			p.enqueue(url(host), event.DeliveryID("dlv_"+strings.ReplaceAll(host, ".", "_")))
		}
		rest(10 * time.Minute)
		classes := map[string]int{}
		steps := map[string]int{"enqueued": len(cases)}
		for host, w := range cases {
			id := event.DeliveryID("dlv_" + strings.ReplaceAll(host, ".", "_"))
			p.status(id, w.status, int64(w.attempts))
			row := p.row(id)
			net.mu.Lock()
			seen := net.seen[host]
			net.mu.Unlock()
			if row.LastClass != w.class || len(seen) != w.attempts || len(slices.Compact(slices.Clone(seen))) != 1 { // C56: one id, one body
				t.Errorf("%s: %s, seen %d times: %v", host, row.LastClass, len(seen), seen)
			}
			kept, _, err := p.store.Attempts(t.Context(), target(url(host)), id, eventlog.Page{})
			if err != nil {
				t.Fatal(err)
			}
			failures := w.attempts
			if w.class == "" {
				failures, classes["delivered"] = 0, classes["delivered"]+1
			}
			classes[w.class] += failures
			steps[w.status]++
			if len(kept) != failures {
				t.Errorf("%s: %d attempts are kept", host, len(kept))
			}
			for _, a := range kept {
				said := ""
				if a.Excerpt != "" {
					b, _, err := p.store.Blob(t.Context(), row.SessionID, a.Excerpt)
					if err != nil {
						t.Fatal(err)
					}
					said = string(b)
				}
				if a.Status != 0 && said != fmt.Sprintf(`{"said":%d}`, a.Status) || a.Class != w.class || a.EndedAt == "" {
					t.Errorf("%s: %+v %q", host, a, said)
				}
				if host == "slow.test" && a.DurationMS != 15000 {
					t.Errorf("the whole exchange took %d ms", a.DurationMS)
				}
			}
			if paused := p.circuit(url(host)).Paused; paused != (host == "h410.test") {
				t.Errorf("%s: paused is %v", host, paused)
			}
		}
		if len(net.seen["elsewhere.test"]) != 0 {
			t.Error("a redirect was followed")
		}
		text, err := counted.Text()
		if err != nil {
			t.Fatal(err)
		}
		for class, n := range classes {
			if line := fmt.Sprintf("holdfast_delivery_attempts_total{class=%q} %d\n", class, n); class != "" && !strings.Contains(string(text), line) {
				t.Errorf("the metrics do not have %s", line)
			}
		}
		for step, n := range steps {
			if line := fmt.Sprintf("holdfast_deliveries_total{step=%q} %d\n", step, n); !strings.Contains(string(text), line) {
				t.Errorf("the metrics do not have %s", line)
			}
		}
		b, err := p.store.Backlog(t.Context())
		if err != nil || b.DeadLettered != int64(steps[outbox.DeadLettered]) || b.PendingDeliveries != 0 || b.PausedTargets != 1 {
			t.Errorf("%+v %v", b, err)
		}
		p.close()
	})
}

// C42: the nine header values of the case, over the wire and through the room: when
// the next attempt goes out.
func TestC42(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := map[string]time.Duration{ // 0: our own wait
			"a7.test": 7 * time.Second, "b30.test": 30 * time.Second, "past.test": 0, "negative.test": 0, "fraction.test": 0, "word.test": 0, "empty.test": 0,
			"year.test": 5 * time.Minute, "nextyear.test": 5 * time.Minute,
		}
		header := func(host string) string {
			date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
			return map[string]string{"a7.test": "7", "b30.test": date(30 * time.Second), "past.test": date(-24 * time.Hour), "negative.test": "-5", "fraction.test": "1.5",
				"word.test": "soon", "empty.test": "", "year.test": "31536000", "nextyear.test": date(365 * 24 * time.Hour)}[host]
		}
		net := &network{t: t, seen: map[string][]string{}, answer: func(host string, n int) string {
			if n > 1 {
				return answered(200)
			}
			return "HTTP/1.1 429 Slow\r\nConnection: close\r\nRetry-After: " + header(host) + "\r\nContent-Length: 0\r\n\r\n"
		}}
		send := net.sending(t)
		p := newPost(t, func(ctx context.Context, m delivery.Message, _ int) delivery.Result { return send(ctx, m) })
		defer p.close()
		change := func(c *delivery.Config) {
			c.Rules = rules(outbox.Rules{InitialBackoff: time.Second, MaxBackoff: time.Minute, MaxRetryAfter: 5 * time.Minute})
		}
		p.open(change)
		for host := range values {
			p.enqueue("http://"+host+"/", event.DeliveryID("dlv_"+strings.ReplaceAll(host, ".", "_")))
		}
		rest(500 * time.Millisecond)
		p.kill() // a restart keeps the planned time
		p.open(change)
		rest(10 * time.Minute)
		for host, want := range values {
			at := p.at("http://" + host + "/")
			if len(at) != 2 {
				t.Errorf("%s: %d attempts", host, len(at))
				continue
			}
			gap := time.Duration((at[1] - at[0]) * float64(time.Second))
			if want == 0 && (gap < 800*time.Millisecond || gap > 1200*time.Millisecond) || want > 0 && (gap < want-time.Second || gap > want+time.Second) {
				t.Errorf("%s: again after %v, want %v", host, gap, want)
			}
		}
	})
}
