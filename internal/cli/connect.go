package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
)

// connect makes the client. What neither flag nor environment names is taken
// from the configuration in the working directory: the address that its daemon
// has written down or else the configured one, and the admin token of its data
// directory, where this user may read it. That token goes to no other server.
func (a *app) connect() (*client.Client, error) {
	server, token := a.server, a.token
	if server != "" && !strings.HasPrefix(server, "unix:") && !strings.Contains(server, "://") {
		server = "http://" + server
	}
	a.looked = "the one of --token was not accepted"
	if token == "" {
		token = os.Getenv("HOLDFAST_TOKEN")
		a.looked = "the one of HOLDFAST_TOKEN was not accepted"
	}
	if server == "" || token == "" {
		cfg, err := config.Load(configFile)
		switch {
		case err == nil:
			own := addressesOf(cfg)
			if server == "" {
				server = own[0]
			}
			if token == "" {
				token = a.ownToken(cfg, server, own)
			}
		case token != "":
		case errors.Is(err, os.ErrNotExist):
			a.looked = "no file was looked for, since there is no " + configFile + " in this folder"
		default:
			a.looked = "no file was looked for, since " + configFile + " cannot be read: " + err.Error()
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

// addressesOf are the servers that the token of a data directory is for: the
// address that the daemon has written down, if any, and the configured one.
func addressesOf(cfg *config.Config) []string {
	var out []string
	if data, err := os.ReadFile(addressPath(cfg)); err == nil && strings.TrimSpace(string(data)) != "" {
		out = append(out, strings.TrimSpace(string(data)))
	}
	at := address(cfg)
	if strings.HasPrefix(at, "unix:") {
		return append(out, at)
	}
	if _, port, err := net.SplitHostPort(at); err == nil {
		if url := cfg.PublicURL(port); url != "" {
			return append(out, url)
		}
	}
	if cfg.TLS.Set() {
		return append(out, "https://"+at)
	}
	return append(out, "http://"+at)
}

// ownToken reads the admin token of the data directory for a server that is
// its own, and notes what came of it.
func (a *app) ownToken(cfg *config.Config, server string, own []string) string {
	path := daemon.TokenPath(cfg)
	if !slices.Contains(own, strings.TrimRight(server, "/")) {
		a.looked = fmt.Sprintf("%s was not read, since it is for %s and not for %s", path, strings.Join(own, " or "), server)
		return ""
	}
	data, err := os.ReadFile(path)
	if err != nil {
		a.looked = "a file was looked for: " + err.Error()
		return ""
	}
	a.looked = "the one in " + path + " was not accepted"
	return strings.TrimSpace(string(data))
}

// sessionID gives the id of a session that is named by its id or alias; "" stays.
func sessionID(ctx context.Context, c *client.Client, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	s, err := c.Session(ctx, name)
	if err != nil {
		return "", err
	}
	return s.ID, nil
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
		a.runCommand(), a.sessionsCommand(), a.runsCommand(), a.eventsCommand(), a.assetsCommand(), a.deliveriesCommand(), a.jobsCommand(), a.targetsCommand(), a.connectorsCommand(),
		a.nodesCommand(), a.routesCommand(), a.toolsCommand(), a.tokenCommand(), a.secretsCommand(), a.auditCommand(),
	}
}
