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
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/internal/version"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitRefused     = 4
)

// app is one invocation.
type app struct {
	in       io.Reader
	out, err io.Writer

	server, token, user string
	json                bool
	lines               bool   // with --json the output is one value a line
	looked              string // for which token, and what came of it
}

// Main runs one command and gives its exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{in: in, out: out, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err != nil && slices.Contains(args, "--json") {
		a.json = true // it may stand behind the flag that is wrong
	}
	return a.exit(err)
}

func (a *app) complain(msg string) { fmt.Fprintln(a.err, "holdfast:", msg) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "A durable runtime for AI agents: JSON in, JSON out, nothing lost",
		Version:       version.String(),
		Args:          cobra.ArbitraryArgs,
		RunE:          onlyHolds,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", os.Getenv("HOLDFAST_SERVER"), "daemon to speak to: HOST:PORT, http://HOST:PORT or unix:PATH [HOLDFAST_SERVER]")
	f.StringVar(&a.token, "token", "", "access token [HOLDFAST_TOKEN]")
	f.StringVar(&a.user, "user", "", "user whose sessions are meant, for tokens that are not bound to one")
	f.BoolVar(&a.json, "json", false, "print JSON, errors too")
	root.AddCommand(a.serveCommand(), a.demoCommand(), a.doctorCommand(), a.verifyCommand(), a.backupCommand(), a.restoreCommand(), a.configCommand(), a.versionCommand())
	root.AddCommand(a.clientCommands()...)
	checkArgs(root)
	return root
}

// checkArgs makes wrong arguments of any command a usage error.
func checkArgs(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				return usageError{fmt.Errorf("%w; the command is %s", err, c.UseLine())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		checkArgs(sub)
	}
}

// print writes a value as indented JSON.
func (a *app) print(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// line writes a value as one line of JSON.
func (a *app) line(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Say which build this is", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.say(map[string]any{"version": version.String()}, "%s\n", version.String())
		}}
}

// count is a number of things: "1 route", "2 routes".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// terminal says whether a person watches w.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
