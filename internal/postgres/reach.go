package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// UnreachableError says that no server could be spoken to, which may pass. It
// holds no user and no password.
type UnreachableError struct {
	At  string // host and port, several with commas between
	Why string
	err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("PostgreSQL at %s cannot be reached: %s", e.At, e.Why)
}

func (e *UnreachableError) Unwrap() error { return e.err }

// parseURL reads the URL of a database. What the driver says of one that it
// cannot read may hold a piece of the password, so that it is asked once more
// without; where there is no telling which piece that is, nothing is repeated.
func parseURL(text string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err == nil && (strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")) {
		return cfg, nil
	}
	u, uerr := url.Parse(text)
	if uerr != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, setup("the database URL cannot be read: want postgres://user:password@host:port/name, with %%-escapes for special characters of the password")
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	q.Del("password")
	q.Del("sslpassword")
	u.RawQuery = q.Encode()
	var wrong *pgconn.ParseConfigError
	if _, err := pgxpool.ParseConfig(u.String()); errors.As(err, &wrong) {
		_, why, _ := strings.Cut(wrong.Error(), "`: ")
		return nil, setup("the database URL cannot be read: %s", why)
	} else if err != nil {
		return nil, setup("the database URL cannot be read: %v", err)
	}
	return nil, setup("the database URL cannot be read: its password has a form that no server takes")
}

// hosts names the servers of a configuration.
func hosts(cc *pgx.ConnConfig) string {
	list := []string{}
	add := func(host string, port uint16) {
		at := host
		if !strings.HasPrefix(host, "/") {
			at = net.JoinHostPort(host, fmt.Sprint(port))
		}
		if !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	add(cc.Host, cc.Port)
	for _, f := range cc.Fallbacks {
		add(f.Host, f.Port)
	}
	return strings.Join(list, ", ")
}

// refusals are the codes of a server that takes no connection of this kind,
// whenever it is asked: a wrong password, a database or a role that is not there.
var refusals = []string{"28000", "28P01", "3D000", "42501", "0A000"}

// connectErr says why no connection was made: a *SetupError where the server
// refuses for good, else an *UnreachableError.
func connectErr(ctx context.Context, cc *pgx.ConnConfig, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if slices.Contains(refusals, pg.Code) {
			return errors.Join(setup("PostgreSQL at %s refuses the connection: %s (%s); see the user, the password and the name of the database in the database URL",
				hosts(cc), pg.Message, pg.Code), err)
		}
		return &UnreachableError{hosts(cc), fmt.Sprintf("the server says: %s (%s)", pg.Message, pg.Code), err}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var dns *net.DNSError
	var timeout net.Error
	why := ""
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "nobody listens there (connection refused)"
	case errors.Is(err, syscall.ENOENT):
		why = "there is no such socket"
	case errors.As(err, &dns):
		why = "the host has no address"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		why = "no answer came in time"
	default: // flat, and without what the driver says of user and database
		text := strings.Join(strings.Fields(err.Error()), " ")
		if _, rest, ok := strings.Cut(text, "`: "); ok {
			text = rest
		}
		why = text
	}
	return &UnreachableError{hosts(cc), why, err}
}
