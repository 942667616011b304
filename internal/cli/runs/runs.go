package runs

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) runsCommand() *cobra.Command {
	var q client.RunsQuery
	var page client.Page
	var when console.WhenFlags
	list := &cobra.Command{Use: "list", Short: "List runs, newest first", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.Get(); err != nil {
				return err
			}
			if q.SessionID, err = console.SessionID(cmd.Context(), c, q.SessionID); err != nil {
				return err
			}
			l, err := c.Runs(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("RUN\tSTATUS\tSUBMITTED\tSESSION\tINPUT", func(w *tabwriter.Writer) {
				for _, r := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.ID, r.Status, words.Stamp(r.SubmittedAt), r.SessionID, words.Clean(words.Short(r.Request.TextPreview)))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	list.Flags().StringVar(&q.Status, "status", "", "only runs of this status")
	list.Flags().StringVarP(&q.SessionID, "session", "s", "", "only runs of this session: its id or alias")
	when.Add(list)
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show RUN", Short: "Show a run", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			r, err := c.Run(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(r)
		})}
	wait := &cobra.Command{Use: "wait RUN", Short: "Wait for a run and exit by its outcome", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			r, err := c.Wait(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.outcome(r)
		})}
	follow := &cobra.Command{Use: "follow RUN", Short: "Show a run as it happens, and exit by its outcome", Args: cobra.ExactArgs(1),
		Long: "Show a run as it happens, and exit by its outcome. With --json the output is NDJSON: a line for each event, then\n" +
			"one for the run.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			a.Lines = true
			if err := a.follow(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			r, err := c.Run(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.outcome(r)
		})}
	var reason string
	cancel := &cobra.Command{Use: "cancel RUN", Short: "Cancel a run, queued or active", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			r, err := c.Cancel(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return a.Say(r, "asked %s to end\n", r.ID)
		})}
	cancel.Flags().StringVar(&reason, "reason", "", "why, for the record")
	var output string
	resolve := &cobra.Command{
		Use: "resolve RUN CALL completed|failed|retry", Short: "Settle an effect in doubt", Args: cobra.ExactArgs(3),
		Long: "Settle a tool call that began and whose outcome nobody knows: completed (it took effect; --output is what the\n" +
			"model sees), failed (it did not), or retry (start it again under a new call id).",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			r, err := c.ResolveAttention(cmd.Context(), args[0], &api.ResolveAttention{CallID: args[1], Resolution: args[2], Output: output, Reason: reason})
			if err != nil {
				return err
			}
			return a.Say(r, "%s is settled\n", args[1])
		})}
	resolve.Flags().StringVar(&output, "output", "", "what the model sees as the call's result")
	resolve.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return console.Group("runs", "Look at, follow and end runs", list, show, a.timelineCommand(), wait, follow, cancel, resolve)
}

func (a app) showRun(r *api.Run) error { return a.Say(r, "%s\n", r.ID) }

func (a app) eventsCommand() *cobra.Command {
	var session, run, cursor, since, until string
	var q client.EventsQuery
	var after int64
	var limit int
	var follow bool
	c := &cobra.Command{
		Use: "events", Short: "Read the log: of a session, of a run, or of all streams in the order of commits", Args: cobra.NoArgs,
		Long: "Read the log: of a session, of a run, or of all streams in the order of commits.\n" +
			"With --json the output is NDJSON: a line for each event.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			ctx := cmd.Context()
			a.Lines = true
			var err error
			if q.Since, err = console.Moment("since", since); err != nil {
				return err
			}
			if q.Until, err = console.Moment("until", until); err != nil {
				return err
			}
			narrowed := len(q.Types) > 0 || since != "" || until != ""
			tell := func(m client.Message) error {
				if m.Event == nil {
					return nil
				}
				return a.event(m.Event)
			}
			var l *api.List[api.Event]
			switch {
			case session != "" && run != "":
				return console.Usage(errors.New("say --session or --run, not both"))
			case follow && narrowed:
				return console.Usage(errors.New("--follow shows everything; it takes no --type, --since or --until"))
			case follow && run != "":
				return c.StreamRun(ctx, run, after, tell)
			case follow && session != "":
				return c.StreamSession(ctx, session, after, tell)
			case follow:
				return console.Usage(errors.New("--follow wants --session or --run"))
			case run != "":
				l, err = c.RunEvents(ctx, run, q, after, limit)
			case session != "":
				l, err = c.SessionEvents(ctx, session, q, after, limit)
			default:
				l, err = c.Events(ctx, q, cursor, limit)
			}
			if err != nil {
				return err
			}
			for i := range l.Items {
				if err := a.event(&l.Items[i]); err != nil {
					return err
				}
			}
			if session == "" && run == "" && l.NextCursor != "" {
				// The feed over all streams always says where to go on; only a
				// look there tells whether anything stands there yet.
				next, err := c.Events(ctx, q, l.NextCursor, 1)
				if err != nil {
					return err
				}
				if len(next.Items) == 0 {
					return nil
				}
			}
			if session != "" || run != "" {
				if l.NextCursor != "" {
					fmt.Fprintf(a.Err, "there are more: --after %s\n", l.NextCursor)
				}
				return nil
			}
			a.More(l.NextCursor)
			return nil
		}),
	}
	f := c.Flags()
	f.StringVarP(&session, "session", "s", "", "of this session")
	f.StringVarP(&run, "run", "r", "", "of this run")
	f.Int64Var(&after, "after", 0, "after this sequence")
	f.StringVar(&cursor, "cursor", "", "go on from here, over all streams")
	f.StringSliceVar(&q.Types, "type", nil, "only events of these types")
	console.TimeFlags(c, &since, &until)
	f.IntVar(&limit, "limit", 200, "events at most")
	f.BoolVar(&follow, "follow", false, "go on as they come")
	return c
}

// event prints one event: a line of JSON, or for people.
func (a app) event(e *api.Event) error {
	if a.JSON {
		return a.Line(e)
	}
	_, err := fmt.Fprintf(a.Out, "%6d  %s  %-26s  %-20s  %s\n", e.Seq, e.Time.Local().Format("15:04:05.000"), e.Type, e.FSMState, words.Clean(words.Short(string(e.Data))))
	return err
}
