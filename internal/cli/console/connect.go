package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
)

// ConfigFile is the configuration of the folder that a command is called in.
const ConfigFile = "holdfast.yaml"

// Connect makes the client. What neither flag nor environment names is taken
// from the configuration in the working directory: the address that its daemon
// has written down or else the configured one, and the admin token of its data
// directory, where this user may read it. That token goes to no other server,
// and to no socket: who may open one needs none there, and one that was revoked
// would keep out who came to make another.
func (a *App) Connect() (*client.Client, error) {
	server, token := a.Server, a.Token
	if server != "" && !strings.HasPrefix(server, "unix:") && !strings.Contains(server, "://") {
		server = "http://" + server
	}
	a.looked = "the one of --token was not accepted"
	if token == "" {
		token = os.Getenv("HOLDFAST_TOKEN")
		a.looked = "the one of HOLDFAST_TOKEN was not accepted"
	}
	if server == "" || token == "" {
		cfg, err := config.Load(ConfigFile)
		switch {
		case err == nil:
			own := AddressesOf(cfg)
			if server == "" {
				server = own[0]
			}
			if token == "" && !strings.HasPrefix(server, "unix:") {
				token = a.ownToken(cfg, server, own)
			}
		case token != "":
		case errors.Is(err, os.ErrNotExist):
			a.looked = "no file was looked for, since there is no " + ConfigFile + " in this folder"
		default:
			a.looked = "no file was looked for, since " + ConfigFile + " cannot be read: " + err.Error()
		}
	}
	if server == "" {
		server = "http://" + config.DefaultListen
	}
	if token == "" && strings.HasPrefix(server, "unix:") {
		a.looked = "no file was looked for, since a socket answers to the daemon's own user and root without one"
	}
	c, err := client.New(server, token, client.WithUser(a.User))
	if err != nil {
		return nil, Usage(err)
	}
	return c, nil
}

// AddressesOf are the servers that the token of a data directory is for: the
// address that the daemon has written down, if any, and the configured one.
func AddressesOf(cfg *config.Config) []string {
	var out []string
	if data, err := os.ReadFile(AddressPath(cfg)); err == nil && strings.TrimSpace(string(data)) != "" {
		out = append(out, strings.TrimSpace(string(data)))
	}
	at := Address(cfg)
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
func (a *App) ownToken(cfg *config.Config, server string, own []string) string {
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

// SessionID gives the id of a session that is named by its id or alias; "" stays.
func SessionID(ctx context.Context, c *client.Client, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	s, err := c.Session(ctx, name)
	if err != nil {
		return "", err
	}
	return s.ID, nil
}

// Table writes rows in columns.
func (a *App) Table(header string, rows func(w *tabwriter.Writer)) error {
	w := tabwriter.NewWriter(a.Out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, header)
	rows(w)
	return w.Flush()
}

// With makes a command that speaks to the daemon.
func (a *App) With(do func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.Connect()
		if err != nil {
			return err
		}
		return do(cmd, c, args)
	}
}

// Group is a command that only holds others.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: OnlyHolds}
	c.AddCommand(commands...)
	return c
}

// OnlyHolds runs a command that only holds others: it helps, and a name that
// none of them has is a mistake.
func OnlyHolds(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("unknown command %q for %q; see %s --help", args[0], c.CommandPath(), c.CommandPath()))
	}
	return c.Help()
}

// AddressPath is where a daemon writes down its address while it listens.
func AddressPath(cfg *config.Config) string { return filepath.Join(cfg.Path(cfg.DataDir), "address") }

// Address is where the configuration listens; a socket's path begins at the
// folder of the configuration.
func Address(cfg *config.Config) string {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
		return "unix:" + cfg.Path(path)
	}
	return cfg.Listen
}
