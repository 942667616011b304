package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const (
	maxPath  = 1024 // bytes
	maxDepth = 32   // names in a path
	maxName  = 255  // bytes of a name

	maxFolder = 64  // bytes of an id that is its own folder name
	maxCoded  = 200 // bytes of a folder name in which bytes are coded

	// ours begins the names of files that are being written. They are no part
	// of the workspace: not listed, and no path leads to them.
	ours = ".holdfast-"
)

// FolderName gives the name of the folder of a user or a session. Two ids
// never share one, also where file names do not tell upper from lower case:
//
//   - An id of 1 to 64 bytes of `a-z 0-9 _ - . @` that begins with a letter or
//     digit and does not end with a dot is its own name.
//   - Any other is `~` and the id with every byte outside of `a-z 0-9 _ -` as
//     `%` and two upper-case hexadecimal digits.
//   - Where that is longer than 200 bytes, it is `~~` and the SHA-256 of the id
//     in lower-case hexadecimal.
func FolderName(id string) string {
	if plainID(id) {
		return id
	}
	const digits = "0123456789ABCDEF"
	coded := []byte{'~'}
	for i := range len(id) {
		if c := id[i]; lowerOrDigit(c) || c == '_' || c == '-' {
			coded = append(coded, c)
		} else {
			coded = append(coded, '%', digits[c>>4], digits[c&15])
		}
	}
	if len(coded) <= maxCoded {
		return string(coded)
	}
	sum := sha256.Sum256([]byte(id))
	return "~~" + hex.EncodeToString(sum[:])
}

func plainID(id string) bool {
	if id == "" || len(id) > maxFolder || !lowerOrDigit(id[0]) || id[len(id)-1] == '.' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !lowerOrDigit(c) && strings.IndexByte("_-.@", c) < 0 {
			return false
		}
	}
	return true
}

func lowerOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// place is where the workspaces are.
type place struct {
	root   string
	shared bool
	// writing holds a token while a call reads what it then replaces, or
	// writes: calls of one turn run beside each other.
	writing chan struct{}
}

// alone waits until no other call writes. done lets the next one go on.
func (p place) alone(ctx context.Context) (done func(), err error) {
	select {
	case p.writing <- struct{}{}:
		return func() { <-p.writing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var (
	errNoFolder  = errors.New("the session has no folder yet")
	errNotFolder = errors.New("not a folder")
)

// open opens the folder of the call's session. Without create, errNoFolder
// says that there is none yet.
func (p place) open(call tool.Call, create bool) (*os.Root, error) {
	dir, err := os.OpenRoot(p.root)
	if err != nil {
		return nil, refusal(err, "the workspace is not available")
	}
	if p.shared {
		return dir, nil
	}
	if call.SessionID == "" {
		dir.Close()
		return nil, refusal(nil, "the call belongs to no session")
	}
	for _, id := range []string{call.UserID, call.SessionID} {
		next, err := below(dir, FolderName(id), create)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// below opens one folder of dir. A link is refused: it could lead to the
// folder of another user, which is inside the root.
func below(dir *os.Root, name string, create bool) (*os.Root, error) {
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if !create {
			return nil, errNoFolder
		}
		if err := dir.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, refusal(err, "the workspace is not available")
		}
		if err := syncDir(dir, "."); err != nil {
			return nil, refusal(err, "the workspace is not available")
		}
		info, err = dir.Lstat(name)
	}
	if err != nil || !info.IsDir() {
		return nil, refusal(err, "the workspace is not available")
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return nil, refusal(err, "the workspace is not available")
	}
	return next, nil
}

// arguments decodes the input of a call. It was checked against the schema;
// what is checked here again is what safety rests on.
func arguments(call tool.Call, into any) error {
	if err := json.Unmarshal(call.Input, into); err != nil {
		return refusal(err, "the arguments do not fit the tool")
	}
	return nil
}

// clean checks a path of a model and brings it into its one form: names
// separated by `/`, or "." for the workspace itself.
func clean(name string) (string, error) {
	shown := canonjson.QuoteName(name)
	switch {
	case name == "":
		return "", refusal(nil, "the path is empty")
	case len(name) > maxPath:
		return "", refusal(nil, "the path is longer than %d bytes", maxPath)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", refusal(nil, "the path %s holds control characters", shown)
	case strings.Contains(name, `\`):
		return "", refusal(nil, "the path %s holds a backslash; names are separated by /", shown)
	case strings.HasPrefix(name, "/") || (len(name) > 1 && name[1] == ':'):
		return "", refusal(nil, "the path %s is not relative to the workspace", shown)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", refusal(nil, "the path %s may not hold ..", shown)
		case len(part) > maxName:
			return "", refusal(nil, "the path %s holds a name longer than %d bytes", shown, maxName)
		case strings.HasPrefix(strings.ToLower(part), ours):
			return "", refusal(nil, "the path %s holds a reserved name", shown)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > maxDepth {
		return "", refusal(nil, "the path %s is deeper than %d names", shown, maxDepth)
	}
	return path.Clean(name), nil
}

// explain turns an error of the file system into a text for the model. The
// error's own text may name folders of the host, so it is only the cause.
func explain(err error, doing, name string) error {
	shown := canonjson.QuoteName(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refusal(err, "there is no %s in the workspace", shown)
	case errors.Is(err, fs.ErrPermission):
		return refusal(err, "no permission to %s %s", doing, shown)
	case errors.Is(err, errNotFolder):
		return refusal(err, "%s is not a folder", shown)
	case errors.Is(err, syscall.ENOSPC):
		return refusal(err, "cannot %s %s: the disk is full", doing, shown)
	case errors.Is(err, tool.ErrOutcomeUnknown):
		return refusal(err, "the disk did not confirm what was done to %s", shown)
	}
	return refusal(err, "cannot %s %s: it leads out of the workspace, or is not a usable path in it", doing, shown)
}
