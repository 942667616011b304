package workspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// maxSkip bounds how far into a file an offset may lead, in bytes.
const maxSkip = 64 << 20

func readDefinition() tool.Definition {
	return tool.Definition{
		Name: ReadFile,
		Description: "Read a text file of the workspace. Gives the text from line `offset` (from 1), at most `limit` lines; " +
			"a note at the end says when there is more.",
		InputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"limit":{"description":"lines to read at most; all when absent","minimum":1,"type":"integer"},` +
			`"offset":{"description":"first line to read, from 1","minimum":1,"type":"integer"},` +
			`"path":{"description":"path relative to the workspace","maxLength":1024,"minLength":1,"type":"string"}},` +
			`"required":["path"],"type":"object"}`),
		Level:    tool.Read,
		Source:   tool.Local,
		Confined: true,
	}
}

// read gives lines of a file as valid UTF-8, with a note when not all of the
// rest was given.
func (p place) read(ctx context.Context, call tool.Call, limit int) (tool.Result, error) {
	var args struct {
		Path   string
		Offset *int64
		Limit  *int64
	}
	if err := arguments(call, &args); err != nil {
		return tool.Result{}, err
	}
	name, err := clean(args.Path)
	if err != nil {
		return tool.Result{}, err
	}
	first, lines := int64(1), int64(-1)
	if args.Offset != nil {
		first = max(1, *args.Offset)
	}
	if args.Limit != nil {
		lines = max(1, *args.Limit)
	}
	dir, err := p.open(call, false)
	if errors.Is(err, errNoFolder) {
		return tool.Result{}, refusal(nil, "there is no %s in the workspace", canonjson.QuoteName(name))
	}
	if err != nil {
		return tool.Result{}, err
	}
	defer dir.Close()
	f, err := openRegular(dir, name)
	if err != nil {
		return tool.Result{}, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 64<<10)
	if err := skipLines(ctx, in, first-1); err != nil {
		if errors.Is(err, io.EOF) {
			return tool.Result{}, refusal(nil, "%s has no line %d", canonjson.QuoteName(name), first)
		}
		if errors.Is(err, errTooFar) {
			return tool.Result{}, refusal(nil, "line %d of %s lies beyond the first %d bytes", first, canonjson.QuoteName(name), maxSkip)
		}
		return tool.Result{}, explain(err, "read", name)
	}
	text, err := takeLines(in, first, lines, limit)
	if err != nil {
		return tool.Result{}, explain(err, "read", name)
	}
	return tool.Result{Output: text}, nil
}

// openRegular opens a file for reading. Opening a FIFO or a device could hang
// or do something, so what it is is asked first, and again once it is open.
func openRegular(dir *os.Root, name string) (*os.File, error) {
	info, err := dir.Stat(name)
	if err != nil {
		return nil, explain(err, "read", name)
	}
	if info.IsDir() {
		return nil, refusal(nil, "%s is a folder", canonjson.QuoteName(name))
	}
	if !info.Mode().IsRegular() {
		return nil, refusal(nil, "%s is not a regular file", canonjson.QuoteName(name))
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, explain(err, "read", name)
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, refusal(err, "%s is not a regular file", canonjson.QuoteName(name))
	}
	return f, nil
}

var errTooFar = errors.New("too far into the file")

// skipLines reads over n lines; io.EOF says that there is nothing after them.
func skipLines(ctx context.Context, in *bufio.Reader, n int64) error {
	if n == 0 {
		return nil // an empty file has an empty first line
	}
	for read := 0; n > 0; {
		part, err := in.ReadSlice('\n')
		read += len(part)
		switch {
		case err == nil:
			n--
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
		if read > maxSkip {
			return errTooFar
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	_, err := in.Peek(1)
	return err
}

// takeLines reads at most n lines (all when negative) and at most limit bytes
// of text, from line first on.
func takeLines(in *bufio.Reader, first, n int64, limit int) (string, error) {
	var raw []byte
	line := first // the one being read
	for n != 0 && len(raw) <= limit {
		part, err := in.ReadSlice('\n')
		raw = append(raw, part...)
		switch {
		case err == nil:
			line++
			n--
		case errors.Is(err, io.EOF):
			n = 0
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
	text, replaced := canonjson.ReplaceInvalid(string(raw))
	note := ""
	if len(text) > limit {
		text = canonjson.CutRunes(text, limit)
		// Whole lines, so that the next read goes on where this one ends; a
		// single line that is too long is cut inside.
		next := first + int64(strings.Count(text, "\n"))
		if end := strings.LastIndexByte(text, '\n'); end >= 0 {
			text = text[:end+1]
			note = fmt.Sprintf("cut after %d bytes; go on with offset %d", len(text), next)
		} else {
			note = fmt.Sprintf("line %d is cut after %d bytes; the next line has offset %d", first, len(text), first+1)
		}
	} else if _, err := in.Peek(1); err == nil {
		note = fmt.Sprintf("there is more; go on with offset %d", line)
	}
	if replaced {
		note = strings.TrimPrefix(note+"; bytes that are not UTF-8 were replaced", "; ")
	}
	if note == "" {
		return text, nil
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + "[" + note + "]", nil
}
