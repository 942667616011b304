package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// maxWrite bounds the content of one write_file, in bytes.
const maxWrite = 1 << 20

func writeDefinition() tool.Definition {
	return tool.Definition{
		Name:        WriteFile,
		Description: "Write a text file of the workspace: make it with its folders, or replace all of it.",
		InputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"content":{"description":"the whole text of the file","type":"string"},` +
			`"path":{"description":"path relative to the workspace","maxLength":1024,"minLength":1,"type":"string"}},` +
			`"required":["content","path"],"type":"object"}`),
		Level:    tool.Write,
		Source:   tool.Local,
		Confined: true,
	}
}

// write makes or replaces a file. The file has its old content or the new one
// at every instant, and the new one is on disk when write returns.
func (p place) write(ctx context.Context, call tool.Call) (tool.Result, error) {
	var args struct {
		Path    string
		Content *string
	}
	if err := arguments(call, &args); err != nil {
		return tool.Result{}, err
	}
	name, err := clean(args.Path)
	switch {
	case err != nil:
		return tool.Result{}, err
	case name == ".":
		return tool.Result{}, refusal(nil, "the path names the workspace itself")
	case args.Content == nil:
		return tool.Result{}, refusal(nil, "there is no content")
	case len(*args.Content) > maxWrite:
		return tool.Result{}, refusal(nil, "the content has %d bytes, at most %d are allowed", len(*args.Content), maxWrite)
	}
	free, err := p.alone(ctx)
	if err != nil {
		return tool.Result{}, err
	}
	defer free()
	dir, err := p.open(call, true)
	if err != nil {
		return tool.Result{}, err
	}
	defer dir.Close()
	mode, done := fs.FileMode(0o644), "made"
	switch info, err := dir.Lstat(name); {
	case err == nil && !info.Mode().IsRegular():
		return tool.Result{}, refusal(nil, "%s is there and is not a regular file", canonjson.QuoteName(name))
	case err == nil:
		mode, done = info.Mode().Perm(), "replaced"
	case !errors.Is(err, fs.ErrNotExist):
		return tool.Result{}, explain(err, "write", name)
	}
	if err := makeFolders(dir, path.Dir(name)); err != nil {
		return tool.Result{}, explain(err, "write", name)
	}
	if err := replace(dir, name, *args.Content, mode, done == "replaced"); err != nil {
		return tool.Result{}, explain(err, "write", name)
	}
	return tool.Result{Output: fmt.Sprintf("%s %s, %d bytes", done, name, len(*args.Content))}, nil
}

// makeFolders makes a folder and those above it, durably.
func makeFolders(dir *os.Root, name string) error {
	if info, err := dir.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := dir.MkdirAll(name, 0o755); err != nil {
		return err
	}
	for name != "." {
		name = path.Dir(name)
		if err := syncDir(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// replace writes beside the file and renames over it. exact: the mode is that
// of a file that is there, whatever the process would give a new one.
func replace(dir *os.Root, name, content string, mode fs.FileMode, exact bool) (err error) {
	temp := path.Join(path.Dir(name), ours+rand.Text())
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(temp)
		}
	}()
	_, err = f.WriteString(content)
	if err == nil && exact {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		return err
	}
	if err := syncDir(dir, path.Dir(name)); err != nil {
		return fmt.Errorf("%w: %w", tool.ErrOutcomeUnknown, err) // it is there, perhaps not after a power cut
	}
	return nil
}

// syncDir makes the names in a folder durable.
func syncDir(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
