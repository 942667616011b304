package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/tokens"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// TokenPath is where the first start writes the admin token.
func TokenPath(cfg *config.Config) string {
	return filepath.Join(cfg.Path(cfg.DataDir), "admin.token")
}

// firstID is what the drawn admin token of a first start has for an id: the same
// in every process, so that of several nodes which begin on an empty database at
// one moment the store lets one add its token.
var firstID [8]byte

// FirstToken makes the admin token of the first start: given, when that is not
// empty, else drawn and written to a file of mode 0600, whose path is returned.
// Where tokens exist, or another node makes the first one at this moment, it does
// nothing.
func (d *Daemon) FirstToken(ctx context.Context, given string) (path string, err error) {
	given = strings.TrimSpace(given)
	have, err := d.store.ListTokens(ctx)
	if err != nil || len(have) > 0 {
		if hash := tokens.Hash(given); err == nil && given != "" && !slices.ContainsFunc(have, func(t eventlog.TokenRow) bool { return t.Hash == hash }) {
			d.log.Warn("HOLDFAST_TOKEN is not a token of this daemon: only a first start makes it one, and there are tokens already; make another one with holdfast token create, for which this user needs none over a unix socket (serve --listen unix:PATH)")
		}
		return "", err
	}
	if given != "" {
		_, row, err := tokens.New(d.random, "first", "admin", "", time.Now())
		if err != nil {
			return "", err
		}
		if len(given) < 16 {
			return "", errors.New("HOLDFAST_TOKEN must hold at least 16 characters")
		}
		row.Hash = tokens.Hash(given)
		if err := d.store.AddToken(ctx, row); err != nil {
			have, lerr := d.store.ListTokens(ctx)
			if lerr == nil && len(have) > 0 { // another node began at the same moment
				return "", nil
			}
			return "", err
		}
		return "", nil
	}
	text, row, err := tokens.New(io.MultiReader(bytes.NewReader(firstID[:]), d.random), "first", "admin", "", time.Now())
	if err != nil {
		return "", err
	}
	path = TokenPath(d.cfg)
	if err := writePrivate(path, text+"\n"); err != nil {
		return "", err
	}
	if err := d.store.AddToken(ctx, row); err != nil {
		have, lerr := d.store.ListTokens(ctx)
		if lerr == nil && len(have) > 0 { // another node began at the same moment
			err = nil
		}
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// AuditStart records that this daemon begins to work, and with what. It is called
// when it listens. A database without any room keeps no daemon from starting, which
// serves what can be read and takes what makes room: the record is made when there is some.
func (d *Daemon) AuditStart(ctx context.Context) error {
	err := d.auditStart(ctx)
	if !errors.Is(err, eventlog.ErrFull) {
		return err
	}
	d.log.Error("no space is left for the store: the start is recorded when there is room; until then what can be read is served", "err", err)
	d.chores.unrecorded = true
	return nil
}

func (d *Daemon) auditStart(ctx context.Context) error {
	how := ""
	switch {
	case d.cfg.TLS.ACME != nil:
		how = "acme"
	case d.cfg.TLS.Set():
		how = "files"
	case d.cfg.BehindProxy:
		how = "proxy"
	}
	return eventlog.Audited{Log: d.store}.Audit(ctx, &event.AuditStarted{
		Config: d.cfg.Digest(), Listen: d.cfg.Listen, Node: d.node.Name, TLS: how, Version: version.String(),
	})
}

var _ eventlog.Tokens = Store(nil)
