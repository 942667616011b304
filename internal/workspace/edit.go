package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/textedit"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

func editDefinition() tool.Definition {
	return tool.Definition{
		Name: EditFile,
		Description: "Replace exact pieces of a text file of the workspace. Each `old_text` must stand in the file byte for byte, white space and " +
			"line ends included, and once only, unless `all` is set. Edits are made in their order, each in the text that the ones before it left: " +
			"all of them, or none. Gives the changed lines.",
		InputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"edits":{"items":{"additionalProperties":false,"properties":{` +
			`"all":{"description":"replace every place; else there must be one","type":"boolean"},` +
			`"new_text":{"description":"what stands there instead; may be empty","type":"string"},` +
			`"old_text":{"description":"the piece to replace, as it stands in the file","minLength":1,"type":"string"}},` +
			`"required":["new_text","old_text"],"type":"object"},"maxItems":100,"minItems":1,"type":"array"},` +
			`"path":{"description":"path relative to the workspace","maxLength":1024,"minLength":1,"type":"string"}},` +
			`"required":["edits","path"],"type":"object"}`),
		Level:    tool.Write,
		Source:   tool.Local,
		Confined: true,
	}
}

// edit replaces pieces of a file. As with write, the file has its old content
// or the new one at every instant; its permissions stay. Of what an editor
// outside writes in the instant between the last look and the replacement
// nothing is known.
func (p place) edit(ctx context.Context, call tool.Call) (tool.Result, error) {
	var args struct {
		Path  string
		Edits []struct {
			OldText *string `json:"old_text"`
			NewText *string `json:"new_text"`
			All     bool
		}
	}
	if err := arguments(call, &args); err != nil {
		return tool.Result{}, err
	}
	name, err := clean(args.Path)
	if err != nil {
		return tool.Result{}, err
	}
	shown := canonjson.QuoteName(name)
	edits := make([]textedit.Edit, len(args.Edits))
	for i, e := range args.Edits {
		if e.OldText == nil || e.NewText == nil {
			return tool.Result{}, refusal(nil, "edit %d lacks old_text or new_text", i+1)
		}
		edits[i] = textedit.Edit{Old: *e.OldText, New: *e.NewText, All: e.All}
	}
	done, err := p.alone(ctx)
	if err != nil {
		return tool.Result{}, err
	}
	defer done()
	dir, err := p.open(call, false)
	if errors.Is(err, errNoFolder) {
		return tool.Result{}, refusal(nil, "there is no %s in the workspace", shown)
	}
	if err != nil {
		return tool.Result{}, err
	}
	defer dir.Close()
	text, was, err := editable(dir, name)
	if err != nil {
		return tool.Result{}, err
	}
	r, err := textedit.Apply(text, edits, maxWrite)
	if err != nil {
		return tool.Result{}, refusal(err, "%s: %v", shown, err)
	}
	if err := swap(dir, name, r.Text, was); err != nil {
		return tool.Result{}, err
	}
	places := "1 place"
	if r.Replaced != 1 {
		places = fmt.Sprintf("%d places", r.Replaced)
	}
	return tool.Result{Output: strings.TrimSuffix(fmt.Sprintf("edited %s in %s, %d bytes now\n%s", name, places, len(r.Text), r.Summary), "\n")}, nil
}

// swap replaces a file that is still what it was when it was read.
func swap(dir *os.Root, name, text string, was fs.FileInfo) error {
	is, err := dir.Lstat(name)
	if err != nil {
		return explain(err, "edit", name)
	}
	if !os.SameFile(was, is) || !is.ModTime().Equal(was.ModTime()) || is.Size() != was.Size() {
		return refusal(nil, "%s was changed by somebody else meanwhile; nothing was written: read it again", canonjson.QuoteName(name))
	}
	if err := replace(dir, name, text, is.Mode().Perm(), true); err != nil {
		return explain(err, "edit", name)
	}
	return nil
}

// editable reads a whole file that may be edited: a regular file, no link, of
// UTF-8, of at most maxWrite bytes.
func editable(dir *os.Root, name string) (string, fs.FileInfo, error) {
	shown := canonjson.QuoteName(name)
	info, err := dir.Lstat(name)
	if err != nil {
		return "", nil, explain(err, "edit", name)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return "", nil, refusal(nil, "%s is a link; name the file itself", shown)
	}
	f, err := openRegular(dir, name)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxWrite+1))
	if err != nil {
		return "", nil, explain(err, "edit", name)
	}
	switch {
	case len(data) > maxWrite:
		return "", nil, refusal(nil, "%s has more than %d bytes, and cannot be edited", shown, maxWrite)
	case !utf8.Valid(data):
		return "", nil, refusal(nil, "%s is not UTF-8 text, and cannot be edited", shown)
	}
	return string(data), info, nil
}
