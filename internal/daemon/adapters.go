package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httptool"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/schema"
	"github.com/holdfast-dev/holdfast/internal/tool"
	"github.com/holdfast-dev/holdfast/internal/webhook"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// makeTools makes the configured tools. closers end what they hold.
func makeTools(cfg *config.Config, opt *Options) (tools []tool.Tool, closers []func(), err error) {
	names := make([]string, 0, len(cfg.Tools))
	for n := range cfg.Tools {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, name := range names {
		t := cfg.Tools[name]
		switch t.Type {
		case "workspace":
			ws, err := workspace.New(workspace.Config{Root: cfg.Path(t.Root), Shared: t.Shared, Allow: allowed(t), Forbidden: forbidden(cfg)})
			if err != nil {
				return nil, nil, cfg.Mistake("tools."+name+".root", "%v", err)
			}
			tools = append(tools, ws...)
		case "http":
			ht, err := makeHTTPTool(cfg, name, t, opt)
			if err != nil {
				return nil, nil, err
			}
			tools = append(tools, ht)
			closers = append(closers, ht.Close)
		}
	}
	return tools, closers, nil
}

// allowed are the tools of a workspace.
func allowed(t config.Tool) []string {
	if t.Allow == nil {
		return []string{workspace.ListFiles, workspace.ReadFile, workspace.SearchFiles}
	}
	return t.Allow
}

// makeHTTPTool makes a declared tool. The error is a *config.Error with the key at fault.
func makeHTTPTool(cfg *config.Config, name string, t config.Tool, opt *Options) (*httptool.Tool, error) {
	path := "tools." + name
	if _, err := netguard.CheckURL(t.URL); err != nil {
		return nil, cfg.Mistake(path+".url", "%s", problem.Of(err).Detail)
	}
	in, err := schemaOf(t.InputSchema)
	if err != nil {
		return nil, cfg.Mistake(path+".input_schema", "%v", err)
	}
	if !ofObject(in) {
		return nil, cfg.Mistake(path+".input_schema", "the arguments of a tool are an object: write type: object")
	}
	out, err := schemaOf(t.OutputSchema)
	if err != nil {
		return nil, cfg.Mistake(path+".output_schema", "%v", err)
	}
	headers := map[string]func() (string, error){}
	for h, ref := range t.Headers {
		at := config.Reference{Key: path + ".headers." + h, Ref: ref}
		headers[h] = func() (string, error) { return useFor(cfg, at, hostOf(t.URL)) }
	}
	guard, err := toolGuard(cfg, name, &t, opt)
	if err != nil {
		return nil, cfg.Mistake(path+".allow_private", "%v", err)
	}
	ht, err := httptool.New(httptool.Config{
		Name: name, Method: t.Method, URL: t.URL, Description: t.Description, InputSchema: in, OutputSchema: out,
		SideEffect: tool.Level(t.SideEffect), Policy: tool.Policy(t.Policy), IdempotencyHeader: t.IdempotencyHeader,
		Headers: headers, Timeout: t.Timeout.Or(0),
	}, guard)
	if err != nil {
		return nil, cfg.Mistake(path, "%s", problem.Of(err).Detail)
	}
	return ht, nil
}

// schemaOf gives the canonical JSON of a schema written in YAML, and checks
// that it can be compiled.
func schemaOf(v any) (canonjson.Value, error) {
	if v == nil {
		return nil, nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	value, err := canonjson.Canonicalize(raw, canonjson.Limits{})
	if err != nil {
		return nil, err
	}
	if _, err = schema.Compile(value); err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " ")) // on one line
	}
	return value, nil
}

// ofObject says whether a schema says of itself that it is one of an object.
func ofObject(schema canonjson.Value) bool {
	n, err := schema.Node()
	if err != nil || n.Kind() != canonjson.Object {
		return false
	}
	t, ok := n.Get("type")
	return ok && t.Kind() == canonjson.String && t.Text() == "object"
}

func listTools(set *tool.Set) []api.Tool {
	out := []api.Tool{}
	for _, d := range set.Definitions() {
		out = append(out, api.Tool{
			Name: d.Name, Description: d.Description, Source: string(d.Source), SideEffect: string(d.Level),
			Policy: string(d.Policy), InputSchema: api.Raw(d.InputSchema),
		})
	}
	return out
}

// forget deletes the workspace folder of an erased session, and its snapshots.
func forget(cfg *config.Config, f *files) func(user string, id event.SessionID) error {
	return func(user string, id event.SessionID) error {
		var err error
		if f != nil {
			err = f.store.Erase(context.Background(), string(id))
		}
		for _, t := range cfg.Tools {
			if t.Type == "workspace" && !t.Shared {
				err = errors.Join(err, workspace.Forget(cfg.Path(t.Root), user, string(id)))
			}
		}
		return err
	}
}

// SigningSecretPath is where the signing secret stands that the daemon made.
func SigningSecretPath(cfg *config.Config) string {
	return filepath.Join(cfg.Path(cfg.DataDir), "webhook.secret")
}

// madeSecret reads the secret of a file of mode 0600, and makes it the first time.
func madeSecret(path string, random io.Reader) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		if s := strings.TrimSpace(string(data)); s != "" {
			return s, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("signing secret: %w", err)
	}
	s, err := webhook.NewSecret(random)
	if err != nil {
		return "", err
	}
	return s, writePrivate(path, s+"\n")
}

// writePrivate writes a whole file of mode 0600, durably, or none.
func writePrivate(path, text string) error {
	tmp := fmt.Sprintf("%s.%d", path, time.Now().UnixNano())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
