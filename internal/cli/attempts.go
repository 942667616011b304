package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

// shownAttempts bounds the attempts that one look at a delivery shows: the last ones.
const shownAttempts = 50

// showDelivery prints a delivery with its attempts, for people; as JSON it is the
// delivery with a member for them.
func (a *app) showDelivery(ctx context.Context, c *client.Client, d *api.Delivery) error {
	var list []api.Attempt
	more := 0
	for at, err := range c.AllAttempts(ctx, d.ID) {
		if err != nil {
			return err
		}
		if list = append(list, at); len(list) > shownAttempts {
			list, more = list[1:], more+1
		}
	}
	if a.json {
		return a.print(struct {
			*api.Delivery
			History []api.Attempt `json:"history"`
		}{d, list})
	}
	err := a.table("DELIVERY\t"+d.ID, func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "status\t%s\nattempts\t%d\n", d.Status, d.Attempts)
		if d.LastCode != "" {
			fmt.Fprintf(w, "last failure\t%s\n", lastOf(d))
		}
		if d.NextAt != nil {
			fmt.Fprintf(w, "next attempt\t%s (%s)\n", stamp(*d.NextAt), soon(d.NextAt))
		}
		fmt.Fprintf(w, "created\t%s\nrun\t%s\nsession\t%s\ntarget\t%s (%s)\n", stamp(d.CreatedAt), d.RunID, d.SessionID, d.TargetID, d.Type)
		fmt.Fprintf(w, "receiver\t%s\n", or(clean(d.Receiver), "-"))
		people(w, d)
	})
	if err != nil || len(list) == 0 {
		return err
	}
	fmt.Fprintln(a.out)
	if more > 0 {
		fmt.Fprintf(a.out, "%s before these\n", count(more, "attempt"))
	}
	return a.table("ATTEMPT\tENDED\tOUTCOME\tSTATUS\tTOOK\tNEXT\tANSWER", func(w *tabwriter.Writer) {
		for i := range list {
			at := &list[i]
			ended, outcome, status, next := "-", at.Outcome, "-", "-"
			if at.EndedAt != nil {
				ended = stamp(*at.EndedAt)
			}
			if at.Code != "" {
				outcome = lastOf(&api.Delivery{LastCode: at.Code, LastClass: at.Class})
			}
			if at.Status != 0 {
				status = fmt.Sprint(at.Status)
			}
			if at.NextAt != nil {
				next = stamp(*at.NextAt)
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d ms\t%s\t%s\n", at.Number, ended, outcome, status, at.DurationMS, next, or(clean(cut(at.Excerpt, 80)), "-"))
		}
	})
}
