package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// database is a PostgreSQL of a test's own, which it may stop.
type database struct {
	t   *testing.T
	bin string
	dir string
	as  *syscall.SysProcAttr
	cmd *exec.Cmd
	url string
}

// newDatabase makes one and starts it. It wants the programs of the server, and
// not to be root, or a user postgres to be instead.
func newDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{t: t, as: &syscall.SysProcAttr{}}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, lerr := exec.LookPath("initdb"); lerr == nil {
		found = append(found, path)
	}
	if err != nil || len(found) == 0 {
		if os.Getenv("CI") != "" || os.Getenv("HOLDFAST_TEST_DATABASE") != "" {
			t.Fatal("no initdb for the test that restarts the database")
		}
		t.Skip("no initdb for the test that restarts the database")
	}
	d.bin = filepath.Dir(slices.Max(found))
	if d.dir, err = os.MkdirTemp("", "holdfast-pg"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(d.dir); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if uerr != nil || gerr != nil || os.Chown(d.dir, int(uid), int(gid)) != nil {
			t.Fatalf("the directory cannot be given to %+v", u)
		}
		d.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	init := exec.Command(filepath.Join(d.bin, "initdb"), "-D", d.dir, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--no-locale")
	init.SysProcAttr, init.Dir = d.as, d.dir
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	port := storetest.Port(t)
	d.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	conf := fmt.Sprintf("\nlisten_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = ''\n", port)
	f, err := os.OpenFile(filepath.Join(d.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(conf)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd != nil {
			d.stop(syscall.SIGQUIT)
		}
	})
	d.start()
	return d
}

// start starts the server and waits until it answers.
func (d *database) start() {
	d.t.Helper()
	d.cmd = exec.Command(filepath.Join(d.bin, "postgres"), "-D", d.dir)
	d.cmd.SysProcAttr, d.cmd.Dir = d.as, d.dir
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(*patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, d.url)
		if err == nil {
			err = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			d.t.Fatalf("the database does not start: %v", err)
		}
	}
}

// stop ends the server: SIGINT cuts connections and writes everything down,
// SIGQUIT leaves it as a crash does.
func (d *database) stop(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
	_ = d.cmd.Wait() // it says that a signal ended it
	d.cmd = nil
}
