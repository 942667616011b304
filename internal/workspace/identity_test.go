package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/tool"
)

func rootOf(t *testing.T, root string) (string, error) {
	t.Helper()
	tools, err := New(Config{Root: root})
	if err != nil {
		return "", err
	}
	return tools[0].(tool.Rooted).Root(), nil
}

// A root is itself wherever it is used and after it has moved; another is
// another, also when many nodes begin at once.
func TestRootIdentity(t *testing.T) {
	base := t.TempDir()
	one := filepath.Join(base, "one")
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = rootOf(t, one); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || !validIdentity(id) {
			t.Fatalf("identities %v", ids)
		}
	}
	if err := os.Rename(one, filepath.Join(base, "moved")); err != nil {
		t.Fatal(err)
	}
	if id, err := rootOf(t, filepath.Join(base, "moved")); err != nil || id != ids[0] {
		t.Errorf("%q after it moved, %v", id, err)
	}
	if id, err := rootOf(t, one); err != nil || id == ids[0] {
		t.Errorf("another root is %q, %v", id, err)
	}
	entries, err := os.ReadDir(one)
	if err != nil || len(entries) != 1 || entries[0].Name() != rootFile {
		t.Errorf("left in the root: %v, %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(one, rootFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rootOf(t, one); err == nil || !strings.Contains(err.Error(), rootFile) {
		t.Errorf("a broken identity: %v", err)
	}
}
