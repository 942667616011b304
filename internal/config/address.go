package config

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// Database gives the URL of the database, from where it stands.
func (c *Config) Database() (string, error) { return c.address("database_url", &c.DatabaseURL) }

func (c *Config) address(key string, a *Address) (string, error) {
	if a.Text != "" {
		return a.Text, nil
	}
	return c.Use(Reference{Key: key, Ref: a.Ref})
}

// checkAddress holds the rules of an address. Of a reference the form is looked
// at when it is read.
func (c *Config) checkAddress(key string, a *Address, schemes ...string) *Error {
	switch {
	case !a.Set():
		return nil
	case a.Text == "":
		return c.checkEarly(key, a.Ref)
	}
	u, err := url.Parse(a.Text)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return mistake(key, "want a URL that begins with %s://, or a reference to one", strings.Join(schemes, ":// or "))
	}
	if _, secret := u.User.Password(); secret || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return mistake(key, "a URL with a password is a secret: write {env: NAME} or {file: PATH}")
	}
	return nil
}

// The bounds of a lease.
const (
	DefaultLease = 15 * time.Second
	minLease     = time.Second
	maxLease     = 10 * time.Minute
)

// DefaultWait is how long a start waits for the database, maxWait how long it
// may be told to.
const (
	DefaultWait = 30 * time.Second
	maxWait     = time.Hour
)

func (c *Config) checkCluster() *Error {
	if err := c.checkAddress("database_url", &c.DatabaseURL, "postgres", "postgresql"); err != nil {
		return err
	}
	if ttl := c.Lease.TTL.Or(DefaultLease); ttl < minLease || ttl > maxLease {
		return mistake("lease.ttl", "must be from %s to %s", minLease, maxLease)
	}
	if c.Lease.TTL != 0 && !c.DatabaseURL.Set() {
		return mistake("lease.ttl", "without database_url there is one node, whose lease does not end")
	}
	if wait := c.Store.Wait.Or(0); wait < 0 || wait > maxWait {
		return mistake("store.wait", "must be from 0s to %s", maxWait)
	}
	return nil
}
