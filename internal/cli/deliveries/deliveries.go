// Package deliveries has the commands about what goes out: deliveries, jobs over many
// of them, and the receivers.
package deliveries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// app is an invocation, with these commands.
type app struct{ *console.App }

// Commands are the commands about deliveries, jobs and targets.
func Commands(c *console.App) []*cobra.Command {
	a := app{c}
	return []*cobra.Command{a.deliveriesCommand(), a.jobsCommand(), a.targetsCommand()}
}

func (a app) deliveriesCommand() *cobra.Command {
	return console.Group("deliveries", "Look at deliveries, replay dead letters, be done with them",
		a.listDeliveriesCommand(), a.showDeliveryCommand(), a.replayDeliveryCommand(), a.resolveDeliveryCommand(), a.replayAllCommand())
}

func (a app) listDeliveriesCommand() *cobra.Command {
	var q client.DeliveriesQuery
	var page client.Page
	var when console.WhenFlags
	var watch console.WatchFlags
	list := &cobra.Command{Use: "list", Short: "List deliveries, newest first", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.Get(); err != nil {
				return err
			}
			if q.SessionID, err = console.SessionID(cmd.Context(), c, q.SessionID); err != nil {
				return err
			}
			return a.Watch(cmd.Context(), &watch, func(ctx context.Context) error {
				l, err := c.Deliveries(ctx, q, page)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.Print(l)
				}
				err = a.deliveries(l.Items)
				a.More(l.NextCursor)
				return err
			})
		})}
	f := list.Flags()
	f.StringVar(&q.Status, "status", "", "pending, retrying, delivered, dead_lettered or resolved")
	f.BoolVar(&q.Unresolved, "unresolved", false, "only dead letters that nobody resolved")
	f.StringVar(&q.ErrorClass, "class", "", "only those that failed so: network, timeout, server, refused, …")
	f.StringVarP(&q.SessionID, "session", "s", "", "of this session: its id or alias")
	f.StringVarP(&q.RunID, "run", "r", "", "of this run")
	f.StringVar(&q.TargetID, "target", "", "to this target")
	when.Add(list)
	watch.Add(list)
	console.PageFlags(list, &page)
	return list
}

// deliveries prints a table of deliveries.
func (a app) deliveries(list []api.Delivery) error {
	return a.Table("DELIVERY\tSTATUS\tATTEMPTS\tREPLAYS\tLAST\tCREATED\tRUN\tTARGET", func(w *tabwriter.Writer) {
		for i := range list {
			d := &list[i]
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", d.ID, d.Status, d.Attempts, d.Replays, lastOf(d), words.Stamp(d.CreatedAt), d.RunID, d.TargetID)
		}
	})
}

// lastOf tells a delivery's last failure.
func lastOf(d *api.Delivery) string {
	switch {
	case d.LastCode == "":
		return "-"
	case d.LastClass == "" || d.LastClass == d.LastCode:
		return d.LastCode
	}
	return d.LastCode + " (" + d.LastClass + ")"
}

func (a app) showDeliveryCommand() *cobra.Command {
	var watch console.WatchFlags
	show := &cobra.Command{Use: "show DELIVERY", Short: "Show a delivery: its attempts, its replays, and who resolved it", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.Watch(cmd.Context(), &watch, func(ctx context.Context) error {
				d, err := c.Delivery(ctx, args[0])
				if err != nil {
					return err
				}
				return a.showDelivery(ctx, c, d)
			})
		})}
	watch.Add(show)
	return show
}

// people tells what people did with a delivery.
func people(w io.Writer, d *api.Delivery) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	for i, r := range d.ReplayHistory {
		how := ""
		if r.Forced {
			how = ", forced"
		}
		if r.JobID != "" {
			how += ", by " + r.JobID
		}
		row(fmt.Sprintf("replay %d", i+1), "%s by %s%s%s", words.Stamp(r.At), cmp.Or(words.Clean(r.Actor), "?"), how, whyOf(r.Reason))
	}
	if r := d.Resolution; r != nil {
		row("resolved", "%s by %s%s", words.Stamp(r.At), cmp.Or(words.Clean(r.Actor), "?"), whyOf(r.Reason))
	}
}

func whyOf(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + words.Clean(reason)
}

func (a app) replayDeliveryCommand() *cobra.Command {
	var req api.ReplayDelivery
	replay := &cobra.Command{Use: "replay DELIVERY", Short: "Send a dead letter again, with the same id and bytes", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.ReplayDelivery(cmd.Context(), args[0], &req)
			if err != nil {
				return err
			}
			return a.Say(d, "%s stands at the end of its lane\n", d.ID)
		})}
	replay.Flags().BoolVar(&req.Force, "force", false, "also one that was replayed already, resolved or delivered; wants --reason")
	replay.Flags().StringVar(&req.Reason, "reason", "", "why, for the record")
	return replay
}

func (a app) resolveDeliveryCommand() *cobra.Command {
	var why string
	resolve := &cobra.Command{Use: "resolve DELIVERY", Short: "Be done with a delivery: it is not sent any more", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.ResolveDelivery(cmd.Context(), args[0], why)
			if err != nil {
				return err
			}
			return a.Say(d, "%s is resolved\n", d.ID)
		})}
	resolve.Flags().StringVar(&why, "reason", "", "why, for the record; it must be given")
	return resolve
}

func (a app) replayAllCommand() *cobra.Command {
	var req api.ReplayDeliveries
	var f api.DeliveryFilter
	var when console.WhenFlags
	var follow bool
	all := &cobra.Command{Use: "replay-all", Short: "Send many dead letters again, as a job", Args: cobra.NoArgs,
		Long: "Send many dead letters again, as a job that goes on over restarts. At least one filter must be given. With --dry-run\n" +
			"nothing is replayed: the exact set is shown, and a plan that --plan replays, unless the set has changed by then.\n" +
			"With --watch the job is followed to its end; the command then fails when some could not be replayed.",
		Example: "  holdfast deliveries replay-all --unresolved --class server --dry-run\n  holdfast deliveries replay-all --plan PLAN --watch",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			ctx := cmd.Context()
			if cmd.Flags().Changed("limit") && req.Limit < 1 {
				return console.Usage(errors.New("--limit must be at least 1"))
			}
			r, err := when.Get()
			if err != nil {
				return err
			}
			if !r.Since.IsZero() {
				f.Since = &r.Since
			}
			if !r.Until.IsZero() {
				f.Until = &r.Until
			}
			if f.SessionID, err = console.SessionID(ctx, c, f.SessionID); err != nil {
				return err
			}
			if f != (api.DeliveryFilter{}) || req.PlanToken == "" {
				req.Filter = &f
			}
			if req.DryRun {
				p, err := c.PlanReplay(ctx, &req)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.Print(p)
				}
				return a.plan(p)
			}
			j, err := c.ReplayDeliveries(ctx, &req)
			if err != nil {
				return err
			}
			if follow {
				return a.followJob(ctx, c, j.ID)
			}
			if j.Status == api.JobCompleted || j.Status == api.JobCancelled { // of a plan that was started before
				return a.Say(j, "%s\n", progress(j))
			}
			return a.Say(j, "%s replays %s; follow it with: holdfast jobs show %s --watch\n", j.ID, words.Count(int(j.Total), "dead letter"), j.ID)
		})}
	fl := all.Flags()
	fl.StringVar(&f.Status, "status", "", "dead_lettered, or with --force resolved")
	fl.BoolVar(&f.Unresolved, "unresolved", false, "every dead letter that nobody resolved")
	fl.StringVar(&f.ErrorClass, "class", "", "only those that failed so: network, timeout, server, refused, …")
	fl.StringVarP(&f.SessionID, "session", "s", "", "of this session: its id or alias")
	fl.StringVarP(&f.RunID, "run", "r", "", "of this run")
	fl.StringVar(&f.TargetID, "target", "", "to this target")
	when.AddBounds(all)
	fl.BoolVar(&req.DryRun, "dry-run", false, "show the set and a plan, and replay nothing")
	fl.StringVar(&req.PlanToken, "plan", "", "replay exactly the set of this plan")
	fl.IntVar(&req.Limit, "limit", 0, "deliveries at most, oldest first (default 10000)")
	fl.BoolVar(&req.Force, "force", false, "for deliveries that were resolved; wants --reason")
	fl.StringVar(&req.Reason, "reason", "", "why, for the record")
	fl.BoolVarP(&follow, "watch", "w", false, "follow the job to its end")
	return all
}

// plan shows what a dry run found.
func (a app) plan(p *api.ReplayPlan) error {
	fmt.Fprintf(a.Out, "%s would be replayed", words.Count(int(p.Count), "dead letter"))
	if p.Truncated {
		fmt.Fprintf(a.Out, ", the oldest; more pass the filter than the limit of %d lets in", p.Limit)
	}
	fmt.Fprint(a.Out, ":\n")
	for _, id := range p.DeliveryIDs {
		fmt.Fprintf(a.Out, "  %s\n", id)
	}
	if more := int(p.Count) - len(p.DeliveryIDs); more > 0 {
		fmt.Fprintf(a.Out, "  and %d more: holdfast jobs deliveries %s\n", more, p.JobID)
	}
	_, err := fmt.Fprintf(a.Out, "\nUntil %s, and as long as the set stays as it is:\n  holdfast deliveries replay-all --plan %s\n", words.Stamp(p.ExpiresAt), p.PlanToken)
	return err
}

// followEvery is how often a job is looked at that is followed.
const followEvery = 500 * time.Millisecond

// followJob shows a job until its end, on a terminal as one line that moves.
func (a app) followJob(ctx context.Context, c *client.Client, id string) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	moves := console.Terminal(a.Err) && !a.JSON
	for {
		j, err := c.Job(ctx, id)
		if err != nil {
			return err
		}
		if moves {
			fmt.Fprintf(a.Err, "\r\x1b[K%s", progress(j))
		}
		if j.Status == api.JobCompleted || j.Status == api.JobCancelled {
			if moves {
				io.WriteString(a.Err, "\r\x1b[K")
			}
			if err := a.Say(j, "%s\n", progress(j)); err != nil {
				return err
			}
			if j.Status == api.JobCancelled || j.Skipped > 0 {
				return console.Exit(console.ExitFailed, "", fmt.Sprintf("%s: not everything was replayed; holdfast jobs deliveries %s says why", j.ID, j.ID))
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// progress tells how a job stands, in one line.
func progress(j *api.Job) string {
	text := fmt.Sprintf("%s %s: %d of %d replayed", j.ID, j.Status, j.Done, j.Total)
	if j.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", j.Skipped)
	}
	return text
}

func (a app) jobsCommand() *cobra.Command {
	var q client.JobsQuery
	var page, items client.Page
	var when console.WhenFlags
	var watch, watchOne console.WatchFlags
	list := &cobra.Command{Use: "list", Short: "List jobs, newest first", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.Get(); err != nil {
				return err
			}
			return a.Watch(cmd.Context(), &watch, func(ctx context.Context) error {
				l, err := c.Jobs(ctx, q, page)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.Print(l)
				}
				err = a.Table("JOB\tSTATUS\tDONE\tSKIPPED\tTOTAL\tCREATED\tBY", func(w *tabwriter.Writer) {
					for _, j := range l.Items {
						fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", j.ID, j.Status, j.Done, j.Skipped, j.Total, words.Stamp(j.CreatedAt), cmp.Or(words.Clean(j.Actor), "-"))
					}
				})
				a.More(l.NextCursor)
				return err
			})
		})}
	list.Flags().StringVar(&q.Status, "status", "", "planned, running, cancelling, completed or cancelled")
	when.Add(list)
	watch.Add(list)
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show JOB", Short: "Show how a job stands", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.Watch(cmd.Context(), &watchOne, func(ctx context.Context) error {
				j, err := c.Job(ctx, args[0])
				if err != nil {
					return err
				}
				return a.Say(j, "%s\n", progress(j))
			})
		})}
	watchOne.Add(show)
	deliveries := &cobra.Command{Use: "deliveries JOB", Short: "List the deliveries of a job, and what came of each", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			l, err := c.JobDeliveries(cmd.Context(), args[0], items)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("DELIVERY\tOUTCOME\tTARGET", func(w *tabwriter.Writer) {
				for _, d := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\n", d.DeliveryID, cmp.Or(d.Outcome, "-"), d.TargetID)
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	console.PageFlags(deliveries, &items)
	var reason string
	cancel := &cobra.Command{Use: "cancel JOB", Short: "Cancel a job; what it did stays", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			j, err := c.CancelJob(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return a.Say(j, "asked %s to end\n", j.ID)
		})}
	cancel.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return console.Group("jobs", "Look at work over many deliveries, and cancel it", list, show, deliveries, cancel)
}
