// Package admin has the commands of whoever looks after a daemon: connectors, nodes,
// routes, tools, tokens, secrets, and the record of who did what.
package admin

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
)

// app is an invocation, with these commands.
type app struct{ *console.App }

// Commands are the commands of whoever looks after a daemon.
func Commands(c *console.App) []*cobra.Command {
	a := app{c}
	return []*cobra.Command{a.connectorsCommand(), a.nodesCommand(), a.routesCommand(), a.toolsCommand(), a.tokenCommand(), a.secretsCommand(), a.auditCommand()}
}
