package daemon

import (
	"os/exec"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/config"
)

// forbidden are the paths that no workspace, and no folder of a file target, may reach: the configuration, the
// data directory, the snapshots of files, the files of secrets, and the programs that the
// daemon runs. A model that can read or write
// files would else have the credentials, the record of what it did, or the daemon's own rights.
func forbidden(cfg *config.Config) []string {
	list := []string{cfg.File(), cfg.Path(cfg.DataDir), filesDir(cfg)}
	add := func(path string) {
		if path != "" {
			list = append(list, cfg.Path(path))
		}
	}
	if key := cfg.MasterKeyFile(); key != "" {
		list = append(list, key)
	}
	for _, at := range cfg.References() {
		add(at.Ref.File)
	}
	add(cfg.TLS.Cert)
	add(cfg.TLS.Key)
	if cfg.TLS.ACME != nil {
		add(cfg.TLS.ACME.Roots)
	}
	for _, p := range cfg.Targets.Plugins {
		add(p.Command[0])
		list = append(list, absolute(p.Command[1:])...)
	}
	if command := cfg.MasterKey.KMS.Command; len(command) > 0 {
		if program, err := exec.LookPath(command[0]); err == nil {
			if program, err = filepath.Abs(program); err == nil {
				list = append(list, program)
			}
		}
		list = append(list, absolute(command[1:])...)
	}
	return list
}

// absolute are the arguments of a program that name files: its script, its settings.
func absolute(args []string) (out []string) {
	for _, a := range args {
		if filepath.IsAbs(a) {
			out = append(out, a)
		}
	}
	return out
}
