package mail

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

// post is a small SMTP server: strict in what it reads, with a word of its own
// where a test gives one.
type post struct {
	t     *testing.T
	l     net.Listener
	tls   *tls.Config
	roots *x509.CertPool
	done  sync.WaitGroup

	says     map[string]string // answer to a verb, in place of its own
	implicit bool
	bare     bool   // no STARTTLS
	auth     string // mechanisms

	mu       sync.Mutex
	messages []message
	creds    []string
	verbs    []string
}

type message struct {
	from string
	to   []string
	data string
	tls  bool
}

func newPost(t *testing.T, set ...func(*post)) *post {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p := &post{t: t, l: l, says: map[string]string{}, roots: x509.NewCertPool(), auth: "PLAIN LOGIN",
		tls: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}
	p.roots.AddCert(cert)
	for _, f := range set {
		f(p)
	}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); p.done.Wait() })
	return p
}

func bare(p *post) { p.bare = true }

// got is what the server took so far.
func (p *post) got() (messages []message, creds []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.messages), slices.Clone(p.creds)
}

// answer has the server say something else to a verb.
func (p *post) answer(verb, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[verb] = text
}

func (p *post) own(verb string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, ok := p.says[verb]
	return text, ok
}

func has(_ string, ok bool) bool { return ok }

func (p *post) serve(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	secure := false
	if p.implicit {
		c, secure = tls.Server(c, p.tls), true
	}
	r := bufio.NewReader(c)
	say := func(verb, text string) bool {
		if own, ok := p.own(verb); ok {
			text = own
		}
		if text == "hang" {
			_, _ = io.Copy(io.Discard, r)
			return false
		}
		_, err := io.WriteString(c, text+"\r\n")
		return err == nil
	}
	line := func() string {
		s, err := r.ReadString('\n')
		if err != nil || !strings.HasSuffix(s, "\r\n") {
			return ""
		}
		return strings.TrimSuffix(s, "\r\n")
	}
	if !say("GREETING", "220 post.test") {
		return
	}
	var m message
	for {
		text := line()
		if text == "" {
			return
		}
		verb, rest, _ := strings.Cut(text, " ")
		verb = strings.ToUpper(verb)
		p.mu.Lock()
		p.verbs = append(p.verbs, verb)
		p.mu.Unlock()
		ok := true
		switch verb {
		case "EHLO":
			list := []string{"post.test"}
			if !secure && !p.bare {
				list = append(list, "STARTTLS")
			}
			if secure {
				list = append(list, "AUTH "+p.auth)
			}
			out := ""
			for i, l := range list {
				sep := "-"
				if i == len(list)-1 {
					sep = " "
				}
				out += "\r\n250" + sep + l
			}
			ok = say(verb, out[2:])
		case "STARTTLS":
			if ok = say(verb, "220 go on"); ok && !has(p.own(verb)) {
				tc := tls.Server(c, p.tls)
				if tc.Handshake() != nil {
					return
				}
				c, r, secure = tc, bufio.NewReader(tc), true
			}
		case "AUTH":
			given := rest
			if rest == "LOGIN" {
				for _, q := range []string{"Username:", "Password:"} {
					if !say("", "334 "+base64.StdEncoding.EncodeToString([]byte(q))) {
						return
					}
					given += " " + line()
				}
			}
			p.mu.Lock()
			p.creds = append(p.creds, given)
			p.mu.Unlock()
			ok = say(verb, "235 ok")
		case "MAIL":
			m = message{from: rest, tls: secure}
			ok = say(verb, "250 ok")
		case "RCPT":
			m.to = append(m.to, rest)
			ok = say(rest, "250 ok")
		case "DATA":
			if ok = say(verb, "354 go on"); !ok || has(p.own(verb)) {
				break
			}
			var b strings.Builder
			for {
				s, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if s == ".\r\n" {
					break
				}
				b.WriteString(strings.TrimPrefix(s, "."))
			}
			m.data = b.String()
			p.mu.Lock()
			p.messages = append(p.messages, m)
			p.mu.Unlock()
			ok = say("END", "250 taken")
		case "QUIT":
			say(verb, "221 bye")
			return
		default:
			ok = say(verb, "500 what")
		}
		if !ok {
			return
		}
	}
}

func (p *post) send(ctx context.Context, mode string, e Envelope) delivery.Result {
	return New(Config{Roots: p.roots}).Send(ctx, Server{
		Address: p.l.Addr().String(), TLS: mode, Username: "ann", Password: func() (string, error) { return "hunter2", nil },
	}, e)
}

var letter = Envelope{From: "holdfast@house.test", To: []string{"ann@example.com", "bob@example.com"},
	Message: []byte("Subject: x\r\nMessage-ID: <dlv_1@house.test>\r\n\r\n.a line that begins with a dot\r\n..\r\n")}

// The same bytes arrive at each attempt, over TLS, under the credentials.
func TestDelivered(t *testing.T) {
	for _, mode := range []string{"", STARTTLS, Implicit} {
		p := newPost(t, func(p *post) { p.implicit = mode == Implicit })
		for range 2 { // I-26
			if r := p.send(t.Context(), mode, letter); !r.Delivered {
				t.Fatalf("%q: %+v", mode, r)
			}
		}
		messages, creds := p.got()
		for _, m := range messages {
			if m.data != string(letter.Message) || !m.tls || m.from != "FROM:<holdfast@house.test>" || fmt.Sprint(m.to) != "[TO:<ann@example.com> TO:<bob@example.com>]" {
				t.Errorf("%q: %+v", mode, m)
			}
		}
		if want := "PLAIN " + base64.StdEncoding.EncodeToString([]byte("\x00ann\x00hunter2")); len(messages) != 2 || creds[0] != want {
			t.Errorf("%q: credentials %q", mode, creds)
		}
	}
}

func TestLogin(t *testing.T) {
	p := newPost(t, func(p *post) { p.auth = "LOGIN" })
	r := p.send(t.Context(), "", letter)
	if _, creds := p.got(); !r.Delivered || creds[0] != "LOGIN "+base64.StdEncoding.EncodeToString([]byte("ann"))+" "+base64.StdEncoding.EncodeToString([]byte("hunter2")) {
		t.Errorf("%+v, credentials %q", r, creds)
	}
}

// A server without credentials and without TLS, as on this machine.
func TestPlain(t *testing.T) {
	p := newPost(t, bare)
	r := New(Config{}).Send(t.Context(), Server{Address: p.l.Addr().String(), TLS: None}, letter)
	if messages, creds := p.got(); !r.Delivered || len(creds) != 0 || messages[0].tls {
		t.Errorf("%+v, credentials %q", r, creds)
	}
}

// Nothing of the message and no credential goes to a server that shows no TLS, or
// none that is trusted.
func TestNoTLSNoMail(t *testing.T) {
	open := newPost(t, bare)
	if r := open.send(t.Context(), "", letter); r.Code != "tls" || r.Permanent {
		t.Errorf("without STARTTLS: %+v", r)
	}
	stranger := newPost(t)
	stranger.roots = x509.NewCertPool()
	if r := stranger.send(t.Context(), "", letter); r.Code != "tls" || r.Permanent {
		t.Errorf("not trusted: %+v", r)
	}
	for _, p := range []*post{open, stranger} {
		p.mu.Lock()
		for _, verb := range p.verbs {
			if verb == "AUTH" || verb == "MAIL" {
				t.Errorf("%s was said", verb)
			}
		}
		p.mu.Unlock()
	}
}

// I-33: what a server says of the credentials is not kept, however it says it; and
// what it says is text.
func TestServersThatTell(t *testing.T) {
	for _, password := range []string{`pass"word\with'quotes`, "schlüssel-🔑-<&>-long", "plain-token-0123456789"} {
		in, _ := json.Marshal(password)
		twice, _ := json.Marshal(string(in))
		forms := []string{password, string(in), string(twice), fmt.Sprintf("%+q", password), html.EscapeString(password), base64.StdEncoding.EncodeToString([]byte("\x00ann\x00" + password))}
		for _, verb := range []string{"MAIL", "DATA", "END"} {
			p := newPost(t)
			p.answer(verb, "550-no\xff: "+strings.Join(forms, "\r\n550-")+"\r\n550 end")
			r := New(Config{Roots: p.roots}).Send(t.Context(), Server{Address: p.l.Addr().String(), Username: "ann", Password: func() (string, error) { return password, nil }}, letter)
			if r.Code != "refused_smtp_550" || !strings.HasPrefix(string(r.Excerpt), "no\uFFFD: [redacted]") || !strings.HasSuffix(string(r.Excerpt), "end") {
				t.Errorf("%s: %+v %q", verb, r, r.Excerpt)
			}
			for _, form := range forms {
				if form = strings.Trim(form, `"`); strings.Contains(r.Detail+string(r.Excerpt), form) {
					t.Errorf("%s: %q stands in %q", verb, form, r.Excerpt)
				}
			}
		}
	}
}

// 5xx to the message is the last word, 4xx is not; what is said before the message
// is about the server.
func TestRefusals(t *testing.T) {
	for _, row := range []struct {
		verb, says, code string
		permanent        bool
	}{
		{"GREETING", "421 busy", "server_smtp_421", false}, {"GREETING", "554 no service", "server_smtp_554", false},
		{"STARTTLS", "454 not now", "server_smtp_454", false},
		{"AUTH", "535 5.7.8 no", "secret_refused", false}, {"AUTH", "454 later", "secret_refused", false},
		{"MAIL", "451 later", "server_smtp_451", false}, {"MAIL", "550 never", "refused_smtp_550", true},
		{"TO:<ann@example.com>", "450 grey", "server_smtp_450", false}, {"TO:<bob@example.com>", "550 no such user", "refused_smtp_550", true},
		{"DATA", "452 full", "server_smtp_452", false}, {"DATA", "554 no", "refused_smtp_554", true},
		{"END", "451 scan failed", "server_smtp_451", false}, {"END", "552-too\r\n552 large", "refused_smtp_552", true},
		{"MAIL", "hello", "connection", false}, {"MAIL", "", "connection", false}, {"MAIL", "\x00\xff", "connection", false},
	} {
		p := newPost(t)
		p.answer(row.verb, row.says)
		r := p.send(t.Context(), "", letter)
		if r.Delivered || r.Code != row.code || r.Permanent != row.permanent {
			t.Errorf("%s %q: %+v", row.verb, row.says, r)
		}
		if strings.Contains(r.Detail+string(r.Excerpt), "hunter2") {
			t.Errorf("%s: the result holds the password", row.verb)
		}
		if messages, _ := p.got(); strings.HasPrefix(row.verb, "TO:") && len(messages) != 0 {
			t.Errorf("%s: the message went out all the same", row.verb)
		}
	}
}

// A server that never ends its answer, or its greeting, is cut off.
func TestEndlessAnswer(t *testing.T) {
	for _, says := range []string{"250-" + strings.Repeat("x", 2<<20), strings.Repeat("250-x\r\n", 1<<18)} {
		p := newPost(t)
		p.answer("MAIL", says)
		if r := p.send(t.Context(), "", letter); r.Delivered || r.Code != "connection" {
			t.Errorf("%+v", r)
		}
	}
}

func TestHungServer(t *testing.T) {
	for _, verb := range []string{"GREETING", "EHLO", "MAIL", "END"} {
		p := newPost(t)
		p.answer(verb, "hang")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if r := p.send(ctx, "", letter); r.Code != "timeout" || r.Permanent {
			t.Errorf("%s: %+v", verb, r)
		}
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if r := p.send(ctx, "", letter); r.Code != "interrupted" {
			t.Errorf("%s cancelled: %+v", verb, r)
		}
	}
}

// A server that took the message and has no farewell is not waited for.
func TestNoFarewell(t *testing.T) {
	p := newPost(t)
	p.answer("QUIT", "hang")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if r := p.send(ctx, "", letter); !r.Delivered || time.Since(began) > 40*time.Second { // it is not waited for as long as there is time
		t.Errorf("after %v: %+v", time.Since(began), r)
	}
}

func TestTrouble(t *testing.T) {
	const gone = "127.0.0.1:1"
	ask := func(s Server) delivery.Result { return New(Config{}).Send(t.Context(), s, letter) }
	if r := ask(Server{Address: gone}); r.Code != "connection" || r.Permanent {
		t.Errorf("nobody there: %+v", r)
	}
	if r := ask(Server{Address: "nowhere"}); r.Code != "invalid" || !r.Permanent {
		t.Errorf("no address: %+v", r)
	}
	no := func() (string, error) { return "", errors.New("the environment variable X is not set") }
	if r := ask(Server{Address: gone, Username: "ann", Password: no}); r.Code != "secret_unavailable" || r.Permanent {
		t.Errorf("no password: %+v", r)
	}
	dns := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, &net.DNSError{IsNotFound: true} }})
	if r := dns.Send(t.Context(), Server{Address: "x.test:25"}, letter); r.Code != "dns" {
		t.Errorf("no name: %+v", r)
	}
}

// An address with a line end reaches no server, whoever checked it before.
func TestNoInjection(t *testing.T) {
	for _, e := range []Envelope{
		{From: "a@b.c\r\nRCPT TO:<eve@evil.test>", To: []string{"a@b.c"}}, {From: "a@b.c", To: []string{"a@b.c>\r\nRCPT TO:<eve@evil.test"}},
	} {
		p := newPost(t)
		if r := p.send(t.Context(), "", e); r.Delivered {
			t.Errorf("%+v is sent", e)
		}
		p.mu.Lock()
		if strings.Contains(fmt.Sprint(p.verbs, p.messages), "evil") {
			t.Errorf("%v %v", p.verbs, p.messages)
		}
		p.mu.Unlock()
	}
}

// Whatever a server says, an attempt ends, and is delivered only when the server
// said so.
func FuzzServer(f *testing.F) {
	f.Add([]byte("220 a\r\n250 b\r\n250 c\r\n250 d\r\n250 e\r\n354 f\r\n250 g\r\n221 h\r\n"))
	f.Add([]byte("220-a\r\n220 b\r\n502 no\r\n250 x\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		dial := func(context.Context, string, string) (net.Conn, error) {
			return &scripted{Reader: bytes.NewReader(said)}, nil
		}
		r := New(Config{Dial: dial}).Send(t.Context(), Server{Address: "x.test:25", TLS: None}, letter)
		if r.Delivered == (r.Code != "") {
			t.Errorf("%q: %+v", said, r)
		}
		if r.Delivered && bytes.Count(said, []byte("2")) < 5 {
			t.Errorf("delivered by %q", said)
		}
	})
}

// scripted is a connection whose far end has said everything already.
type scripted struct {
	io.Reader
	net.Conn
}

func (s *scripted) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error) { return len(p), nil }
func (s *scripted) Close() error                { return nil }
func (s *scripted) SetDeadline(time.Time) error { return nil }
