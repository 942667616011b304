package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ACME says from whom to get a certificate.
type ACME struct {
	Domains   []string
	Email     string
	Directory string // empty: Let's Encrypt
	Roots     string // file of roots (PEM) for the directory itself; empty: the system's
	Folder    string // holds the account and the certificates
	Listen    string // where the daemon listens
}

// alpn is the protocol by which the authority asks for a name (RFC 8737).
const alpn = "acme-tls/1"

// Authority speaks TLS with certificates of an authority, gets them in the
// background, and renews them when a third of their time is left, until stop is
// called. Until the first is there handshakes fail. Several nodes each have their
// own.
func Authority(cfg ACME, log *slog.Logger) (conf *tls.Config, stop func(), err error) {
	_, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, nil, err
	}
	var roots *x509.CertPool
	if cfg.Roots != "" {
		pem, err := os.ReadFile(cfg.Roots)
		if err != nil {
			return nil, nil, fmt.Errorf("roots of the authority: %w", err)
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(pem) {
			return nil, nil, errors.New("roots of the authority: " + cfg.Roots + " holds no certificate")
		}
	}
	lines := zap.New(toSlog{log})
	var magic *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return magic, nil }, Logger: lines,
	})
	magic = certmagic.New(cache, certmagic.Config{Storage: &certmagic.FileStorage{Path: cfg.Folder}, Logger: lines})
	magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(magic, certmagic.ACMEIssuer{
		CA: cfg.Directory, Email: cfg.Email, Agreed: true, TrustedRoots: roots, Logger: lines,
		// Names are asked for on port 443, which comes to our listener; port 80 is not ours.
		DisableHTTPChallenge: true, AltTLSALPNPort: number,
	})}
	ctx, cancel := context.WithCancel(context.Background())
	if err := magic.ManageAsync(ctx, cfg.Domains); err != nil {
		cancel()
		cache.Stop()
		return nil, nil, fmt.Errorf("certificates of an authority: %w", err)
	}
	return serve(magic.GetCertificate, alpn), func() { cancel(); cache.Stop() }, nil
}

// toSlog writes the lines of the library into our log, as debug what is not a warning.
type toSlog struct{ log *slog.Logger }

func (t toSlog) Enabled(zapcore.Level) bool { return true }

func (t toSlog) With(fields []zapcore.Field) zapcore.Core {
	return toSlog{t.log.With(attrs(fields)...)}
}

func (t toSlog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, t)
}

func (t toSlog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelDebug
	switch {
	case e.Level >= zapcore.ErrorLevel:
		level = slog.LevelError
	case e.Level >= zapcore.WarnLevel:
		level = slog.LevelWarn
	}
	t.log.Log(context.Background(), level, "certificates: "+e.Message, attrs(fields)...)
	return nil
}

func (t toSlog) Sync() error { return nil }

// loud are the fields that are told: what else there is may hold keys of an account.
var loud = []string{"identifier", "identifiers", "error", "ca", "challenge_type", "attempt", "retrying_in", "expiration", "remaining"}

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		if slices.Contains(loud, f.Key) {
			f.AddTo(enc)
		}
	}
	var out []any
	for k, v := range enc.Fields {
		out = append(out, k, v)
	}
	return out
}
