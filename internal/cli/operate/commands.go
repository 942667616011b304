// Package operate has the commands that need no daemon to speak to: they are one, look
// at what one needs, or open its data directory.
package operate

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
)

// app is an invocation, with these commands.
type app struct{ *console.App }

// Commands are serve, demo, and those that look at what a daemon has.
func Commands(c *console.App) []*cobra.Command {
	a := app{c}
	return []*cobra.Command{a.serveCommand(), a.demoCommand(), a.doctorCommand(), a.verifyCommand(), a.backupCommand(), a.restoreCommand(), a.configCommand()}
}
