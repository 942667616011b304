// Package cli is the command line: the daemon's own commands, and those that
// speak to a running daemon through the client.
//
// What a command found goes to standard output, as text for people or with
// --json as JSON; everything else goes to standard error. Exit codes: 0 ok,
// 1 a failed run or check, 2 usage, 3 the daemon is not reachable, 4 refused.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/problem"
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
}

// exitError ends a command with a code; its message was shown, or is shown
// when it has one.
type exitError struct {
	code int
	msg  string
}

func (e *exitError) Error() string { return e.msg }

// usageError is a mistake in how a command was called.
type usageError struct{ error }

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
	return a.exit(root.ExecuteContext(ctx))
}

// exit shows an error and gives the exit code that it means.
func (a *app) exit(err error) int {
	var ee *exitError
	var ue usageError
	var pe *problem.Error
	var ce *client.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ee):
		if ee.msg != "" {
			a.complain(ee.msg)
		}
		return ee.code
	case errors.As(err, &ue):
		a.complain(err.Error())
		return exitUsage
	case errors.As(err, &pe):
		a.complain(pe.Detail)
		for _, is := range pe.Issues {
			a.complain("  " + is.Path + ": " + is.Text)
		}
		return pe.Kind.ExitCode()
	case errors.As(err, &ce):
		a.complain(ce.Error())
		for _, is := range ce.Problem.Issues {
			if is.Path != "" && len(ce.Problem.Issues) > 1 {
				a.complain("  " + is.Path + ": " + is.Text)
			}
		}
		return codeOf(err)
	}
	a.complain(err.Error())
	return codeOf(err)
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
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", os.Getenv("HOLDFAST_SERVER"), "daemon to speak to: http://HOST:PORT or unix:PATH [HOLDFAST_SERVER]")
	f.StringVar(&a.token, "token", "", "access token [HOLDFAST_TOKEN]")
	f.StringVar(&a.user, "user", "", "user whose sessions are meant, for tokens that are not bound to one")
	f.BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(a.serveCommand(), a.demoCommand(), a.verifyCommand(), a.configCommand())
	root.AddCommand(a.clientCommands()...)
	checkArgs(root)
	return root
}

// checkArgs makes wrong arguments of any command a usage error.
func checkArgs(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				return usageError{err}
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

// terminal says whether a person watches w.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
