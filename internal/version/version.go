// Package version says which build of the daemon this is.
package version

import "runtime/debug"

// Version and Revision are set when a release is built
// (-ldflags "-X …/version.Version=1.2.3 -X …/version.Revision=abc").
var (
	Version  = "0.1.0-dev"
	Revision = ""
)

// String is the version and the commit that the binary was built from.
func String() string {
	commit := Commit()
	if commit == "" {
		return Version
	}
	return Version + "+" + commit
}

// Commit is the short hash of the commit, with "-dirty" when files were
// changed; empty when the build does not know.
func Commit() string {
	if Revision != "" {
		return Revision
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var hash, dirty string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			hash = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if hash == "" {
		return ""
	}
	return hash + dirty
}
