// Package listener makes the sockets on which the daemon listens: a unix socket
// that answers to the daemon's own user alone, and TLS with certificates that are
// read again when they change, or that an authority gives.
package listener

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// InUseError says that another process listens on the socket.
type InUseError struct{ Path string }

func (e *InUseError) Error() string { return "another process listens on unix:" + e.Path }

// Unix listens on a socket of mode 0600, from its first instant on, and takes
// connections of its own user and of root only: the mode of a file says who may
// open it, and may be changed by whoever owns the folder; the kernel says who did.
// A socket that nobody answers was left by a daemon that is gone, and is replaced.
func Unix(path string, log *slog.Logger) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return nil, &InUseError{path}
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := listenPrivate(path)
	if err != nil {
		return nil, err
	}
	return &own{Listener: l, uid: os.Geteuid(), of: peerUID, log: log, now: time.Now}, nil
}

// own is a listener that takes connections of one user, and of root.
type own struct {
	net.Listener
	uid int
	of  func(*net.UnixConn) (uid int, err error)
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	told    time.Time // of a stranger
	refused int       // since then
}

// tellEvery bounds the lines about strangers, who may come as often as they like.
const tellEvery = time.Minute

// Accept implements net.Listener. A stranger's connection is closed without a word,
// and told of once a minute at most.
func (l *own) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err = l.check(c); err == nil {
			return c, nil
		}
		c.Close()
		l.tell(err)
	}
}

// tell counts a refusal, and says so when nothing was said for a minute.
func (l *own) tell(err error) {
	l.mu.Lock()
	l.refused++
	n, now := l.refused, l.now()
	if !l.told.IsZero() && now.Sub(l.told) < tellEvery {
		l.mu.Unlock()
		return
	}
	l.told, l.refused = now, 0
	l.mu.Unlock()
	l.log.Warn("connections to the socket were refused", "refused", n, "err", err)
}

func (l *own) check(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("not a connection of a unix socket")
	}
	uid, err := l.of(u)
	if err != nil {
		return fmt.Errorf("who opened it cannot be found out: %w", err)
	}
	if uid != l.uid && uid != 0 {
		return fmt.Errorf("user %d opened it; it answers to user %d and root", uid, l.uid)
	}
	return nil
}
