package listener

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// serve is how TLS is spoken, whoever gives the certificate.
func serve(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: append([]string{"h2", "http/1.1"}, protocols...)}
}

// Files speaks TLS with a certificate and a key in files. They are read anew when
// one of them changes; as long as what stands there cannot be used, the one before
// is.
func Files(cert, key string, log *slog.Logger) (*tls.Config, error) {
	f, err := openFiles(cert, key, log)
	if err != nil {
		return nil, err
	}
	return serve(f.get), nil
}

func openFiles(cert, key string, log *slog.Logger) (*files, error) {
	f := &files{cert: cert, key: key, log: log}
	return f, f.read()
}

// lookEvery is how often the files are looked at, at most, when somebody comes.
const lookEvery = time.Second

type files struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	now    *tls.Certificate
	seen   [2]stamp // of what was read last, good or not
	looked time.Time
}

// stamp is what tells that a file has changed.
type stamp struct {
	at   time.Time
	size int64
}

func stampOf(path string) stamp {
	info, err := os.Stat(path) // where links lead: they are how such files are exchanged
	if err != nil {
		return stamp{}
	}
	return stamp{info.ModTime(), info.Size()}
}

func (f *files) stamps() [2]stamp { return [2]stamp{stampOf(f.cert), stampOf(f.key)} }

func (f *files) read() error {
	f.seen = f.stamps()
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", f.cert, f.key, err)
	}
	f.now = &pair
	return nil
}

func (f *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.looked) >= lookEvery {
		f.looked = now
		if f.stamps() != f.seen {
			if err := f.read(); err != nil {
				f.log.Error("the certificate has changed and cannot be used; the one before is", "err", err)
			} else {
				f.log.Info("the certificate has changed", "until", f.now.Leaf.NotAfter)
			}
		}
	}
	return f.now, nil
}

// Expires is until when the certificate in a file is good.
func Expires(cert, key string) (time.Time, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return time.Time{}, err
	}
	return pair.Leaf.NotAfter, nil
}
