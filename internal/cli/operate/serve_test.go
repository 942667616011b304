package operate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// In a folder that others write to a link waits for the address of a daemon: what it
// leads to stays as it is.
func TestAddressFileFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "address")
	if err := os.WriteFile(victim, []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{path + ".tmp", path} {
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeWhole(path, "http://127.0.0.1:1\n"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "as it was" {
		t.Errorf("the file behind a link is %q, %v", data, err)
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if err := writeWhole(filepath.Join(dir, "none", "address"), "x"); err == nil {
		t.Error("written into no folder")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 3 {
		t.Errorf("left behind: %v %v", list, err)
	}
}

// Why a data directory is refused is told by a code.
func TestOpened(t *testing.T) {
	for code, err := range map[string]error{
		"data_dir_network": &diskfs.NetworkError{Dir: "/mnt/x", Kind: "nfs"},
		"data_dir_newer":   &sqlite.NewerError{What: "tables", Found: 9, Known: 3, Copy: "data directory"},
		"database_newer":   &postgres.NewerError{NewerError: storecore.NewerError{What: "tables", Found: 9, Known: 3, Copy: "database"}},
		"database_unfit":   &postgres.SetupError{Text: "too old"},
		"data_dir_locked":  &dirlock.Error{Dir: "/x", PID: 7},
	} {
		e := (*console.ExitError)(nil)
		if got := opened(fmt.Errorf("open store: %w", err)); !errors.As(got, &e) || e.Problem != code || e.Code != console.ExitRefused || e.Msg != err.Error() {
			t.Errorf("%s: %v", code, got)
		}
	}
	e := (*console.ExitError)(nil)
	if got := opened(fmt.Errorf("open store: %w", &postgres.UnreachableError{At: "db:5432", Why: "gone"})); !errors.As(got, &e) || e.Problem != "database_unreachable" ||
		e.Code != console.ExitUnreachable || e.Msg != "PostgreSQL at db:5432 cannot be reached: gone" {
		t.Errorf("%+v", got)
	}
	if err := errors.New("else"); opened(err) != err {
		t.Error("another error was changed")
	}
}

// The daemon's log says durations as people write them, in both forms.
func TestLoggedDurations(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var b bytes.Buffer
		newLogger(config.Log{Format: format}, &b).Info("waits", "again_in", 1500*time.Millisecond, "took_ms", 7)
		if format == "text" {
			if !strings.Contains(b.String(), "again_in=1.5s took_ms=7") {
				t.Error(b.String())
			}
			continue
		}
		var line struct {
			AgainIn string `json:"again_in"`
			TookMS  int    `json:"took_ms"`
		}
		if err := json.Unmarshal(b.Bytes(), &line); err != nil || line.AgainIn != "1.5s" || line.TookMS != 7 {
			t.Errorf("%s: %v", &b, err)
		}
	}
}
