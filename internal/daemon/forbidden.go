package daemon

import (
	"github.com/holdfast-dev/holdfast/internal/config"
)

// forbidden are the paths that no workspace may reach: the configuration, the
// data directory, the snapshots of files, and the files of secrets. A model that can read or write
// files would else have the credentials, or the record of what it did.
func forbidden(cfg *config.Config) []string {
	list := []string{cfg.File(), cfg.Path(cfg.DataDir), filesDir(cfg)}
	if key := cfg.MasterKeyFile(); key != "" {
		list = append(list, key)
	}
	for _, at := range cfg.References() {
		if at.Ref.File != "" {
			list = append(list, cfg.Path(at.Ref.File))
		}
	}
	return list
}
