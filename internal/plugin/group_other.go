//go:build !unix

package plugin

import "os/exec"

// There are no process groups here: only the plugin's own process is ended.
func group(*exec.Cmd) {}

func end(*exec.Cmd) {}
