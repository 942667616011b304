//go:build !unix

package filetree

import (
	"os"
	"path/filepath"
)

// lock opens the file that elsewhere holds the store for one process.
func lock(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
}
