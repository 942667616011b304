package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

// ways are the ways in and out besides a webhook's: what each is told, it tells.
type ways struct {
	vault  *httptest.Server // the address of a webhook is a secret
	plugin string
	mail   net.Listener
	sender string // secret of a connector
	roots  string // file
}

// teller is a plugin that says what it was handed in several ways.
const teller = `#!/bin/sh
line=$(cat)
printf '%s' "$line" >> "$0.got"
printf '%s\n' "$line" >&2
printf '%s' "$line" | base64 -w0 >&2
token=$(printf '%s' "$line" | sed 's/.*"token":"\(.*\)"}}$/\1/')
printf '\n%s\n' "$token" >&2
printf '{"delivered":false,"code":"told","detail":"no: %s"}\n' "$token"
`

// newWays makes them, and gives what the configuration says of them.
func (s *scan) newWays() (w *ways, targets, more string, env []string) {
	t := s.t
	w = &ways{plugin: filepath.Join(s.dir, "teller"), roots: filepath.Join(s.dir, "roots.pem"), sender: s.plant("sender")}
	if err := os.WriteFile(w.plugin, []byte(teller), 0o700); err != nil {
		t.Fatal(err)
	}
	w.vault = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s.saw(r)
		s.mu.Lock()
		for _, c := range s.canaries {
			if strings.Contains(r.URL.Path+r.URL.Query().Get("key"), c.text) {
				delete(s.unused, c.place)
			}
		}
		s.mu.Unlock()
		rw.WriteHeader(500)
		_, _ = io.WriteString(rw, "no "+r.RequestURI+" "+r.URL.Path+" "+echo(strings.TrimPrefix(r.URL.Path, "/"))+" "+echo(r.URL.Query().Get("key")))
	}))
	t.Cleanup(w.vault.Close)
	password := s.plant("mail-password")
	w.mail = s.post(w.roots, password)
	s.unused["mail-password"] = true
	targets = fmt.Sprintf(`, plugins: {teller: {command: [teller], secrets: {token: {env: SCAN_PLUGIN}}}}, mail: {office: {address: %q, from: holdfast@house.test, username: ann, password: {env: SCAN_MAIL}, recipients: ["ann@house.test"]}}`, w.mail.Addr())
	more = `
session_templates: {event: {tools: [], reply_targets: []}}
connectors:
  bearer: {type: json, auth: {type: bearer, secrets: [{env: SCAN_SENDER}]}, event_id: {pointer: /id}, session: {template: event}}
  signed: {type: github, auth: {secrets: [{env: SCAN_SENDER}]}, session: {template: event}}
`
	return w, targets, more, []string{"SCAN_PLUGIN=" + s.plant("plugin-token"), "SCAN_MAIL=" + password, "SCAN_SENDER=" + w.sender, "SSL_CERT_FILE=" + w.roots}
}

// post is a mail server that refuses every message, and says under which credentials
// it came.
func (s *scan) post(roots, password string) net.Listener {
	t := s.t
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
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conf := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.letter(c, conf, password)
		}
	}()
	return l
}

func (s *scan) letter(c net.Conn, conf *tls.Config, password string) {
	defer func() { c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	r := bufio.NewReader(c)
	say := func(text string) { _, _ = io.WriteString(c, text+"\r\n") }
	say("220 house.test")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch verb, rest, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
		case "EHLO":
			say("250-house.test\r\n250-STARTTLS\r\n250 AUTH PLAIN")
		case "STARTTLS":
			say("220 go on")
			secure := tls.Server(c, conf)
			c, r = secure, bufio.NewReader(secure)
		case "AUTH":
			given, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(rest, "PLAIN "))
			if strings.HasSuffix(string(given), "\x00"+password) {
				s.mu.Lock()
				delete(s.unused, "mail-password")
				s.mu.Unlock()
			}
			say("235 ok")
		case "MAIL":
			say("451-not with " + rest + "\r\n451 " + echo(password))
		default:
			say("221 bye")
			return
		}
	}
}

// visit uses every way in and out, and reads what is told of it.
func (s *scan) visit(w *ways) {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s.mu.Lock()
	s.calm = true // the vendor answers
	s.mu.Unlock()
	at, key := s.plant("hook-path"), s.plant("hook-key")
	s.unused["hook-path"], s.unused["hook-key"] = true, true
	address := w.vault.URL + "/" + url.PathEscape(at) + "?key=" + url.QueryEscape(key)
	for name, req := range map[string]*api.PutSecret{
		"vault":   {Value: address, Hosts: []string{strings.TrimPrefix(w.vault.URL, "http://")}},
		"astray":  {Value: "https://elsewhere.test/" + url.PathEscape(s.plant("hook-astray")), Hosts: []string{"other.test"}},
		"nowhere": {Value: "ftp://x/" + url.PathEscape(s.plant("no-hook"))},
	} {
		if _, err := s.c.SetSecret(ctx, name, req); err != nil {
			t.Fatal(err)
		}
	}
	good := []api.ReplyTarget{{Type: "webhook", URLSecret: "vault"}, {Type: "plugin", Plugin: "teller"}, {Type: "mail", Server: "office", To: []string{"ann@house.test"}}}
	for _, name := range []string{"astray", "nowhere", "none"} {
		if _, err := s.c.CreateSession(ctx, &api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URLSecret: name}}}); err == nil {
			t.Errorf("the secret %s is taken for an address", name)
		}
	}
	for i := range good {
		if told, err := s.c.TestTarget(ctx, &good[i]); err != nil || told.Delivered || !strings.Contains(told.Excerpt, "[redacted]") {
			t.Errorf("a test of %s: %+v %v", good[i].Type, told, err)
		}
	}
	session, err := s.c.CreateSession(ctx, &api.CreateSession{ReplyTargets: good})
	if err != nil {
		t.Fatal(err)
	}
	run, _, err := s.c.Submit(ctx, session.ID, &api.SubmitRun{Content: api.Text("of the ways")})
	if err == nil {
		_, err = s.c.Wait(ctx, run.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	s.until("each way has told", func() bool {
		told = 0
		for d, err := range s.c.AllDeliveries(ctx, client.DeliveriesQuery{SessionID: session.ID}) {
			if err != nil {
				t.Fatal(err)
			}
			list, err := s.c.Attempts(ctx, d.ID, client.Page{})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list.Items {
				if strings.Contains(a.Excerpt, "[redacted]") {
					told++
					break
				}
			}
		}
		return told == len(good)
	})
	s.senders(w)
	if got, err := os.ReadFile(w.plugin + ".got"); err != nil || !strings.Contains(string(got), "cn4ry/plugin-token") {
		t.Errorf("the plugin was handed %q, %v", got, err)
	}
	for _, path := range []string{"/v1/sessions/" + session.ID + "/events?limit=1000", "/v1/targets", "/v1/secrets", "/v1/secrets/vault", "/v1/connectors", "/v1/runs", "/v1/events?limit=1000", "/v1/audit", "/metrics"} {
		s.get("GET", path, s.token, "")
	}
}

// senders send events with a secret, with another, and with the one in a wrong place.
func (s *scan) senders(w *ways) {
	sum := func(secret, body string) string {
		m := hmac.New(sha256.New, []byte(secret))
		_, _ = io.WriteString(m, body)
		return "sha256=" + hex.EncodeToString(m.Sum(nil))
	}
	post := func(want int, path, body string, header map[string]string) {
		s.t.Helper()
		r, err := http.NewRequestWithContext(s.t.Context(), "POST", s.base+path, strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		for k, v := range header {
			r.Header.Set(k, v)
		}
		res, err := s.RoundTrip(r)
		if err != nil || res.StatusCode != want {
			s.t.Errorf("POST %s: %v %v, want %d", path, res, err, want)
		}
	}
	wrong := s.plant("wrong-sender")
	const event = `{"id":"e1","zen":"visible event"}`
	bearer, github := "/v1/connectors/bearer", "/v1/connectors/signed"
	post(202, bearer, event, map[string]string{"Authorization": "Bearer " + w.sender})
	post(200, bearer, event, map[string]string{"Authorization": "Bearer " + w.sender})
	post(401, bearer, event, map[string]string{"Authorization": "Bearer " + wrong})
	post(401, bearer, event, map[string]string{"Authorization": w.sender})
	post(401, bearer, event, map[string]string{"X-Hub-Signature-256": sum(w.sender, event)})
	post(422, bearer, `{}`, map[string]string{"Authorization": "Bearer " + w.sender})
	post(400, bearer+"?token="+url.QueryEscape(w.sender), event, nil)
	post(200, github, `{"zen":"x"}`, map[string]string{"X-GitHub-Event": "ping", "X-GitHub-Delivery": "1", "X-Hub-Signature-256": sum(w.sender, `{"zen":"x"}`)})
	post(401, github, event, map[string]string{"X-GitHub-Event": "ping", "X-Hub-Signature-256": sum(wrong, event)})
	post(401, github, event, map[string]string{"X-GitHub-Event": w.sender, "X-Hub-Signature-256": w.sender})
	for _, name := range []string{"bearer", "signed"} {
		body, err := json.Marshal(&api.TestConnector{Body: event, Headers: map[string]string{"Authorization": "Bearer " + wrong, "X-GitHub-Event": "ping", "X-Hub-Signature-256": sum(wrong, event)}})
		if err != nil {
			s.t.Fatal(err)
		}
		s.get("POST", "/v1/connectors/"+name+"/test", s.token, string(body))
	}
}
