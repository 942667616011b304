package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"github.com/holdfast-dev/holdfast/internal/problem"
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
	c := &Config{dir: dir, name: name, text: data}
	if file, err := parser.ParseBytes(data, 0); err != nil {
		return nil, place(name, err)
	} else if len(file.Docs) > 0 {
		if err := shape(file.Docs[0].Body, reflect.TypeFor[Config](), ""); err != nil {
			err.File = name
			return nil, err
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.DisallowUnknownField())
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, place(name, err)
	}
	c.dir, c.name, c.text = dir, name, data // a file without content has emptied c
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, &Error{File: name, Text: "the file holds more than one document"}
	}
	if err := c.check(); err != nil {
		return nil, c.placed(err)
	}
	return c, nil
}

// Mistake is a mistake at the key of a path such as routes.main.script, with
// its place in the file.
func (c *Config) Mistake(path, format string, args ...any) *Error {
	return c.placed(mistake(path, format, args...))
}

func (c *Config) placed(e *Error) *Error {
	e.File = c.name
	locate(c.text, e)
	return e
}

// File is the path of the file that the configuration was read from.
func (c *Config) File() string { return c.Path(filepath.Base(c.name)) }

// later names keys that the documentation knows and this version does not
// carry out, so that they are refused with the reason instead of as unknown.
var later = map[string]string{
	"mcp_servers": "MCP servers are not available yet",
	"review":      "approvals are not available yet",
}

// place gives a YAML error its line and column.
func place(name string, err error) *Error {
	e := &Error{File: name, Text: err.Error()}
	var ye yaml.Error
	if errors.As(err, &ye) {
		e.Text = ye.GetMessage()
		if tok := ye.GetToken(); tok != nil && tok.Position != nil {
			e.Line, e.Column = tok.Position.Line, tok.Position.Column
		}
	}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		e.Text = "want " + typeName(te.DstType) + ", got " + typeName(te.SrcType)
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
			if node, err := p.ReadNode(bytes.NewReader(data)); err == nil && node != nil {
				e.setPlace(node)
				return
			}
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return
		}
		path = path[:i]
	}
}

// parseDuration reads a duration behind an alias; shape has told any other mistake.
func parseDuration(b []byte) (time.Duration, error) {
	s := strings.Trim(strings.TrimSpace(string(b)), `"'`)
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.60q is no duration such as 30s or 5m", s)
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

// Reference is a reference of the file with its key, such as routes.main.api_key.
type Reference struct {
	Key string
	Ref Ref
}

// References lists the references of the file, by key.
func (c *Config) References() []Reference {
	var out []Reference
	for name, n := range c.Secrets {
		out = append(out, Reference{"secrets." + name, n.Ref()})
	}
	if m := c.MasterKey; m.File != "" || m.Env != "" {
		out = append(out, Reference{"master_key", Ref{Env: m.Env, File: m.File}})
	}
	for i, r := range c.MasterKey.Former {
		out = append(out, Reference{fmt.Sprintf("master_key.former[%d]", i), r})
	}
	for name, r := range c.Routes {
		if r.APIKey != nil {
			out = append(out, Reference{"routes." + name + ".api_key", *r.APIKey})
		}
	}
	for name, t := range c.Tools {
		for h, r := range t.Headers {
			out = append(out, Reference{"tools." + name + ".headers." + h, r})
		}
	}
	for name, k := range c.Connectors {
		for i, r := range k.Auth.Secrets {
			out = append(out, Reference{fmt.Sprintf("connectors.%s.auth.secrets[%d]", name, i), r})
		}
	}
	for key, a := range map[string]Address{"database_url": c.DatabaseURL, "bus_url": c.BusURL} {
		if a.Ref != (Ref{}) {
			out = append(out, Reference{key, a.Ref})
		}
	}
	out = append(out, c.targetReferences()...)
	for h, r := range c.Telemetry.Headers {
		out = append(out, Reference{"telemetry.headers." + h, r})
	}
	slices.SortFunc(out, func(a, b Reference) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Use is UseFor of a secret that is sent nowhere, and gives its current value.
func (c *Config) Use(at Reference) (string, error) {
	values, err := c.UseFor(context.Background(), at, "")
	if err != nil {
		return "", err
	}
	return values[0], nil
}

// useTimeout bounds how long a value is waited for.
const useTimeout = 5 * time.Second

// UseFor reads a reference at the moment its value is needed, to be sent to
// host (host:port; empty: it is sent nowhere), and tells Unreadable when that
// fails. The current value comes first, then those before it that still count.
func (c *Config) UseFor(ctx context.Context, at Reference, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	values, err := c.values(ctx, at.Ref, host)
	if err != nil && c.Unreadable != nil {
		c.Unreadable(at, err)
	}
	if c.Known != nil {
		c.Known.Add(values...)
	}
	return values, err
}

func (c *Config) values(ctx context.Context, r Ref, host string) ([]string, error) {
	if r.Secret != "" && c.Resolve != nil {
		return c.Resolve(ctx, r.Secret, host)
	}
	if n, ok := c.Secrets[r.Secret]; ok && r.Secret != "" && host != "" {
		if hosts, bound := n.Bound(); bound && !hosts.Allows(host) {
			return nil, problem.New(problem.Forbidden, "secret_not_for_host", "the secret %s is not bound to this host", r.Secret)
		}
	}
	v, err := c.Secret(r)
	if err != nil {
		return nil, err
	}
	return []string{v}, nil
}

// Bus reads the URL of the bus, at the moment it is needed. The error holds no secret.
func (c *Config) Bus() (string, error) {
	if c.BusURL.Text != "" {
		return c.BusURL.Text, nil
	}
	text, err := c.Use(Reference{"bus_url", c.BusURL.Ref})
	if err != nil {
		return "", err
	}
	if why := checkBus(text); why != "" {
		return "", fmt.Errorf("what %s holds cannot be used: %s", c.BusURL.Ref, why)
	}
	return text, c.busMayGo(Reference{"bus_url", c.BusURL.Ref}, text)
}

// String names what a reference refers to; it never holds the value.
func (r Ref) String() string {
	switch {
	case r.Secret != "":
		return "secret " + r.Secret
	case r.Env != "":
		return "env " + r.Env
	}
	return "file " + r.File
}

// Secret reads a reference. The error names the reference and never holds a value.
func (c *Config) Secret(r Ref) (string, error) {
	switch {
	case r.Secret != "":
		named, ok := c.Secrets[r.Secret]
		if !ok {
			return "", fmt.Errorf("no secret is named %q", r.Secret)
		}
		return c.Secret(named.Ref())
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
