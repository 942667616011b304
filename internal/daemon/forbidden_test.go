package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// A model that may write files, and a caller who names the file of an answer, write
// none that the daemon runs, and none by which it speaks TLS.
func TestNoWorkspaceHoldsWhatTheDaemonRuns(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"plugins/pager", "scripts/pager.py", "kms/unwrap", "tls/key.pem", "tls-cert/cert.pem", "free/x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
data_dir: data
default_route: main
routes: {main: {provider: scripted, script: x}}
tls: {cert: tls-cert/cert.pem, key: tls/key.pem}
master_key: {kms: {command: [%q]}}
targets: {plugins: {pager: {command: [plugins/pager]}, snake: {command: [/bin/sh, %q]}}}
`, filepath.Join(dir, "kms/unwrap"), filepath.Join(dir, "scripts/pager.py"))
	cfg, err := config.Parse([]byte(text), "holdfast.yaml", dir)
	if err != nil {
		t.Fatal(err)
	}
	for root, ok := range map[string]bool{".": false, "plugins": false, "tls": false, "data/x": false, "free": true} {
		if err := os.MkdirAll(filepath.Join(dir, root), 0o700); err != nil {
			t.Fatal(err)
		}
		cfg.Targets.Folders = map[string]string{"out": root}
		if mistakes := checkWays(cfg); ok != (len(mistakes) == 0) {
			t.Errorf("answers may be written to %s: %v", root, mistakes)
		}
	}
	for _, root := range []string{"plugins", "scripts", "kms", "tls", "tls-cert"} {
		if err := workspace.CheckRoot(filepath.Join(dir, root), forbidden(cfg)); err == nil {
			t.Errorf("%s may be a workspace", root)
		}
	}
	if err := workspace.CheckRoot(filepath.Join(dir, "free"), forbidden(cfg)); err != nil {
		t.Error(err)
	}
}
