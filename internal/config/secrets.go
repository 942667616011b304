package config

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// NamedSecret is a reference with a name.
type NamedSecret struct {
	// Env names an environment variable.
	Env string `yaml:"env"`
	// File is the path of a file that holds the secret; white space at its ends does not count.
	File string `yaml:"file"`
	// Hosts lists where the secret may be sent: api.example.com, with a port or
	// without, or *.example.com for the names below it. A use for another host is
	// refused (secret_not_for_host) before anything is sent. Absent: wherever
	// this file sends it. A key that only signs is sent nowhere.
	Hosts []string `yaml:"hosts"`
	// Shared lets the sessions of every user name it in their reply targets.
	// Default: those of the user default only, who is the operator.
	Shared bool `yaml:"shared"`
}

// Ref is the reference itself.
func (n NamedSecret) Ref() Ref { return Ref{Env: n.Env, File: n.File} }

// Bound gives the hosts that the secret may be sent to; not bound: any.
func (n NamedSecret) Bound() (hosts secret.Hosts, bound bool) {
	hosts, _ = secret.ParseHosts(n.Hosts) // check has told what is wrong
	return hosts, n.Hosts != nil
}

// MasterKey is what secret slots are sealed with: 32 bytes, written as hfmk_ and
// base64 (holdfast secrets new-key makes one, openssl rand -base64 32 too).
// Several nodes share one.
type MasterKey struct {
	// File holds the key, with mode 0600 or stricter. Default: the path of
	// data_dir with .key behind it, made at the first start; it stands beside the
	// data directory, so that a copy of that holds no key. With database_url none
	// is made.
	File string `yaml:"file"`
	// Env names an environment variable that holds the key, instead of a file.
	Env string `yaml:"env"`
	// Former are references to keys of former times: what they sealed is still
	// read. holdfast secrets rekey seals it anew under the current one.
	Former []Ref `yaml:"former"`
	// KMS names a program that keeps the key wrapped: file, env and former then
	// hold what it wrapped, and only this process's memory holds the key.
	KMS KMS `yaml:"kms"`
}

// KMS is a program that wraps and unwraps the master key.
type KMS struct {
	// Command is the program and its arguments; it is not given to a shell. It
	// reads one JSON object from its input, {"op":"unwrap","wrapped":TEXT} or
	// {"op":"wrap","key":TEXT}, writes {"key":TEXT} or {"wrapped":TEXT}, and ends
	// with exit code 0.
	Command []string `yaml:"command"`
	// PassEnv names the environment variables that it is given besides PATH and HOME.
	PassEnv []string `yaml:"pass_env"`
	// Timeout of one call. Default 10s.
	Timeout Duration `yaml:"timeout"`
}

// Slots is about secrets that are set over the API.
type Slots struct {
	// FormerFor is how long the version before counts beside a new one, so that
	// both sign. One setting can say otherwise, 0s after a leak. At most 168h.
	// Default 24h.
	FormerFor Duration `yaml:"former_for"`
	// PerOwner is how many slots a user may have, and the daemon itself. Default 200.
	PerOwner int `yaml:"per_owner"`
}

const (
	maxFormerFor  = 7 * 24 * time.Hour
	maxKMSTimeout = 5 * time.Minute
	maxPerOwner   = 10_000
)

// DefaultMasterKeyFile is where the master key stands that the daemon makes.
func (c *Config) DefaultMasterKeyFile() string { return c.Path(c.DataDir) + ".key" }

// MasterKeyFile is the file of the current master key; empty: there is none.
func (c *Config) MasterKeyFile() string {
	switch {
	case c.MasterKey.File != "":
		return c.Path(c.MasterKey.File)
	case c.MasterKey.Env != "" || c.DatabaseURL.Set():
		return ""
	}
	return c.DefaultMasterKeyFile()
}

func (c *Config) checkSecrets() *Error {
	for _, name := range sorted(c.Secrets) {
		path, n := "secrets."+name, c.Secrets[name]
		if !nameForm.MatchString(name) {
			return mistake(path, "a secret's name is [A-Za-z0-9_-]{1,64}")
		}
		if err := c.checkRef(path, n.Ref(), false); err != nil {
			return err
		}
		if _, err := secret.ParseHosts(n.Hosts); err != nil {
			return mistake(path+".hosts", "%s", problem.Of(err).Detail)
		}
	}
	m := c.MasterKey
	if m.File != "" && m.Env != "" {
		return mistake("master_key", "the current key is one: file or env; others stand in former")
	}
	for i, ref := range m.Former {
		if ref.Secret != "" {
			return mistake(fmt.Sprintf("master_key.former[%d]", i), "the master key is referred to by env or file")
		}
		if err := c.checkRef(fmt.Sprintf("master_key.former[%d]", i), ref, false); err != nil {
			return err
		}
	}
	if len(m.KMS.Command) == 0 && (len(m.KMS.PassEnv) > 0 || m.KMS.Timeout != 0) {
		return mistake("master_key.kms", "command is missing")
	}
	if m.KMS.Timeout.Or(0) > maxKMSTimeout {
		return mistake("master_key.kms.timeout", "must be at most %s", maxKMSTimeout)
	}
	if c.Slots.FormerFor.Or(0) > maxFormerFor {
		return mistake("slots.former_for", "must be at most %s", maxFormerFor)
	}
	if n := c.Slots.PerOwner; n < 0 || n > maxPerOwner {
		return mistake("slots.per_owner", "must be from 1 to %d", maxPerOwner)
	}
	return nil
}

// Slotted says whether a reference names a secret that the configuration does
// not have, and that a slot must hold therefore.
func (c *Config) Slotted(r Ref) bool {
	_, named := c.Secrets[r.Secret]
	return r.Secret != "" && !named
}
