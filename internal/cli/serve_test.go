package cli

import (
	"os"
	"path/filepath"
	"testing"
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
