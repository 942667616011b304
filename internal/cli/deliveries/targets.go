package deliveries

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) targetsCommand() *cobra.Command {
	var q client.TargetsQuery
	var page client.Page
	var again, one console.WatchFlags
	list := &cobra.Command{Use: "list", Short: "List the receivers that deliveries went to", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			return a.Watch(cmd.Context(), &again, func(ctx context.Context) error {
				l, err := c.Targets(ctx, q, page)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.Print(l)
				}
				err = a.Table("TARGET\tUSER\tTYPE\tSTATE\tPENDING\tIN FLIGHT\tBLOCKED\tDEAD\tNEXT\tLAST FAILURE\tRECEIVER", func(w *tabwriter.Writer) {
					for i := range l.Items {
						t := &l.Items[i]
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", t.ID, t.UserID, t.Type, targetState(t), t.Pending, t.InFlight, t.Blocked, t.DeadLettered,
							words.Soon(t.NextAt), lastFailure(t), cmp.Or(words.Cut(words.Clean(t.Receiver), maxReceiver), "-"))
					}
				})
				a.More(l.NextCursor)
				return err
			})
		})}
	list.Flags().StringVar(&q.Status, "status", "", "only with deliveries that are pending or dead_lettered")
	list.Flags().StringVar(&q.Type, "type", "", "only of this type")
	again.Add(list)
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show TARGET", Short: "Show how deliveries to a receiver stand", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.Watch(cmd.Context(), &one, func(ctx context.Context) error {
				t, err := c.Target(ctx, args[0])
				if err != nil {
					return err
				}
				return a.showTarget(t)
			})
		})}
	one.Add(show)
	return console.Group("targets", "Look at receivers, try and pause them, and mend their circuits", list, show, a.testTargetCommand(), a.keygenCommand(),
		a.changeTargetCommand("pause", "Send nothing more to a receiver; what waits and what comes is parked", (*client.Client).PauseTarget, "%s is paused\n"),
		a.changeTargetCommand("resume", "Go on with a paused receiver", (*client.Client).ResumeTarget, "%s goes on\n"),
		a.changeTargetCommand("reset", "Close the circuit of a receiver: what waits is sent at once", (*client.Client).ResetTarget, "%s is tried at once\n"))
}

func (a app) changeTargetCommand(use, short string, do func(*client.Client, context.Context, string, string) (*api.Target, error), said string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: use + " TARGET", Short: short, Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := do(c, cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			if t.Unchanged {
				return a.Say(t, "%s\n", alreadySo(t))
			}
			if use == "reset" && t.Paused != nil {
				return a.Say(t, "the circuit of %s is closed; the target stays paused: holdfast targets resume %s\n", t.ID, t.ID)
			}
			return a.Say(t, said, t.ID)
		})}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

// alreadySo says why a change of a target changed nothing.
func alreadySo(t *api.Target) string {
	if t.Paused == nil {
		return t.ID + " was not paused; nothing changed"
	}
	return words.Clean(t.ID + " was paused already, " + pausedBy(t.Paused) + "; that stays, and no other reason is kept")
}

func pausedBy(p *api.Pause) string {
	why := "a person wants it so"
	if p.Code != "requested" {
		why = "it answered that it is gone (410)"
	}
	return fmt.Sprintf("since %s, by %s: %s", words.Stamp(p.At), cmp.Or(p.By, "the receiver's word"), cmp.Or(p.Reason, why))
}

// maxReceiver is how much of a receiver's address a table shows, in runes.
const maxReceiver = 60

// showTarget prints a target for people, or as JSON.
func (a app) showTarget(t *api.Target) error {
	if a.JSON {
		return a.Print(t)
	}
	return a.Table("TARGET\t"+t.ID, func(w *tabwriter.Writer) {
		line := func(name, format string, args ...any) {
			fmt.Fprintf(w, "%s\t%s\n", name, words.Clean(fmt.Sprintf(format, args...)))
		}
		line("type", "%s, of %s", t.Type, t.UserID)
		line("receiver", "%s", cmp.Or(t.Receiver, "-"))
		line("state", "%s", targetState(t))
		if p := t.Paused; p != nil {
			line("paused", "%s", pausedBy(p))
		}
		line("failures", "%d in a row", t.Failures)
		if t.OpenUntil != nil {
			line("left alone", "until %s (%s)", words.Stamp(*t.OpenUntil), words.Soon(t.OpenUntil))
		}
		if t.HeldUntil != nil {
			line("asked to wait", "until %s (%s)", words.Stamp(*t.HeldUntil), words.Soon(t.HeldUntil))
		}
		if f := t.LastFailure; f != nil {
			line("last failure", "%s: %s (%s)", words.Stamp(f.At), f.Code, f.Class)
		}
		line("pending", "%d, of which %d in flight and %d blocked", t.Pending, t.InFlight, t.Blocked)
		if t.OldestPendingAt != nil {
			line("oldest", "%s", words.Stamp(*t.OldestPendingAt))
		}
		if t.NextAt != nil {
			line("next attempt", "%s (%s)", words.Stamp(*t.NextAt), words.Soon(t.NextAt))
		}
		line("dead letters", "%d", t.DeadLettered)
		if t.LastMadeAt != nil {
			line("last delivery", "%s %s, made %s", t.LastDeliveryID, cmp.Or(t.LastStatus, "-"), words.Stamp(*t.LastMadeAt))
		}
	})
}

// targetState is how a target fares, in one word.
func targetState(t *api.Target) string {
	switch {
	case t.Paused != nil:
		return "paused"
	case t.Circuit != api.CircuitClosed:
		return "circuit " + t.Circuit
	case t.HeldUntil != nil:
		return "asked to wait"
	case t.Failures > 0:
		return "failing"
	}
	return "ok"
}

func lastFailure(t *api.Target) string {
	if t.LastFailure == nil {
		return "-"
	}
	return t.LastFailure.Code + " " + words.Stamp(t.LastFailure.At)
}
