// Package console is what a command is given and how it answers: streams, global
// flags, the daemon that it speaks to, tables and JSON, and errors with their exit
// codes.
//
// What a command found goes to standard output, as text for people or with --json as
// JSON; everything else goes to standard error.
package console

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitRefused     = 4
)

// App is one invocation of the program.
type App struct {
	In       io.Reader
	Out, Err io.Writer

	Server, Token, User string // flags
	JSON                bool
	Lines               bool // with --json the output is one value a line

	looked string // for which token, and what came of it
}

// Complain tells a person something on standard error.
func (a *App) Complain(msg string) { fmt.Fprintln(a.Err, "holdfast:", msg) }

// Print writes a value as indented JSON.
func (a *App) Print(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Line writes a value as one line of JSON.
func (a *App) Line(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Terminal says whether a person watches w.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Say prints v as JSON, or the text.
func (a *App) Say(v any, format string, args ...any) error {
	if a.JSON {
		return a.Print(v)
	}
	_, err := fmt.Fprintf(a.Out, format, args...)
	return err
}

// More says how to go on with a list.
func (a *App) More(cursor string) {
	if cursor != "" {
		fmt.Fprintf(a.Err, "there are more: --cursor %s\n", cursor)
	}
}

// MaxInput bounds what is read from a file or standard input.
const MaxInput = 16 << 20
