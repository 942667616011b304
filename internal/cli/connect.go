package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// connect makes the client. What neither flag nor environment names is taken
// from the configuration in the working directory: its address, and the admin
// token of its data directory, where this user may read it.
func (a *app) connect() (*client.Client, error) {
	server, token := a.server, a.token
	if token == "" {
		token = os.Getenv("HOLDFAST_TOKEN")
	}
	if server == "" || token == "" {
		if cfg, err := config.Load(configFile); err == nil {
			at := address(cfg)
			if !strings.HasPrefix(at, "unix:") {
				at = "http://" + at
			}
			if server == "" {
				server = at
			}
			if token == "" && server == at {
				if data, err := os.ReadFile(daemon.TokenPath(cfg)); err == nil {
					token = strings.TrimSpace(string(data))
				}
			}
		}
	}
	if server == "" {
		server = "http://" + config.DefaultListen
	}
	c, err := client.New(server, token, client.WithUser(a.user))
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// codeOf gives the exit code of an error of the client.
func codeOf(err error) int {
	var ce *client.Error
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return exitUnreachable
	case errors.As(err, &ce):
		return problem.KindOfStatus(ce.Status).ExitCode()
	}
	return exitFailed
}

// table writes rows in columns.
func (a *app) table(header string, rows func(w *tabwriter.Writer)) error {
	w := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, header)
	rows(w)
	return w.Flush()
}

// with makes a command that speaks to the daemon.
func (a *app) with(do func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		return do(cmd, c, args)
	}
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: onlyHolds}
	c.AddCommand(commands...)
	return c
}

// onlyHolds runs a command that only holds others: it helps, and a name that
// none of them has is a mistake.
func onlyHolds(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unknown command %q for %q; see %s --help", args[0], c.CommandPath(), c.CommandPath())}
	}
	return c.Help()
}

func (a *app) clientCommands() []*cobra.Command {
	return []*cobra.Command{
		a.runCommand(), a.sessionsCommand(), a.runsCommand(), a.eventsCommand(), a.deliveriesCommand(),
		a.routesCommand(), a.toolsCommand(), a.tokenCommand(),
	}
}
