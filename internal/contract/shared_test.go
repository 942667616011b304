package contract_test

import (
	"os"
	"path/filepath"
	"testing"
)

// shared returns a path below the folder with the test vectors: beside the
// repository, or where HOLDFAST_SHARED says. Without it the test is skipped.
func shared(t *testing.T, elem ...string) string {
	t.Helper()
	root := os.Getenv("HOLDFAST_SHARED")
	if root == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				break
			}
			if dir == filepath.Dir(dir) {
				t.Fatal("no go.mod above the test")
			}
			dir = filepath.Dir(dir)
		}
		root = filepath.Join(filepath.Dir(dir), "shared")
	}
	if _, err := os.Stat(root); err != nil {
		t.Skip("no shared test vectors at ../shared (or HOLDFAST_SHARED)")
	}
	return filepath.Join(append([]string{root}, elem...)...)
}
