package eventlog

import (
	"context"
	"errors"
)

// SecretRow is one version of a secret slot, as it is stored: sealed.
type SecretRow struct {
	Owner   string // user; empty: the daemon's own
	Name    string
	Version int64 // from 1
	KeyID   string
	Sealed  []byte
	Hosts   string // separated by commas; empty: it is sent nowhere
	// CreatedAt and Until are event.FormatTime. Until is set when another
	// version came: until then this one counts beside it. Empty: the newest.
	CreatedAt string
	Until     string
	CreatedBy string // who set it
}

// SecretKey says how many versions are sealed under a key.
type SecretKey struct {
	ID       string
	Versions int64
}

// ErrSecretMoved: another version of the slot was written meanwhile.
var ErrSecretMoved = errors.New("the secret has another version")

// Secrets stand outside the log. What is stored is sealed: a store never sees a
// value.
type Secrets interface {
	// PutSecret writes a version, which must be the one after the newest
	// (ErrSecretMoved). Those before it count until formerUntil at the latest;
	// with "" they are deleted. A new name past quota names of its owner is
	// ErrQuota.
	PutSecret(ctx context.Context, row SecretRow, formerUntil string, quota int) error
	// Secret gives the versions of a slot, the newest first. ErrNotFound.
	Secret(ctx context.Context, owner, name string) ([]SecretRow, error)
	// ListSecrets gives the newest version of each slot by owner and name,
	// without what is sealed; Until is that of the last version before it. An
	// empty owner means all.
	ListSecrets(ctx context.Context, owner string, p Page) ([]SecretRow, string, error)
	// DeleteSecret deletes a slot with all versions. ErrNotFound.
	DeleteSecret(ctx context.Context, owner, name string) error
	// SecretKeys counts the versions by the key that they are sealed under.
	SecretKeys(ctx context.Context) ([]SecretKey, error)
	// SecretsUnder gives up to limit versions that are not sealed under a key.
	SecretsUnder(ctx context.Context, notKey string, limit int) ([]SecretRow, error)
	// ResealSecret replaces key and sealed form of a version that is still
	// sealed as was; false: it is not there any more, or not so.
	ResealSecret(ctx context.Context, row SecretRow, was []byte) (bool, error)
	// DropSecrets deletes up to limit versions whose time was over at now, and
	// says how many.
	DropSecrets(ctx context.Context, now string, limit int) (int, error)
}
