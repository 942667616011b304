// Package cli is the command line: the daemon's own commands, and those that
// speak to a running daemon through the client.
//
// What a command found goes to standard output, as text for people or with
// --json as JSON; everything else goes to standard error. With --json an error
// is a problem document on standard output besides. Exit codes: 0 ok, 1 a
// failed run or check, 2 usage, 3 the daemon is not reachable, 4 refused.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/admin"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/deliveries"
	"github.com/holdfast-dev/holdfast/internal/cli/operate"
	"github.com/holdfast-dev/holdfast/internal/cli/runs"
	"github.com/holdfast-dev/holdfast/internal/cli/sessions"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// Main runs one command and gives its exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &console.App{In: in, Out: out, Err: errOut}
	cmd := root(a)
	cmd.SetArgs(args)
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	if err != nil && slices.Contains(args, "--json") {
		a.JSON = true // it may stand behind the flag that is wrong
	}
	return a.Exit(err)
}

func root(a *console.App) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "A durable runtime for AI agents: JSON in, JSON out, nothing lost",
		Version:       version.String(),
		Args:          cobra.ArbitraryArgs,
		RunE:          console.OnlyHolds,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return console.Usage(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	})
	f := root.PersistentFlags()
	f.StringVar(&a.Server, "server", os.Getenv("HOLDFAST_SERVER"), "daemon to speak to: HOST:PORT, http://HOST:PORT or unix:PATH [HOLDFAST_SERVER]")
	f.StringVar(&a.Token, "token", "", "access token [HOLDFAST_TOKEN]")
	f.StringVar(&a.User, "user", "", "user whose sessions are meant, for tokens that are not bound to one")
	f.BoolVar(&a.JSON, "json", false, "print JSON, errors too")
	root.AddCommand(slices.Concat(operate.Commands(a), sessions.Commands(a), runs.Commands(a), deliveries.Commands(a), admin.Commands(a))...)
	root.AddCommand(versionCommand(a))
	checkArgs(root)
	return root
}

// checkArgs makes wrong arguments of any command a usage error.
func checkArgs(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				return console.Usage(fmt.Errorf("%w; the command is %s", err, c.UseLine()))
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		checkArgs(sub)
	}
}

func versionCommand(a *console.App) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Say which build this is", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.Say(map[string]any{"version": version.String()}, "%s\n", version.String())
		}}
}
