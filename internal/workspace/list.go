package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const (
	maxEntries   = 1000   // of one answer
	maxScan      = 10_000 // names read of one folder
	maxListDepth = 8
	listDepth    = 3 // when the call names none
)

func listDefinition() tool.Definition {
	return tool.Definition{
		Name: ListFiles,
		Description: "List files and folders of the workspace, `depth` levels deep, each folder sorted by name. " +
			"`truncated` says that there are more than the list holds.",
		InputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"depth":{"description":"levels of folders, 3 when absent","maximum":8,"minimum":1,"type":"integer"},` +
			`"path":{"description":"folder relative to the workspace; the workspace itself when absent","maxLength":1024,"minLength":1,"type":"string"}},` +
			`"type":"object"}`),
		OutputSchema: value(`{"additionalProperties":false,"properties":{"entries":{"items":{"additionalProperties":false,"properties":{` +
			`"path":{"type":"string"},"size":{"type":"integer"},"type":{"enum":["file","folder","link","other"],"type":"string"}},` +
			`"required":["path","type"],"type":"object"},"type":"array"},"truncated":{"type":"boolean"}},` +
			`"required":["entries","truncated"],"type":"object"}`),
		Level:    tool.Read,
		Source:   tool.Local,
		Confined: true,
	}
}

// list gives {"entries":[{"path","size","type"}…],"truncated"} in canonical
// form. Links are named and not followed.
func (p place) list(ctx context.Context, call tool.Call) (tool.Result, error) {
	var args struct {
		Path  *string
		Depth *int64
	}
	if err := arguments(call, &args); err != nil {
		return tool.Result{}, err
	}
	name, depth := ".", int64(listDepth)
	if args.Path != nil {
		var err error
		if name, err = clean(*args.Path); err != nil {
			return tool.Result{}, err
		}
	}
	if args.Depth != nil {
		depth = min(max(1, *args.Depth), maxListDepth)
	}
	l := listing{out: []byte(`{"entries":[`)}
	dir, err := p.open(call, false)
	switch {
	case err == nil:
		defer dir.Close()
		l.dir = dir
		if err := l.folder(ctx, name, int(depth)); err != nil {
			return tool.Result{}, explain(err, "list", name)
		}
	case !errors.Is(err, errNoFolder):
		return tool.Result{}, err
	case name != ".":
		return tool.Result{}, refusal(nil, "there is no %s in the workspace", canonjson.QuoteName(name))
	}
	l.out = append(l.out, `],"truncated":`...)
	l.out = strconv.AppendBool(l.out, l.truncated)
	return tool.Result{Output: string(append(l.out, '}')), JSON: true}, nil
}

// listing is an answer in the making.
type listing struct {
	dir       *os.Root
	out       []byte
	entries   int
	truncated bool
}

// folder adds the entries of a folder and, depth permitting, of those in it.
func (l *listing) folder(ctx context.Context, name string, depth int) error {
	names, err := l.names(name)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(strings.ToLower(n), ours) {
			continue
		}
		if l.entries == maxEntries {
			l.truncated = true
			return nil
		}
		full := path.Join(name, n)
		info, err := l.dir.Lstat(full)
		if errors.Is(err, fs.ErrNotExist) {
			continue // went away meanwhile
		}
		if err != nil {
			return err
		}
		l.add(full, info)
		// A folder that cannot be read is listed, and no more.
		if info.IsDir() && depth > 1 && l.folder(ctx, full, depth-1) != nil {
			l.truncated = true
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// names gives the sorted names in a folder, at most maxScan of them.
func (l *listing) names(name string) ([]string, error) {
	info, err := l.dir.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errNotFolder
	}
	f, err := l.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not hang, whatever it became
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxScan)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) == maxScan {
		l.truncated = true
	}
	slices.Sort(names)
	return names, nil
}

func (l *listing) add(name string, info fs.FileInfo) {
	if l.entries > 0 {
		l.out = append(l.out, ',')
	}
	l.entries++
	l.out = append(l.out, `{"path":`...)
	l.out = canonjson.AppendString(l.out, name)
	kind := "other"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		kind = "file"
		l.out = append(l.out, `,"size":`...)
		l.out = strconv.AppendInt(l.out, info.Size(), 10)
	case mode.IsDir():
		kind = "folder"
	case mode&fs.ModeSymlink != 0:
		kind = "link"
	}
	l.out = append(l.out, `,"type":"`+kind+`"}`...)
}
