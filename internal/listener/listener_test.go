package listener

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// shortDir is a folder whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The socket answers to its own user, whom the kernel names; one that a dead
// daemon left is replaced, one that answers is not.
func TestUnix(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Unix(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served := <-accepted
	if served == nil {
		t.Fatal("our own connection is refused")
	}
	defer served.Close()
	if uid, err := peerUID(served.(*net.UnixConn)); err != nil || uid != os.Getuid() {
		t.Errorf("the peer is user %d: %v", uid, err)
	}
	var used *InUseError
	if _, err := Unix(path, quiet()); !errors.As(err, &used) {
		t.Errorf("a second daemon: %v", err)
	}
	raw := l.(*own).Listener.(*net.UnixListener)
	raw.SetUnlinkOnClose(false)
	l.Close()
	again, err := Unix(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// A connection of another user, or of one who cannot be found out, is closed
// without a byte, and the next one is taken. The log has a line a minute about them.
func TestUnixStrangers(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := Unix(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	o := l.(*own)
	o.log = slog.New(slog.NewTextHandler(&lines, nil))
	o.uid = 4242
	clock := time.Now()
	o.now = func() time.Time { clock = clock.Add(31 * time.Second); return clock }
	answers := []struct {
		uid int
		err error
	}{{4243, nil}, {0, errors.New("not told")}, {-1, nil}, {0, nil}, {4242, nil}}
	o.of = func(*net.UnixConn) (int, error) {
		a := answers[0]
		answers = answers[1:]
		return a.uid, a.err
	}
	got := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(got)
				return
			}
			got <- c
		}
	}()
	var all []net.Conn
	for range 5 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	for _, c := range all[:3] {
		if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
			t.Errorf("a stranger reads %q, %v", b, err)
		}
	}
	for range 2 { // root, and the user itself
		c := <-got
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	l.Close()
	<-got
	said := lines.String() // the first at once, the second with the third, a minute later
	if strings.Count(said, "were refused") != 2 || strings.Count(said, "refused=1 ") != 1 || strings.Count(said, "refused=2 ") != 1 {
		t.Errorf("log: %s", said)
	}
}

// pair writes a certificate for a name, and gives its roots.
func pair(t *testing.T, cert, key, name string) *x509.CertPool {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, kind string, der []byte) {
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(key, "PRIVATE KEY", kd)
	write(cert, "CERTIFICATE", der)
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(der))(t))
	return pool
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// shake gives the name of the certificate that is shown, and what was agreed on.
func shake(t *testing.T, conf *tls.Config, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			s := tls.Server(c, conf)
			_ = s.Handshake() // the client tells
			s.Close()
		}
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	<-done
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	return c.ConnectionState(), nil
}

// A certificate that is exchanged is shown without a new start; one that cannot be
// used is not, nor is half of one.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	if _, err := Files(cert, key, quiet()); err == nil {
		t.Fatal("no files, no error")
	}
	roots := pair(t, cert, key, "one.test")
	f, err := openFiles(cert, key, quiet())
	if err != nil {
		t.Fatal(err)
	}
	conf := serve(f.get)
	look := func() { // once a second is over
		f.mu.Lock()
		f.looked = time.Time{}
		f.mu.Unlock()
	}
	state, err := shake(t, conf, &tls.Config{RootCAs: roots, ServerName: "one.test", NextProtos: []string{"h2"}})
	if err != nil || state.NegotiatedProtocol != "h2" || state.Version != tls.VersionTLS13 {
		t.Fatalf("%+v %v", state, err)
	}
	if _, err := shake(t, conf, &tls.Config{RootCAs: roots, ServerName: "one.test", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	old, oldRoots := must(os.ReadFile(cert))(t), roots
	roots = pair(t, cert, key, "two.test")
	look()
	if _, err := shake(t, conf, &tls.Config{RootCAs: roots, ServerName: "two.test"}); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
	// A certificate that does not belong to the key, then none: the one before stays.
	for _, bad := range [][]byte{old, []byte("no certificate"), nil} {
		if err := os.WriteFile(cert, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		look()
		if _, err := shake(t, conf, &tls.Config{RootCAs: roots, ServerName: "two.test"}); err != nil {
			t.Errorf("with %.20q: %v", bad, err)
		}
	}
	if _, err := shake(t, conf, &tls.Config{RootCAs: oldRoots, ServerName: "one.test"}); err == nil {
		t.Error("the old certificate is shown")
	}
	roots = pair(t, cert, key, "three.test")
	look()
	if _, err := shake(t, conf, &tls.Config{RootCAs: roots, ServerName: "three.test"}); err != nil {
		t.Errorf("after a mistake: %v", err)
	}
}
