// Package sessions has the commands about sessions: creating, looking at and ending
// them, their contracts, and what changed in their workspaces.
package sessions

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// app is an invocation, with these commands.
type app struct{ *console.App }

// Commands are the commands about sessions.
func Commands(c *console.App) []*cobra.Command { return []*cobra.Command{app{c}.sessionsCommand()} }

func (a app) sessionsCommand() *cobra.Command {
	var q client.SessionsQuery
	var page client.Page
	var when console.WhenFlags
	list := &cobra.Command{Use: "list", Short: "List sessions, newest first", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.Get(); err != nil {
				return err
			}
			l, err := c.Sessions(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("SESSION\tALIAS\tUSER\tSTATUS\tCREATED\tTITLE", func(w *tabwriter.Writer) {
				for _, s := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, cmp.Or(s.Alias, "-"), s.UserID, s.Status, words.Stamp(s.CreatedAt), words.Clean(s.Title))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	list.Flags().StringVar(&q.Status, "status", "", "only open or closed ones")
	list.Flags().StringVar(&q.ThreadID, "thread", "", "only those of this thread")
	when.Add(list)
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show SESSION", Short: "Show a session", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.Session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(s)
		})}
	var reason string
	closeIt := &cobra.Command{Use: "close SESSION", Short: "End intake; what was accepted still runs", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.CloseSession(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return a.Say(s, "%s is closed\n", s.ID)
		})}
	closeIt.Flags().StringVar(&reason, "reason", "", "why, for the record")
	var yes bool
	erase := &cobra.Command{Use: "erase SESSION", Short: "Delete the content of a session; the chain stays whole", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if !yes {
				return console.Usage(errors.New("erasing cannot be undone; say --yes"))
			}
			if err := c.EraseSession(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.Say(map[string]any{"erased": args[0]}, "%s is erased\n", args[0])
		})}
	erase.Flags().BoolVar(&yes, "yes", false, "really")
	interrupt := &cobra.Command{Use: "interrupt SESSION", Short: "Stop the active run; queued runs stay", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			asked, err := c.Interrupt(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			text := "asked the active run to stop\n"
			if !asked {
				text = "no run is active\n"
			}
			return a.Say(api.Interrupt{Requested: asked}, "%s", text)
		})}
	interrupt.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return console.Group("sessions", "Create, look at and end sessions", list, show, a.createCommand(), a.contractCommand(), a.diffCommand(), closeIt, interrupt, a.compactCommand(), erase)
}

func (a app) createCommand() *cobra.Command {
	var req api.CreateSession
	var in, out, webhook, secret, instructions, route, model string
	var repairs int
	c := &cobra.Command{Use: "create [ALIAS]", Short: "Create a session", Args: cobra.MaximumNArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 1 {
				req.ID = args[0]
			}
			if out == "" && cmd.Flags().Changed("max-repairs") {
				return console.Usage(errors.New("--max-repairs belongs to an output contract; name one with --output-contract"))
			}
			if in != "" {
				schema, err := readSchema(in)
				if err != nil {
					return err
				}
				req.InputContract = &api.InputContract{Schema: schema}
			}
			if out != "" {
				schema, err := readSchema(out)
				if err != nil {
					return err
				}
				req.OutputContract = &api.OutputContract{Schema: schema}
				if cmd.Flags().Changed("max-repairs") {
					req.OutputContract.MaxRepairAttempts = &repairs
				}
			}
			if instructions != "" {
				text, err := os.ReadFile(instructions)
				if err != nil {
					return console.Usage(err)
				}
				if at := words.InvalidUTF8(string(text)); at >= 0 {
					return console.Usage(fmt.Errorf("%s is not UTF-8 (at byte %d)", instructions, at))
				}
				req.Instructions = string(text)
			}
			if webhook != "" {
				req.ReplyTargets = []api.ReplyTarget{{Type: "webhook", URL: webhook, Secret: secret}}
			}
			if route != "" || model != "" {
				req.RoutePolicy = &api.RoutePolicy{Route: route, Model: model}
			}
			s, err := c.CreateSession(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return a.Say(s, "%s\n", s.ID)
		})}
	f := c.Flags()
	f.StringVar(&in, "input-contract", "", "file with the JSON Schema of submissions")
	f.StringVar(&out, "output-contract", "", "file with the JSON Schema of answers")
	f.IntVar(&repairs, "max-repairs", 3, "how often a wrong answer is repaired, 5 at most")
	f.StringVar(&instructions, "instructions", "", "file with the system text")
	f.StringVar(&webhook, "webhook", "", "where answers go")
	f.StringVar(&secret, "secret", "", "name of the configured secret that signs them")
	f.StringVar(&route, "route", "", "route to the model")
	f.StringVar(&model, "model", "", "model, instead of the route's")
	f.StringVar(&req.Title, "title", "", "title")
	f.IntVar(&req.MaxTurns, "max-turns", 0, "turns of a run at most (default 50)")
	f.StringVar(&req.OnDoubt, "on-doubt", "", "what an effect in doubt does to a run: ask or continue")
	return c
}

func (a app) contractCommand() *cobra.Command {
	var repairs int
	var remove bool
	c := &cobra.Command{Use: "contract SESSION input|output [FILE]", Short: "Show, set or remove a contract", Args: cobra.RangeArgs(2, 3),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ctx, session, kind := cmd.Context(), args[0], args[1]
			if kind != "input" && kind != "output" || remove && len(args) == 3 {
				return console.Usage(errors.New("say input or output, and either FILE or --remove"))
			}
			if cmd.Flags().Changed("max-repairs") && (kind != "output" || len(args) != 3) {
				return console.Usage(errors.New("--max-repairs belongs to an output contract that is set; name its FILE"))
			}
			var schema api.Raw
			var err error
			if len(args) == 3 {
				if schema, err = readSchema(args[2]); err != nil {
					return err
				}
			}
			var shown any
			switch {
			case remove && kind == "input":
				err = c.DeleteInputContract(ctx, session)
			case remove:
				err = c.DeleteOutputContract(ctx, session)
			case schema == nil && kind == "input":
				shown, err = c.InputContract(ctx, session)
			case schema == nil:
				shown, err = c.OutputContract(ctx, session)
			case kind == "input":
				shown, err = c.SetInputContract(ctx, session, &api.InputContract{Schema: schema})
			default:
				oc := &api.OutputContract{Schema: schema}
				if cmd.Flags().Changed("max-repairs") {
					oc.MaxRepairAttempts = &repairs
				}
				shown, err = c.SetOutputContract(ctx, session, oc)
			}
			if err != nil {
				return err
			}
			if remove {
				return a.Say(map[string]any{"removed": kind}, "the %s contract is removed\n", kind)
			}
			return a.Print(shown)
		})}
	c.Flags().IntVar(&repairs, "max-repairs", 3, "how often a wrong answer is repaired, 5 at most")
	c.Flags().BoolVar(&remove, "remove", false, "remove the contract")
	return c
}

// readSchema reads a file of one strict JSON value; what it says is the
// daemon's to judge.
func readSchema(file string) (api.Raw, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, console.Usage(err)
	}
	_, err = canonjson.Parse(data, canonjson.Limits{Depth: maxSchemaDepth, Bytes: console.MaxInput})
	var se *canonjson.SyntaxError
	if errors.As(err, &se) {
		text := se.Msg
		if se.Path != "$" {
			text = se.Path + ": " + text
		}
		line, column := placeOf(data, se.Offset)
		return nil, console.Usage(fmt.Errorf("%s:%d:%d: %s", file, line, column, text))
	}
	return data, err
}

// maxSchemaDepth is past what a contract may nest, so that the daemon says so.
const maxSchemaDepth = 256

// placeOf gives line and column (in runes), from 1, of a byte of a text.
func placeOf(data []byte, offset int64) (line, column int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[start:]) + 1
}
