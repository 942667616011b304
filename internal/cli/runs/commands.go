// Package runs has the commands about runs: submitting, waiting for, following and
// ending them, what the log says, and the files that are handed in.
package runs

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
)

// app is an invocation, with these commands.
type app struct{ *console.App }

// Commands are the commands about runs, events and assets.
func Commands(c *console.App) []*cobra.Command {
	a := app{c}
	return []*cobra.Command{a.runCommand(), a.runsCommand(), a.eventsCommand(), a.assetsCommand()}
}
