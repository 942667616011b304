package natsout

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

// newServer runs a NATS server of the test's own.
func newServer(t *testing.T, text string) *server.Server {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(path, []byte("listen: 127.0.0.1:-1\njetstream {store_dir: "+`"`+dir+`"`+"}\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	options.NoLog, options.NoSigs = true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func at(url string) func() (string, error) { return func() (string, error) { return url, nil } }

// newSender publishes to one server, with core NATS under "core" and JetStream under "js".
func newSender(t *testing.T, url string) *Sender {
	t.Helper()
	s := New(Config{Servers: map[string]Server{"core": {URL: at(url)}, "js": {URL: at(url), JetStream: true}}})
	t.Cleanup(s.Close)
	return s
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var answer = Message{ID: "dlv_1", Subject: "answers.a", Body: []byte(`{"content":"x"}`)}

// Of core NATS: the server has it, and who listens gets the same id and bytes at
// each attempt.
func TestCore(t *testing.T) {
	url := newServer(t, "").ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("answers.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s := newSender(t, url)
	for range 2 { // I-26
		if r := s.Send(soon(t), "core", answer); !r.Delivered {
			t.Fatalf("%+v", r)
		}
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil || m.Subject != "answers.a" || string(m.Data) != string(answer.Body) || m.Header.Get("Nats-Msg-Id") != "dlv_1" || m.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%+v, %v", m, err)
		}
	}
	if r := s.Send(soon(t), "core", Message{ID: "dlv_2", Subject: "nobody.listens"}); !r.Delivered {
		t.Errorf("%+v", r)
	}
}

// Of JetStream: a stream has it, once, however often it is sent.
func TestJetStream(t *testing.T) {
	url := newServer(t, "").ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	s := newSender(t, url)
	if r := s.Send(soon(t), "js", answer); r.Code != "server_no_stream" || r.Permanent {
		t.Errorf("without a stream: %+v", r)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "ANSWERS", Subjects: []string{"answers.>"}, MaxMsgs: 1, Discard: nats.DiscardNew}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r := s.Send(soon(t), "js", answer); !r.Delivered {
			t.Fatalf("%+v", r)
		}
	}
	if info, err := js.StreamInfo("ANSWERS"); err != nil || info.State.Msgs != 1 {
		t.Errorf("%d messages, %v", info.State.Msgs, err)
	}
	if r := s.Send(soon(t), "js", Message{ID: "dlv_2", Subject: "answers.a", Body: []byte("{}")}); r.Code != "server_stream" || r.Permanent {
		t.Errorf("a full stream: %+v", r)
	}
}

func TestRefusals(t *testing.T) {
	s := newServer(t, `max_payload: 1024
authorization { users: [ {user: ann, password: hunter2, permissions: {publish: ["answers.>", "$JS.API.>"], subscribe: ["_INBOX.>"]}} ] }`)
	good := strings.Replace(s.ClientURL(), "//", "//ann:hunter2@", 1)
	bad := strings.Replace(s.ClientURL(), "//", "//ann:wrong@", 1)
	for _, server := range []string{"core", "js"} {
		sender := newSender(t, good)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // JetStream's word is waited for to its end
		if r := sender.Send(ctx, server, Message{ID: "dlv_1", Subject: "secret.a"}); r.Code != "refused_subject" || !r.Permanent {
			t.Errorf("%s, a subject that is not allowed: %+v", server, r)
		}
		cancel()
		if r := sender.Send(soon(t), server, Message{ID: "dlv_1", Subject: "answers.a", Body: make([]byte, 2048)}); r.Code != "payload_too_large" || !r.Permanent {
			t.Errorf("%s, too large: %+v", server, r)
		}
		r := newSender(t, bad).Send(soon(t), server, answer)
		if r.Code != "secret_refused" || r.Permanent || strings.Contains(r.Detail, "wrong") {
			t.Errorf("%s, a wrong password: %+v", server, r)
		}
	}
	// A refusal is not remembered against the next message.
	if r := newSender(t, good).Send(soon(t), "core", answer); !r.Delivered {
		t.Errorf("%+v", r)
	}
}

func TestTrouble(t *testing.T) {
	s := New(Config{Servers: map[string]Server{
		"unread": {URL: func() (string, error) { return "", errors.New("the environment variable X is not set") }},
		"gone":   {URL: at("nats://127.0.0.1:1")},
	}})
	defer s.Close()
	for server, code := range map[string]string{"none": "server_not_configured", "unread": "secret_unavailable", "gone": "connection"} {
		if r := s.Send(soon(t), server, answer); r.Code != code || r.Permanent {
			t.Errorf("%s: %+v", server, r)
		}
	}
	dns := New(Config{Servers: map[string]Server{"x": {URL: at("nats://x.test")}}, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{IsNotFound: true}
	}})
	if r := dns.Send(soon(t), "x", answer); r.Code != "dns" {
		t.Errorf("no name: %+v", r)
	}
}

// A server that hangs holds an attempt no longer than it has time, and so does
// another attempt at the same server.
func TestHung(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSender(t, "nats://"+l.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	results := make(chan delivery.Result, 2)
	for range 2 {
		go func() { results <- s.Send(ctx, "core", answer) }()
	}
	for range 2 {
		if r := <-results; r.Delivered || r.Permanent || r.Code != "timeout" {
			t.Errorf("%+v", r)
		}
	}
}

// A server that went away and came again is connected to anew.
func TestReconnect(t *testing.T) {
	first := newServer(t, "")
	url := first.ClientURL()
	s := New(Config{Servers: map[string]Server{"core": {URL: func() (string, error) { return url, nil }}}})
	defer s.Close()
	if r := s.Send(soon(t), "core", answer); !r.Delivered {
		t.Fatalf("%+v", r)
	}
	first.Shutdown()
	first.WaitForShutdown()
	if r := s.Send(soon(t), "core", answer); r.Delivered || r.Permanent {
		t.Errorf("%+v", r)
	}
	url = newServer(t, "").ClientURL()
	if r := s.Send(soon(t), "core", answer); !r.Delivered {
		t.Errorf("%+v", r)
	}
}

// A server that has taken the connection and reads no more holds an attempt no
// longer than it has time. // I-25
func TestDeaf(t *testing.T) {
	for _, name := range []string{"core", "js"} {
		end := make(chan struct{})
		dial := func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				_, _ = io.WriteString(theirs, `INFO {"server_id":"x","version":"2.10.0","proto":1,"max_payload":1048576,"headers":true}`+"\r\n")
				for in := bufio.NewReader(theirs); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if strings.HasPrefix(line, "PING") {
						_, _ = io.WriteString(theirs, "PONG\r\n")
						break
					}
				}
				<-end
			}()
			return ours, nil
		}
		to := Server{URL: at("nats://nats.test:4222"), JetStream: name == "js"}
		s := New(Config{Dial: dial, Servers: map[string]Server{name: to}})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		if r := s.Send(ctx, name, answer); r.Delivered || r.Permanent || r.Code != "timeout" || time.Since(began) > 20*time.Second {
			t.Errorf("%s: %+v after %v", name, r, time.Since(began))
		}
		cancel()
		close(end)
		s.Close()
	}
}
