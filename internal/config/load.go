package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// MaxBytes bounds the file.
const MaxBytes = 1 << 20

// Error is a mistake in the file, with its place. Line and Column are from 1;
// 0: the place is not known.
type Error struct {
	File         string
	Line, Column int
	Text         string
}

// Error gives file:line:column: text.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Load reads and checks a file.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return Parse(data, path, filepath.Dir(abs))
}

// Parse reads and checks the text of a file. name is for errors; relative
// paths in it begin at dir.
func Parse(data []byte, name, dir string) (*Config, error) {
	if len(data) > MaxBytes {
		return nil, &Error{File: name, Text: fmt.Sprintf("the file holds more than %d bytes", MaxBytes)}
	}
	c := &Config{dir: dir}
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.DisallowUnknownField())
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, place(name, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, &Error{File: name, Text: "the file holds more than one document"}
	}
	if err := c.check(); err != nil {
		err.File = name
		locate(data, err)
		return nil, err
	}
	return c, nil
}

// later names keys that the documentation knows and this version does not
// carry out, so that they are refused with the reason instead of as unknown.
var later = map[string]string{
	"database_url": "this version keeps its data in data_dir; PostgreSQL is not available yet",
	"bus_url":      "this version runs on one node; a bus is not available yet",
	"mcp_servers":  "MCP servers are not available yet",
	"lease":        "this version runs on one node and has no leases to set",
	"review":       "approvals are not available yet",
	"circuit":      "circuits are not available yet",
}

// place gives a YAML error its line and column.
func place(name string, err error) *Error {
	e := &Error{File: name, Text: err.Error()}
	var ye yaml.Error
	if errors.As(err, &ye) {
		e.Text = ye.GetMessage()
		if tok := ye.GetToken(); tok != nil && tok.Position != nil {
			e.Line, e.Column = tok.Position.Line, tok.Position.Column
			if why, ok := later[tok.Value]; ok {
				e.Text = tok.Value + ": " + why
			}
		}
	}
	return e
}

// locate finds the place of a checked member, named by its path of keys.
func locate(data []byte, e *Error) {
	if e.Line != 0 || e.Text == "" {
		return
	}
	path, _, ok := strings.Cut(e.Text, ": ")
	if !ok || strings.ContainsAny(path, " *") {
		return
	}
	for path != "" {
		p, err := yaml.PathString("$." + path)
		if err == nil {
			if file, err := p.ReadNode(bytes.NewReader(data)); err == nil && file != nil && file.GetToken() != nil {
				e.Line, e.Column = file.GetToken().Position.Line, file.GetToken().Position.Column
				return
			}
		}
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return
		}
		path = path[:i]
	}
}

func parseDuration(b []byte) (time.Duration, error) {
	s := strings.Trim(strings.TrimSpace(string(b)), `"'`)
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no duration such as 30s or 5m", s)
	}
	return d, nil
}

// Path resolves a path of the file against the file's folder.
func (c *Config) Path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.dir, p)
}

// Secret reads a reference. The error names the reference and never holds a value.
func (c *Config) Secret(r Ref) (string, error) {
	switch {
	case r.Secret != "":
		named, ok := c.Secrets[r.Secret]
		if !ok {
			return "", fmt.Errorf("no secret is named %q", r.Secret)
		}
		return c.Secret(named)
	case r.Env != "":
		v, ok := os.LookupEnv(r.Env)
		if !ok || v == "" {
			return "", fmt.Errorf("the environment variable %s is not set", r.Env)
		}
		return v, nil
	default:
		data, err := os.ReadFile(c.Path(r.File))
		if err != nil {
			return "", fmt.Errorf("secret file: %w", err)
		}
		if v := strings.TrimSpace(string(data)); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("the secret file %s is empty", r.File)
	}
}
