package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Forget removes the folder of a session with all that is in it, durably. root
// is a Config.Root that is not shared; a folder that is not there is no error.
// Links in the folder are removed, and never followed; where a link stands in
// place of the user's folder nothing is removed, which is an error. The
// session must be at rest: a tool that still runs may make the folder anew.
func Forget(root, user, session string) error {
	dir, err := os.OpenRoot(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget workspace: %w", err)
	}
	defer dir.Close()
	own, err := below(dir, FolderName(user), false)
	if errors.Is(err, errNoFolder) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget workspace: %w", err)
	}
	defer own.Close()
	if err := own.RemoveAll(FolderName(session)); err != nil {
		return fmt.Errorf("forget workspace: %w", err)
	}
	if err := syncDir(own, "."); err != nil {
		return fmt.Errorf("forget workspace: %w", err)
	}
	return nil
}

// Open opens the folder that a session works in; nil when there is none yet.
// root is a Config.Root, shared as there. Links are not followed.
func Open(root string, shared bool, user, session string) (*os.Root, error) {
	dir, err := place{root: root, shared: shared}.open(tool.Call{UserID: user, SessionID: session}, false)
	if errors.Is(err, errNoFolder) {
		return nil, nil
	}
	return dir, err
}

// Held gives the sessions that have a folder under root, whoever's they are,
// by the ids that plain folder names are. root is a Config.Root that is not
// shared; one that is not there holds none. Links are not followed.
func Held(root string) ([]string, error) {
	dir, err := os.OpenRoot(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for workspaces: %w", err)
	}
	defer dir.Close()
	users, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("look for workspaces: %w", err)
	}
	var ids []string
	for _, user := range users {
		if !user.IsDir() {
			continue
		}
		sessions, err := fs.ReadDir(dir.FS(), user.Name())
		if err != nil {
			return nil, fmt.Errorf("look for workspaces: %w", err)
		}
		for _, s := range sessions {
			if s.IsDir() && plainID(s.Name()) {
				ids = append(ids, s.Name())
			}
		}
	}
	return ids, nil
}
