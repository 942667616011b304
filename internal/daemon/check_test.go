package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
)

// A data directory on a network file system is a mistake of the
// configuration, told with its place.
func TestCheckDisk(t *testing.T) {
	dir := t.TempDir()
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\ndata_dir: /mnt/share\nroutes: {main: {provider: openai_compatible, base_url: http://127.0.0.1:1/v1, model: m}}\n"),
		"holdfast.yaml", dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = check(cfg, func(dir string) error { return &diskfs.NetworkError{Dir: dir, Kind: "nfs"} })
	var mistake *config.Error
	if !errors.As(err, &mistake) || !strings.HasPrefix(err.Error(), "holdfast.yaml:2:") || !strings.Contains(err.Error(), "/mnt/share lies on a network file system (nfs)") {
		t.Errorf("%v", err)
	}
	if _, err := check(cfg, func(string) error { return nil }); err != nil {
		t.Error(err)
	}
}

// Keys that are good by themselves and not together are warned of.
func TestTogether(t *testing.T) {
	const base = "listen: 127.0.0.1:0\nroutes: {main: {provider: openai_compatible, base_url: http://127.0.0.1:1/v1, model: m}}\n"
	const cluster = base + "database_url: postgres://u@h/d\nsecrets: {s: {env: HOME}}\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"one node":         {base, nil},
		"a bus for nobody": {base + "bus_url: nats://h:4222\n", []string{"bus_url: "}},
		"a cluster":        {cluster + "targets: {signing_secret: s}\nbus_url: nats://h:4222\n", nil},
		"without a secret": {cluster, []string{"targets.signing_secret: "}},
		"hasty":            {cluster + "targets: {signing_secret: s}\nlease: {ttl: 2s}\nstore: {sync: normal}\n", []string{"store.sync: ", "lease.ttl: a pause of the database or of this machine of 2s "}},
	} {
		cfg, err := config.Parse([]byte(c.text), "holdfast.yaml", t.TempDir())
		if err != nil {
			t.Fatal(name, err)
		}
		got := together(cfg)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

// A vendor's own route without a key is warned of; a gateway may want none.
func TestRouteWithoutKey(t *testing.T) {
	for route, warned := range map[string]bool{
		"{provider: openai, model: m}":                                          true,
		"{provider: anthropic, model: m}":                                       true,
		"{provider: gemini, model: m}":                                          true,
		"{provider: anthropic, model: m, api_key: {env: HOME}}":                 false,
		"{provider: anthropic, model: m, base_url: http://127.0.0.1:1}":         false,
		"{provider: openai_compatible, model: m, base_url: http://127.0.0.1:1}": false,
	} {
		cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\nroutes: {main: "+route+"}\n"), "holdfast.yaml", t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		warnings, err := check(cfg, func(string) error { return nil })
		if err != nil || (len(warnings) == 1 && strings.HasPrefix(warnings[0], "routes.main: there is no api_key")) != warned || !warned && len(warnings) > 0 {
			t.Errorf("%s: %q, %v", route, warnings, err)
		}
	}
}
