package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func or(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

func (a *app) sessionsCommand() *cobra.Command {
	var q client.SessionsQuery
	var page client.Page
	var when whenFlags
	list := &cobra.Command{Use: "list", Short: "List sessions, newest first", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.get(); err != nil {
				return err
			}
			l, err := c.Sessions(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("SESSION\tALIAS\tUSER\tSTATUS\tCREATED\tTITLE", func(w *tabwriter.Writer) {
				for _, s := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, or(s.Alias, "-"), s.UserID, s.Status, stamp(s.CreatedAt), clean(s.Title))
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	list.Flags().StringVar(&q.Status, "status", "", "only open or closed ones")
	list.Flags().StringVar(&q.ThreadID, "thread", "", "only those of this thread")
	when.add(list)
	pageFlags(list, &page)
	show := &cobra.Command{Use: "show SESSION", Short: "Show a session", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.Session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(s)
		})}
	var reason string
	closeIt := &cobra.Command{Use: "close SESSION", Short: "End intake; what was accepted still runs", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.CloseSession(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return a.say(s, "%s is closed\n", s.ID)
		})}
	closeIt.Flags().StringVar(&reason, "reason", "", "why, for the record")
	var yes bool
	erase := &cobra.Command{Use: "erase SESSION", Short: "Delete the content of a session; the chain stays whole", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if !yes {
				return usageError{errors.New("erasing cannot be undone; say --yes")}
			}
			if err := c.EraseSession(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.say(map[string]any{"erased": args[0]}, "%s is erased\n", args[0])
		})}
	erase.Flags().BoolVar(&yes, "yes", false, "really")
	interrupt := &cobra.Command{Use: "interrupt SESSION", Short: "Stop the active run; queued runs stay", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			asked, err := c.Interrupt(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			text := "asked the active run to stop\n"
			if !asked {
				text = "no run is active\n"
			}
			return a.say(api.Interrupt{Requested: asked}, "%s", text)
		})}
	interrupt.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return group("sessions", "Create, look at and end sessions", list, show, a.createCommand(), a.contractCommand(), a.diffCommand(), closeIt, interrupt, a.compactCommand(), erase)
}

func (a *app) createCommand() *cobra.Command {
	var req api.CreateSession
	var in, out, webhook, secret, instructions, route, model string
	var repairs int
	c := &cobra.Command{Use: "create [ALIAS]", Short: "Create a session", Args: cobra.MaximumNArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 1 {
				req.ID = args[0]
			}
			if out == "" && cmd.Flags().Changed("max-repairs") {
				return usageError{errors.New("--max-repairs belongs to an output contract; name one with --output-contract")}
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
					return usageError{err}
				}
				if at := invalidUTF8(string(text)); at >= 0 {
					return usageError{fmt.Errorf("%s is not UTF-8 (at byte %d)", instructions, at)}
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
			return a.say(s, "%s\n", s.ID)
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

func (a *app) contractCommand() *cobra.Command {
	var repairs int
	var remove bool
	c := &cobra.Command{Use: "contract SESSION input|output [FILE]", Short: "Show, set or remove a contract", Args: cobra.RangeArgs(2, 3),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ctx, session, kind := cmd.Context(), args[0], args[1]
			if kind != "input" && kind != "output" || remove && len(args) == 3 {
				return usageError{errors.New("say input or output, and either FILE or --remove")}
			}
			if cmd.Flags().Changed("max-repairs") && (kind != "output" || len(args) != 3) {
				return usageError{errors.New("--max-repairs belongs to an output contract that is set; name its FILE")}
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
				return a.say(map[string]any{"removed": kind}, "the %s contract is removed\n", kind)
			}
			return a.print(shown)
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
		return nil, usageError{err}
	}
	_, err = canonjson.Parse(data, canonjson.Limits{Depth: maxSchemaDepth, Bytes: maxInput})
	var se *canonjson.SyntaxError
	if errors.As(err, &se) {
		text := se.Msg
		if se.Path != "$" {
			text = se.Path + ": " + text
		}
		line, column := placeOf(data, se.Offset)
		return nil, usageError{fmt.Errorf("%s:%d:%d: %s", file, line, column, text)}
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

// say prints v as JSON, or the text.
func (a *app) say(v any, format string, args ...any) error {
	if a.json {
		return a.print(v)
	}
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}

// more says how to go on with a list.
func (a *app) more(cursor string) {
	if cursor != "" {
		fmt.Fprintf(a.err, "there are more: --cursor %s\n", cursor)
	}
}

func pageFlags(c *cobra.Command, p *client.Page) {
	c.Flags().IntVar(&p.Limit, "limit", 50, "rows at most")
	c.Flags().StringVar(&p.Cursor, "cursor", "", "go on from here")
}

// whenFlags are the flags of a list that goes by time.
type whenFlags struct{ since, until, order string }

func (w *whenFlags) add(c *cobra.Command) {
	timeFlags(c, &w.since, &w.until)
	c.Flags().StringVar(&w.order, "order", "", "desc, newest first, or asc, oldest first (default desc)")
}

func timeFlags(c *cobra.Command, since, until *string) {
	c.Flags().StringVar(since, "since", "", "only what was made from then on: a time (RFC 3339), or so long ago, as in 2h")
	c.Flags().StringVar(until, "until", "", "only what was made before then: a time (RFC 3339), or so long ago, as in 30m")
}

func (w *whenFlags) get() (r client.Range, err error) {
	if r.Since, err = moment("since", w.since); err != nil {
		return r, err
	}
	if r.Until, err = moment("until", w.until); err != nil {
		return r, err
	}
	switch w.order {
	case "", "desc":
	case "asc":
		r.Asc = true
	default:
		return r, usageError{errors.New("--order is asc or desc")}
	}
	return r, nil
}

// moment reads a time, or a duration before now; empty: zero.
func moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	return time.Time{}, usageError{fmt.Errorf("--%s wants a time such as 2026-11-30T12:00:00Z, or a duration such as 2h", flag)}
}
