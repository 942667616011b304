package listener

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// authority is a stand-in that speaks ACME (RFC 8555) as far as a client needs it
// for one name, and asks for the name by TLS-ALPN-01 (RFC 8737). It checks the
// challenge, not the signatures of requests.
type authority struct {
	*httptest.Server
	t    *testing.T
	asks string // where the listener is
	key  *ecdsa.PrivateKey
	root *x509.Certificate

	mu    sync.Mutex
	thumb string // of the account's key
	valid bool   // the name was shown to be the client's
	chain []byte
	said  []string
}

func newAuthority(t *testing.T, asks string) *authority {
	a := &authority{t: t, asks: asks, key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stand-in"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.root = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))(t)))(t)
	a.Server = httptest.NewTLSServer(a)
	t.Cleanup(a.Close)
	return a
}

const challengeToken = "dG9rZW4tb2YtdGhlLWNoYWxsZW5nZQ"

func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var jws struct{ Protected, Payload string }
	var head struct {
		JWK struct{ Crv, Kty, X, Y string }
	}
	var body struct {
		CSR         string
		Identifiers []struct{ Value string }
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&jws); err != nil {
			a.t.Error(err)
		}
		for text, to := range map[string]any{jws.Protected: &head, jws.Payload: &body} {
			if raw, err := base64.RawURLEncoding.DecodeString(text); err != nil {
				a.t.Error(err)
			} else if len(raw) > 0 {
				_ = json.Unmarshal(raw, to)
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, r.Method+" "+r.URL.Path)
	w.Header().Set("Replay-Nonce", fmt.Sprintf("nonce-%d", len(a.said)))
	status := func() string {
		if a.valid {
			return "valid"
		}
		return "pending"
	}
	tell := func(code int, at string, v any) {
		if at != "" {
			w.Header().Set("Location", a.URL+at)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	challenge := map[string]any{"type": "tls-alpn-01", "url": a.URL + "/challenge", "token": challengeToken, "status": status()}
	order := map[string]any{"status": status(), "identifiers": []any{map[string]string{"type": "dns", "value": "agents.example.test"}},
		"authorizations": []string{a.URL + "/authz"}, "finalize": a.URL + "/finalize"}
	if a.valid {
		order["status"] = "ready"
	}
	if a.chain != nil {
		order["status"], order["certificate"] = "valid", a.URL+"/certificate"
	}
	switch r.URL.Path {
	case "/directory":
		tell(200, "", map[string]string{"newNonce": a.URL + "/nonce", "newAccount": a.URL + "/account", "newOrder": a.URL + "/order", "revokeCert": a.URL + "/revoke", "keyChange": a.URL + "/key"})
	case "/nonce":
		w.WriteHeader(200)
	case "/account":
		k := head.JWK
		sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":%q,"kty":%q,"x":%q,"y":%q}`, k.Crv, k.Kty, k.X, k.Y))
		a.thumb = base64.RawURLEncoding.EncodeToString(sum[:])
		tell(201, "/account/1", map[string]string{"status": "valid"})
	case "/order":
		tell(201, "/order/1", order)
	case "/order/1":
		tell(200, "/order/1", order)
	case "/authz":
		tell(200, "", map[string]any{"status": status(), "identifier": map[string]string{"type": "dns", "value": "agents.example.test"}, "challenges": []any{challenge}})
	case "/challenge":
		a.valid = a.ask()
		challenge["status"] = status()
		tell(200, "", challenge)
	case "/finalize":
		csr := must(x509.ParseCertificateRequest(must(base64.RawURLEncoding.DecodeString(body.CSR))(a.t)))(a.t)
		template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: csr.DNSNames, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(60 * 24 * time.Hour)}
		der := must(x509.CreateCertificate(rand.Reader, template, a.root, csr.PublicKey, a.key))(a.t)
		a.chain = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})...)
		order["status"], order["certificate"] = "valid", a.URL+"/certificate"
		tell(200, "/order/1", order)
	case "/certificate":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(a.chain)
	default:
		http.NotFound(w, r)
	}
}

// ask looks at the listener for the certificate of the challenge.
func (a *authority) ask() bool {
	c, err := tls.Dial("tcp", a.asks, &tls.Config{ServerName: "agents.example.test", NextProtos: []string{alpn}, InsecureSkipVerify: true})
	if err != nil {
		a.t.Errorf("the challenge: %v", err)
		return false
	}
	defer c.Close()
	sum := sha256.Sum256([]byte(challengeToken + "." + a.thumb))
	want := must(asn1.Marshal(sum[:]))(a.t)
	for _, e := range c.ConnectionState().PeerCertificates[0].Extensions {
		if e.Id.String() == "1.3.6.1.5.5.7.1.31" && bytes.Equal(e.Value, want) {
			return c.ConnectionState().NegotiatedProtocol == alpn
		}
	}
	a.t.Error("the certificate of the challenge does not show the key")
	return false
}

// A certificate of an authority comes by itself: the name is shown on the listener
// itself, nothing else listens, and a new start has the certificate without asking again.
func TestAuthority(t *testing.T) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	a := newAuthority(t, l.Addr().String())
	dir := t.TempDir()
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	var lines syncBuffer
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := ACME{Domains: []string{"agents.example.test"}, Email: "ops@example.test", Directory: a.URL + "/directory", Roots: roots, Folder: filepath.Join(dir, "acme"), Listen: l.Addr().String()}
	conf, stop, err := Authority(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: conf, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.ServeTLS(l, "", "") }()
	defer func() { srv.Close(); <-served }()
	pool := x509.NewCertPool()
	pool.AddCert(a.root)
	dial := func() error {
		c, err := tls.Dial("tcp", cfg.Listen, &tls.Config{ServerName: "agents.example.test", RootCAs: pool, NextProtos: []string{"h2"}})
		if err == nil {
			c.Close()
		}
		return err
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for err = dial(); err != nil; err = dial() {
		select {
		case <-again.C:
		case <-t.Context().Done():
			t.Fatalf("no certificate: %v; asked for %v\n%s", err, a.said, lines.String())
		}
	}
	stop()
	err = filepath.WalkDir(cfg.Folder, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(lines.String(), "PRIVATE KEY") {
		t.Error("the log holds a key")
	}
	a.mu.Lock()
	asked := len(a.said)
	a.mu.Unlock()
	conf, stop, err = Authority(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for {
		cert, err := conf.GetCertificate(&tls.ClientHelloInfo{ServerName: "agents.example.test", Conn: nowhere{}})
		if err == nil && len(cert.Certificate) == 2 {
			break
		}
		select {
		case <-again.C:
		case <-t.Context().Done():
			t.Fatalf("after a new start: %v", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.said[asked:] {
		if strings.HasSuffix(s, "/order") {
			t.Error("a new start asks for another certificate")
		}
	}
}

// nowhere is a connection that is only asked for its ends.
type nowhere struct{ net.Conn }

func (nowhere) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }
func (nowhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711} }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
