package workspace

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

// CheckRoot refuses a root from which a forbidden path can be reached, or that
// lies below one: a *problem.Error of kind invalid, code invalid_tool. Links
// are followed, so that what counts is where the paths are; below the root,
// os.Root lets no link lead out. It makes nothing.
func CheckRoot(root string, forbidden []string) error {
	at, err := real(root)
	if err != nil {
		return fmt.Errorf("workspace root: %w", err)
	}
	for _, name := range forbidden {
		other, err := real(name)
		if err != nil {
			return fmt.Errorf("workspace root: %w", err)
		}
		folder, err := real(filepath.Dir(name)) // where a link stands counts too
		if err != nil {
			return fmt.Errorf("workspace root: %w", err)
		}
		switch {
		case within(other, at), within(filepath.Join(folder, filepath.Base(name)), at):
			return problem.New(problem.Invalid, "invalid_tool", "the workspace %.200q holds %.200q, which no workspace may reach", root, name)
		case within(at, other):
			return problem.New(problem.Invalid, "invalid_tool", "the workspace %.200q lies in %.200q, which no workspace may reach", root, name)
		}
	}
	return nil
}

// real gives the absolute path without links of what there is of a path; names
// that do not exist yet follow as they are.
func real(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	rest := ""
	for at := abs; ; at = filepath.Dir(at) {
		found, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(found, rest), nil
		}
		// A link that leads nowhere yet is not followed by a later name either:
		// it cannot be told where it will lead.
		if info, lerr := os.Lstat(at); lerr == nil && info.Mode()&os.ModeSymlink != 0 {
			return "", err
		}
		if !os.IsNotExist(err) || at == filepath.Dir(at) {
			return "", err
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// within says whether a path is a folder or is below it. What exists is
// compared as the file system does, where one folder may have several names
// (upper and lower case, mounts).
func within(name, folder string) bool {
	info, err := os.Stat(folder)
	for {
		if name == folder {
			return true
		}
		if here, herr := os.Stat(name); err == nil && herr == nil && os.SameFile(here, info) {
			return true
		}
		up := filepath.Dir(name)
		if up == name {
			return false
		}
		name = up
	}
}
