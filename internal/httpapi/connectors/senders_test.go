package connectors_test

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
)

// askedFor counts bodies that are read.
type askedFor struct {
	r     io.Reader
	once  sync.Once
	asked *atomic.Int64
}

func (a *askedFor) Read(p []byte) (int, error) {
	a.once.Do(func() { a.asked.Add(1) })
	return a.r.Read(p)
}

// A stranger needs no secret to begin a body that a signature is said to be of: such
// bodies are held in bounded number, and one peer's keep no other from being heard.
func TestStrangersBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t, hub(t, &counts{}), func(c *httpapi.Config) { c.MaxEvents = 8 })
		const ping = `{"zen":"x"}`
		send := func(peer string, body io.Reader) <-chan int {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1:7411/v1/connectors/code", body)
			r.RemoteAddr = peer + ":4711"
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-GitHub-Event", "ping")
			r.Header.Set("X-Hub-Signature-256", "sha256="+macOf(apitest.HubSecret, ping))
			status := make(chan int, 1)
			go func() {
				rec := httptest.NewRecorder()
				w.Handler.ServeHTTP(rec, r)
				status <- rec.Code
			}()
			return status
		}
		var ends []*io.PipeWriter
		var slow []<-chan int
		asked := new(atomic.Int64)
		for range 50 {
			read, write := io.Pipe()
			ends = append(ends, write)
			slow = append(slow, send("192.0.2.1", &askedFor{r: read, asked: asked}))
		}
		synctest.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("%d bodies of one peer are held at once, want 2", n)
		}
		if got := <-send("192.0.2.2", strings.NewReader(ping)); got != 200 {
			t.Errorf("another peer is answered %d", got)
		}
		time.Sleep(connectors.SenderPatience + time.Second)
		for _, e := range ends {
			e.Close()
		}
		turned := 0
		for _, status := range slow {
			if <-status == 429 {
				turned++
			}
		}
		if turned != 48 {
			t.Errorf("%d of 50 are told to come again, want 48", turned)
		}
		// Their places are given back: as many are heard again.
		asked.Store(0)
		var again []*io.PipeWriter
		for range 3 {
			read, write := io.Pipe()
			again = append(again, write)
			slow = append(slow, send("192.0.2.1", &askedFor{r: read, asked: asked}))
		}
		synctest.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("%d bodies of the peer are held afterwards, want 2", n)
		}
		for _, e := range again {
			e.Close()
		}
		for _, status := range slow[50:] {
			<-status
		}
	})
}

// Who is not believed by a connector stands in the audit stream: what was tried, and
// from where, and in how many events however many they are; nothing of a secret.
func TestAuditOfSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t, hub(t, &counts{}))
		w.Handler.Start()
		const body = `{"id":"1"}`
		post := func(connector, peer string, header ...string) {
			w.Knock(apitest.Knock{Method: "POST", Path: "/v1/connectors/" + connector, Peer: peer, Body: body, Header: append(header, "Content-Type", "application/json")}).Want(401, "sender_unknown")
		}
		post("plain", "192.0.2.7", "Authorization", "Bearer wrong-secret-of-a-sender")
		post("plain", "192.0.2.7", "Authorization", "Bearer wrong-secret-of-a-sender")
		post("code", "192.0.2.8", "X-Hub-Signature-256", "sha256="+macOf("wrong-secret-of-a-sender", body))
		post("std", "192.0.2.9")
		const many = 3000
		for i := range many {
			post("plain", fmt.Sprintf("198.51.%d.%d", i>>8, i&255), "Authorization", "Bearer x")
		}
		time.Sleep(2 * time.Minute)
		w.Handler.Stop(t.Context())
		list, err := w.Store.Read(t.Context(), event.AuditStream, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var count int64
		told := map[string]string{}
		for i := range list {
			if err := list[i].Decode(); err != nil {
				t.Fatal(err)
			}
			r := list[i].Data.(*event.AuditRefused)
			told[r.Peer] = fmt.Sprint(r.Count, " ", r.Reason, " ", r.Path, " ", r.Detail)
			if count += r.Count; r.Reason != "sender_unknown" {
				t.Errorf("%+v", r)
			}
			if strings.Contains(string(list[i].Raw), "wrong-secret") { // I-33
				t.Errorf("a secret stands in %s", list[i].Raw)
			}
		}
		if count != many+4 || len(list) > 10 {
			t.Errorf("%d events tell %d of %d", len(list), count, many+4)
		}
		for peer, want := range map[string]string{
			"192.0.2.7": "2 sender_unknown /v1/connectors/plain plain: the token matches no secret of the connector",
			"192.0.2.8": "1 sender_unknown /v1/connectors/code code: the signature matches no secret of the connector",
			"192.0.2.9": "1 sender_unknown /v1/connectors/std std: the headers that prove the sender are missing, given twice or malformed",
		} {
			if told[peer] != want {
				t.Errorf("%s: %q, want %q", peer, told[peer], want)
			}
		}
	})
}
