package daemon

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/listener"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/provider/scripted"
	"github.com/holdfast-dev/holdfast/internal/webhook"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// Check says what of a configuration cannot work, beyond the form of its file:
// it makes the adapters without the data directory, and writes nothing. err
// joins a *config.Error for each mistake. A reference that cannot be read now
// is a warning: it may come to be readable, and what needs it fails until then.
func Check(cfg *config.Config) (warnings []string, err error) {
	return check(cfg, diskfs.Refuse)
}

// check is Check with what is asked of the disk in hand.
func check(cfg *config.Config, disk func(dir string) error) (warnings []string, err error) {
	var mistakes []error
	note := func(err error) {
		if err != nil {
			mistakes = append(mistakes, err)
		}
	}
	if err := disk(cfg.Path(cfg.DataDir)); err != nil {
		note(cfg.Mistake("data_dir", "%v", err))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Routes)) {
		_, err := makeModel(cfg, name, cfg.Routes[name].Model, nil)
		note(err)
		switch r := cfg.Routes[name]; r.Provider {
		case "openai", "anthropic", "gemini":
			if r.APIKey == nil && r.BaseURL == "" {
				warnings = append(warnings, fmt.Sprintf("routes.%s: there is no api_key, and %s answers nobody without: name one, such as {env: NAME}", name, r.Provider))
			}
		}
	}
	if _, err := providerGuard(cfg, &Options{}); err != nil {
		note(cfg.Mistake("routes", "%v", err))
	}
	if _, err := targetGuard(cfg, &Options{}); err != nil {
		note(cfg.Mistake("targets.allow_private", "%v", err))
	}
	if t := cfg.TLS; t.Cert != "" {
		if _, err := listener.Expires(cfg.Path(t.Cert), cfg.Path(t.Key)); err != nil {
			note(cfg.Mistake("tls", "%v", err))
		}
	}
	owner := map[string]string{} // of a tool's name
	for _, name := range slices.Sorted(maps.Keys(cfg.Tools)) {
		t := cfg.Tools[name]
		names := []string{name}
		if t.Type == "workspace" {
			names = allowed(t)
			note(checkRoot(cfg, name, t))
		} else if ht, err := makeHTTPTool(cfg, name, t, &Options{}); err != nil {
			note(err)
		} else {
			ht.Close()
		}
		for _, n := range names {
			if other, taken := owner[n]; taken && other != name {
				note(cfg.Mistake("tools."+name, "tools.%s has a tool %q too", other, n))
			}
			owner[n] = name
		}
	}
	for _, err := range checkWays(cfg) {
		note(err)
	}
	unread, wrong := checkSessions(cfg, owner)
	warnings, mistakes = append(warnings, unread...), append(mistakes, wrong...)
	for _, at := range cfg.References() {
		if cfg.Slotted(at.Ref) {
			continue // in the database; the start says whether it is set
		}
		if _, err := cfg.Secret(at.Ref); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: %v", at.Key, err))
		}
	}
	if name := cfg.Targets.SigningSecret; name != "" && !cfg.Slotted(config.Ref{Secret: name}) {
		if text, err := cfg.Secret(config.Ref{Secret: name}); err == nil {
			if _, err := webhook.ParseSecret(text); err != nil {
				warnings = append(warnings, fmt.Sprintf("targets.signing_secret: the secret %s has no form that can sign", name))
			}
		}
	}
	warnings = append(warnings, checkConnectors(cfg)...)
	return append(warnings, together(cfg)...), errors.Join(mistakes...)
}

// together says what keys of a configuration want of each other, where each is
// good by itself.
func together(cfg *config.Config) (warnings []string) {
	if !cfg.DatabaseURL.Set() {
		if cfg.BusURL.Set() {
			warnings = append(warnings, "bus_url: without database_url there is one node, which has nobody to show live text to")
		}
		return warnings
	}
	if cfg.Targets.SigningSecret == "" {
		warnings = append(warnings, "targets.signing_secret: with database_url no secret is made here, since the nodes must share one; until it names one, sessions with webhooks are refused unless the target names a secret")
	}
	if cfg.Store.Sync == "normal" {
		warnings = append(warnings, "store.sync: with database_url, normal means that a crash of the database may take what was acknowledged last")
	}
	if ttl := cfg.Lease.TTL.Or(config.DefaultLease); ttl < shortLease {
		warnings = append(warnings, fmt.Sprintf("lease.ttl: a pause of the database or of this machine of %s takes the work from a node; 15s is the default", ttl))
	}
	return warnings
}

// shortLease is the shortest lease that is not warned of.
const shortLease = 5 * time.Second

// checkRoot says whether the root of a workspace can be used or made, and
// stands apart from what no workspace may reach.
func checkRoot(cfg *config.Config, name string, t config.Tool) error {
	if err := usableRoot(cfg, name, t); err != nil {
		return err
	}
	if err := workspace.CheckRoot(cfg.Path(t.Root), forbidden(cfg)); err != nil {
		return cfg.Mistake("tools."+name+".root", "%s", problem.Of(err).Detail)
	}
	return nil
}

func usableRoot(cfg *config.Config, name string, t config.Tool) error {
	path := "tools." + name + ".root"
	root := cfg.Path(t.Root)
	dir, err := os.Open(root)
	if err == nil {
		defer dir.Close()
		if info, err := dir.Stat(); err != nil || !info.IsDir() {
			return cfg.Mistake(path, "%s is no folder", root)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return cfg.Mistake(path, "the folder cannot be used: %v", err)
	}
	for parent := filepath.Dir(root); ; parent = filepath.Dir(parent) { // ends at the top, which exists
		info, err := os.Stat(parent)
		if errors.Is(err, os.ErrNotExist) && parent != filepath.Dir(parent) {
			continue
		}
		if err != nil || !info.IsDir() {
			return cfg.Mistake(path, "the folder cannot be made: %s is no folder", parent)
		}
		return nil
	}
}

// loadScript reads the script of a route. The error of scripted tells the place
// in the script.
func loadScript(cfg *config.Config, path, file string) (*scripted.Model, error) {
	m, err := scripted.Load(cfg.Path(file))
	if errors.Is(err, os.ErrNotExist) {
		return nil, cfg.Mistake(path, "there is no file at %s", cfg.Path(file))
	}
	if err != nil {
		return nil, cfg.Mistake(path, "%v", err)
	}
	return m, nil
}
