package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

func (a *app) targetsCommand() *cobra.Command {
	var q client.TargetsQuery
	var page client.Page
	var again, one watchFlags
	list := &cobra.Command{Use: "list", Short: "List the receivers that deliveries went to", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			return a.watch(cmd.Context(), &again, func(ctx context.Context) error {
				l, err := c.Targets(ctx, q, page)
				if err != nil {
					return err
				}
				if a.json {
					return a.print(l)
				}
				err = a.table("TARGET\tUSER\tTYPE\tSTATE\tPENDING\tIN FLIGHT\tBLOCKED\tDEAD\tNEXT\tLAST FAILURE\tRECEIVER", func(w *tabwriter.Writer) {
					for i := range l.Items {
						t := &l.Items[i]
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", t.ID, t.UserID, t.Type, targetState(t), t.Pending, t.InFlight, t.Blocked, t.DeadLettered,
							soon(t.NextAt), lastFailure(t), or(cut(clean(t.Receiver), maxReceiver), "-"))
					}
				})
				a.more(l.NextCursor)
				return err
			})
		})}
	list.Flags().StringVar(&q.Status, "status", "", "only with deliveries that are pending or dead_lettered")
	list.Flags().StringVar(&q.Type, "type", "", "only of this type")
	again.add(list)
	pageFlags(list, &page)
	show := &cobra.Command{Use: "show TARGET", Short: "Show how deliveries to a receiver stand", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.watch(cmd.Context(), &one, func(ctx context.Context) error {
				t, err := c.Target(ctx, args[0])
				if err != nil {
					return err
				}
				return a.showTarget(t)
			})
		})}
	one.add(show)
	return group("targets", "Look at receivers, try and pause them, and mend their circuits", list, show, a.testTargetCommand(), a.keygenCommand(),
		a.changeTargetCommand("pause", "Send nothing more to a receiver; what waits and what comes is parked", (*client.Client).PauseTarget, "%s is paused\n"),
		a.changeTargetCommand("resume", "Go on with a paused receiver", (*client.Client).ResumeTarget, "%s goes on\n"),
		a.changeTargetCommand("reset", "Close the circuit of a receiver: what waits is sent at once", (*client.Client).ResetTarget, "%s is tried at once\n"))
}

func (a *app) changeTargetCommand(use, short string, do func(*client.Client, context.Context, string, string) (*api.Target, error), said string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: use + " TARGET", Short: short, Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := do(c, cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			if t.Unchanged {
				return a.say(t, "%s\n", alreadySo(t))
			}
			return a.say(t, said, t.ID)
		})}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

// alreadySo says why a change of a target changed nothing.
func alreadySo(t *api.Target) string {
	if t.Paused == nil {
		return t.ID + " was not paused; nothing changed"
	}
	return clean(t.ID + " was paused already, " + pausedBy(t.Paused) + "; that stays, and no other reason is kept")
}

func pausedBy(p *api.Pause) string {
	why := "a person wants it so"
	if p.Code != "requested" {
		why = "it answered that it is gone (410)"
	}
	return fmt.Sprintf("since %s, by %s: %s", stamp(p.At), or(p.By, "the receiver's word"), or(p.Reason, why))
}

// maxReceiver is how much of a receiver's address a table shows, in runes.
const maxReceiver = 60

// showTarget prints a target for people, or as JSON.
func (a *app) showTarget(t *api.Target) error {
	if a.json {
		return a.print(t)
	}
	return a.table("TARGET\t"+t.ID, func(w *tabwriter.Writer) {
		line := func(name, format string, args ...any) {
			fmt.Fprintf(w, "%s\t%s\n", name, clean(fmt.Sprintf(format, args...)))
		}
		line("type", "%s, of %s", t.Type, t.UserID)
		line("receiver", "%s", or(t.Receiver, "-"))
		line("state", "%s", targetState(t))
		if p := t.Paused; p != nil {
			line("paused", "%s", pausedBy(p))
		}
		line("failures", "%d in a row", t.Failures)
		if t.OpenUntil != nil {
			line("left alone", "until %s (%s)", stamp(*t.OpenUntil), soon(t.OpenUntil))
		}
		if t.HeldUntil != nil {
			line("asked to wait", "until %s (%s)", stamp(*t.HeldUntil), soon(t.HeldUntil))
		}
		if f := t.LastFailure; f != nil {
			line("last failure", "%s: %s (%s)", stamp(f.At), f.Code, f.Class)
		}
		line("pending", "%d, of which %d in flight and %d blocked", t.Pending, t.InFlight, t.Blocked)
		if t.OldestPendingAt != nil {
			line("oldest", "%s", stamp(*t.OldestPendingAt))
		}
		if t.NextAt != nil {
			line("next attempt", "%s (%s)", stamp(*t.NextAt), soon(t.NextAt))
		}
		line("dead letters", "%d", t.DeadLettered)
		if t.LastMadeAt != nil {
			line("last delivery", "%s %s, made %s", t.LastDeliveryID, or(t.LastStatus, "-"), stamp(*t.LastMadeAt))
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
	return t.LastFailure.Code + " " + stamp(t.LastFailure.At)
}

// soon is how long there is until a time.
func soon(at *time.Time) string {
	if at == nil {
		return "-"
	}
	d := time.Until(*at).Round(time.Second)
	if d <= 0 {
		return "now"
	}
	return "in " + d.String()
}
