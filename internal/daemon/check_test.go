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
