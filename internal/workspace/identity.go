package workspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// rootFile holds the identity of a root. Its name begins as those of files that
// are no part of the workspace.
const rootFile = ours + "root"

// identity tells a root from any other: nodes whose roots have the same one see
// the same files. It is made with the first use of a root, and moves with it.
func identity(root string) (string, error) {
	path := filepath.Join(root, rootFile)
	for range 3 {
		data, err := os.ReadFile(path)
		switch {
		case err == nil && validIdentity(strings.TrimSpace(string(data))):
			return strings.TrimSpace(string(data)), nil
		case err == nil:
			return "", fmt.Errorf("%s does not hold the identity of a workspace root; delete it to have a new one made: sessions that work in this root go on only where it is the same", path)
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		if err := makeIdentity(root, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s comes and goes", path)
}

// Identity reads the identity of a root, by which nodes know whether theirs is the
// same. Empty: it has none yet; the first use makes it.
func Identity(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, rootFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if id := strings.TrimSpace(string(data)); err != nil || validIdentity(id) {
		return id, err
	}
	return "", fmt.Errorf("%s does not hold the identity of a workspace root", filepath.Join(root, rootFile))
}

// makeIdentity writes an identity in one step: of two nodes that begin at once
// one is first.
func makeIdentity(root, path string) error {
	f, err := os.CreateTemp(root, ours+"root-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString("root_" + strings.ToLower(rand.Text()) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

func validIdentity(id string) bool {
	rest, ok := strings.CutPrefix(id, "root_")
	return ok && len(rest) >= 20 && len(rest) <= 64 && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
