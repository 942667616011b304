package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) runCommand() *cobra.Command {
	var session, file, key, route, model string
	var attach []string
	var follow, detach, create bool
	c := &cobra.Command{
		Use:   "run [TEXT]",
		Short: "Submit work, wait for the answer, and exit by the outcome",
		Long: "Submit work to a session and wait for the answer. The answer goes to standard output: the text, or the\n" +
			"canonical JSON of a session with an output contract. The input is TEXT, a file, or standard input (TEXT is -).\n" +
			"Without --session it is the session `default`, which is created when it is not there yet. Another one must exist, or\n" +
			"is created under the given alias with --create. With --follow --json the output is NDJSON: a line for each event,\n" +
			"then one for the run.\n\n" +
			"Exit codes: 0 completed, 1 failed, interrupted, cancelled or waiting for a person, 4 refused.",
		Args: cobra.MaximumNArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			a.Lines = follow
			text, err := a.input(args, file)
			if err != nil {
				return err
			}
			if at := words.InvalidUTF8(text); at >= 0 {
				return console.Usage(fmt.Errorf("the input is not UTF-8 (at byte %d)", at))
			}
			req := &api.SubmitRun{Content: api.Text(text), Route: route, Model: model}
			for _, path := range attach {
				asset, err := putFile(cmd.Context(), c, path)
				if err != nil {
					return err
				}
				req.Attachments = append(req.Attachments, asset.ID)
			}
			run, err := a.submit(cmd.Context(), c, session, create || !cmd.Flags().Changed("session"), req, key)
			if err != nil {
				return err
			}
			if detach {
				return a.showRun(run)
			}
			if follow {
				err = a.follow(cmd.Context(), c, run.ID)
			}
			if err == nil {
				run, err = c.Wait(cmd.Context(), run.ID)
			}
			if err != nil {
				return err
			}
			return a.outcome(run)
		}),
	}
	f := c.Flags()
	f.StringVarP(&session, "session", "s", "default", "session: its id or alias")
	f.StringVarP(&file, "file", "f", "", "read the input from a file")
	f.StringArrayVar(&attach, "attach", nil, "hand in a file (picture, PDF or text) with the input; may be given several times")
	f.StringVar(&key, "key", "", "idempotency key: the same key and input give the same run")
	f.StringVar(&route, "route", "", "route to the model, instead of the session's")
	f.StringVar(&model, "model", "", "model, instead of the route's")
	f.BoolVar(&follow, "follow", false, "show turns, tools and repairs as they happen")
	f.BoolVar(&create, "create", false, "create the session when its alias is not there yet")
	f.BoolVar(&detach, "detach", false, "do not wait; print the run")
	return c
}

// input reads the text of a submission.
func (a app) input(args []string, file string) (string, error) {
	var from io.Reader
	switch {
	case file != "" && len(args) > 0:
		return "", console.Usage(errors.New("give TEXT or --file, not both"))
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return "", console.Usage(err)
		}
		defer f.Close()
		from = f
	case len(args) == 0 && console.Terminal(a.in2()):
		return "", console.Usage(errors.New("give TEXT, --file, or the input on standard input"))
	case len(args) == 0 || args[0] == "-":
		from = a.In
	default:
		return args[0], nil
	}
	data, err := io.ReadAll(io.LimitReader(from, console.MaxInput+1))
	if err != nil {
		return "", err
	}
	if len(data) > console.MaxInput {
		return "", console.Usage(fmt.Errorf("the input holds more than %d bytes", console.MaxInput))
	}
	return string(data), nil
}

// in2 is standard input as something that may be a terminal.
func (a app) in2() io.Writer {
	if f, ok := a.In.(*os.File); ok {
		return f
	}
	return io.Discard
}

// submit submits. With create an alias that nobody has yet becomes a session.
func (a app) submit(ctx context.Context, c *client.Client, session string, create bool, req *api.SubmitRun, key string) (*api.Run, error) {
	var opts []client.SubmitOption
	if key != "" {
		opts = append(opts, client.IdempotencyKey(key))
	}
	run, _, err := c.Submit(ctx, session, req, opts...)
	switch {
	case client.Code(err) != "session_not_found" || strings.HasPrefix(session, "ses_"):
		return run, err
	case !create:
		return nil, console.Hint(err, "create it with: holdfast sessions create "+session+", or say --create")
	}
	if _, err := c.CreateSession(ctx, &api.CreateSession{ID: session}); err != nil && client.Code(err) != "session_exists" {
		return nil, err
	}
	run, _, err = c.Submit(ctx, session, req, opts...)
	return run, err
}

// outcome prints the answer and gives the exit code of the run.
func (a app) outcome(run *api.Run) error {
	if a.JSON {
		show := a.Print
		if a.Lines {
			show = a.Line
		}
		if err := show(run); err != nil {
			return err
		}
	} else if run.Status == api.RunCompleted {
		for _, o := range run.Outputs {
			fmt.Fprintln(a.Out, o.Content)
		}
	}
	switch {
	case run.Status == api.RunCompleted:
		return nil
	case run.Status == api.RunNeedsAttention:
		calls := make([]string, len(run.Attention))
		for i, at := range run.Attention {
			calls[i] = at.CallID
		}
		return console.Exit(console.ExitFailed, "", fmt.Sprintf("run %s waits for a person: nobody knows whether %s took effect; settle it with: holdfast runs resolve %s %s completed|failed|retry",
			run.ID, strings.Join(calls, ", "), run.ID, strings.Join(calls[:min(1, len(calls))], "")))
	case run.Error != nil:
		return console.Exit(console.ExitFailed, "", fmt.Sprintf("run %s %s: %s (%s)", run.ID, run.Status, run.Error.Message, run.Error.Code))
	}
	return console.Exit(console.ExitFailed, "", fmt.Sprintf("run %s %s", run.ID, run.Status))
}

// follow shows a run as it happens, until it is at its end or waits.
func (a app) follow(ctx context.Context, c *client.Client, run string) error {
	v := &follower{w: a.Err, live: console.Terminal(a.Err)}
	var last int64
	for {
		err := c.StreamRun(ctx, run, last, func(m client.Message) error {
			switch {
			case m.Event != nil:
				last = m.Event.Seq
				if a.JSON {
					if err := a.Line(m.Event); err != nil {
						return err
					}
				} else {
					v.event(m.Event)
				}
				if m.Event.Type == "run.needs_attention" {
					return errWaiting
				}
			case a.JSON:
			case m.Delta != nil:
				v.delta(m.Delta)
			case m.Gap != nil:
				v.gap()
			case m.Synced != nil:
				v.from(m.Synced.Live)
			default:
				v.from(m.Live)
			}
			return nil
		})
		if !errors.Is(err, errWaiting) {
			return err
		}
		// It may have waited long ago.
		r, err := c.Run(ctx, run)
		if err != nil || r.Status == api.RunNeedsAttention {
			return err
		}
	}
}
