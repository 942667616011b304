// Package workspace holds the tools that list, read, search, write and edit
// files of a session's own folder. What they can reach ends at that folder: paths are
// names below it, and the operating system refuses whatever a link would lead
// out of it (os.Root).
package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Names of the tools.
const (
	EditFile    = "edit_file"
	ListFiles   = "list_files"
	ReadFile    = "read_file"
	SearchFiles = "search_files"
	WriteFile   = "write_file"
)

// DefaultMaxRead bounds the text that one read_file gives, in bytes.
const DefaultMaxRead = 256 << 10

// Config says where the files lie and which tools there are.
type Config struct {
	// Root is the folder that holds all workspaces. It is made when missing. A
	// session's own folder below it is {user}/{session}, each in the form of
	// FolderName, and is made by the session's first write.
	Root string
	// Shared gives every session Root itself: for work on one set of files.
	Shared bool
	// Allow names the tools to offer; empty: all of them.
	Allow []string
	// MaxRead bounds the text of one read_file, in bytes; 0: DefaultMaxRead.
	MaxRead int
	// Forbidden are files and folders that no workspace may reach: a Root that
	// is one of them, holds one or lies in one is refused. They need not exist.
	Forbidden []string
}

// New makes the tools, in the order of their names. The error is a
// *problem.Error of kind invalid, code invalid_tool, when the configuration is
// wrong, and any other when the folder cannot be made.
func New(config Config) ([]tool.Tool, error) {
	if config.Root == "" {
		return nil, problem.New(problem.Invalid, "invalid_tool", "the workspace has no root")
	}
	if config.MaxRead <= 0 {
		config.MaxRead = DefaultMaxRead
	}
	all := []string{EditFile, ListFiles, ReadFile, SearchFiles, WriteFile}
	for _, name := range config.Allow {
		if !slices.Contains(all, name) {
			return nil, problem.New(problem.Invalid, "invalid_tool", "the workspace has no tool %.80q; it has %s", name, strings.Join(all, ", "))
		}
	}
	root, err := filepath.Abs(config.Root) // the process may change its folder later
	if err != nil {
		return nil, fmt.Errorf("workspace root: %w", err)
	}
	if err := CheckRoot(root, config.Forbidden); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("workspace root: %w", err)
	}
	id, err := identity(root)
	if err != nil {
		return nil, fmt.Errorf("workspace root: %w", err)
	}
	p := place{root: root, shared: config.Shared, writing: make(chan struct{}, 1)}
	var tools []tool.Tool
	for _, t := range []*fileTool{
		{definition: editDefinition(), run: p.edit},
		{definition: listDefinition(), run: p.list},
		{definition: readDefinition(), run: func(ctx context.Context, call tool.Call) (tool.Result, error) {
			return p.read(ctx, call, config.MaxRead)
		}},
		{definition: searchDefinition(), run: func(ctx context.Context, call tool.Call) (tool.Result, error) {
			return p.search(ctx, call, standardBounds)
		}},
		{definition: writeDefinition(), run: p.write},
	} {
		if t.root = id; len(config.Allow) == 0 || slices.Contains(config.Allow, t.definition.Name) {
			tools = append(tools, t)
		}
	}
	return tools, nil
}

// fileTool is one of the tools.
type fileTool struct {
	definition tool.Definition
	root       string // its identity
	run        func(context.Context, tool.Call) (tool.Result, error)
}

var _ tool.Rooted = (*fileTool)(nil)

// Root gives the identity of the root: what stands in its file rootFile.
func (t *fileTool) Root() string { return t.root }

// Definition gives what the tool declares.
func (t *fileTool) Definition() tool.Definition { return t.definition }

// Run does one call. Only work on the local file system is done, which a
// context cannot interrupt; it is looked at before and between.
func (t *fileTool) Run(ctx context.Context, call tool.Call) (tool.Result, error) {
	if err := ctx.Err(); err != nil {
		return tool.Result{}, err
	}
	return t.run(ctx, call)
}

// value is for the schemas of this package, which are canonical as written (a test checks it).
func value(text string) canonjson.Value { return canonjson.Value(text) }

// refusal is a failure with a text for the model.
func refusal(cause error, format string, args ...any) error {
	return tool.NewError(fmt.Sprintf(format, args...), cause)
}
