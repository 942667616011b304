package deliveries

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// shownAttempts bounds the attempts that one look at a delivery shows: the last ones.
const shownAttempts = 50

// showDelivery prints a delivery with its attempts, for people; as JSON it is the
// delivery with a member for them.
func (a app) showDelivery(ctx context.Context, c *client.Client, d *api.Delivery) error {
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
	if a.JSON {
		return a.Print(struct {
			*api.Delivery
			History []api.Attempt `json:"history"`
		}{d, list})
	}
	err := a.Table("DELIVERY\t"+d.ID, func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "status\t%s\nattempts\t%d\n", d.Status, d.Attempts)
		if d.LastCode != "" {
			fmt.Fprintf(w, "last failure\t%s\n", lastOf(d))
		}
		switch {
		case d.NextAt == nil:
		case d.NextAt.After(time.Now()):
			fmt.Fprintf(w, "next attempt\t%s (%s)\n", words.Stamp(*d.NextAt), words.Soon(d.NextAt))
		default: // its own wait is over; of its lane a delivery knows nothing
			fmt.Fprintf(w, "next attempt\twhen its turn comes in the lane: holdfast targets show %s\n", d.TargetID)
		}
		fmt.Fprintf(w, "created\t%s\nrun\t%s\nsession\t%s\ntarget\t%s (%s)\n", words.Stamp(d.CreatedAt), d.RunID, d.SessionID, d.TargetID, d.Type)
		fmt.Fprintf(w, "receiver\t%s\n", cmp.Or(words.Clean(d.Receiver), "-"))
		people(w, d)
	})
	if err != nil || len(list) == 0 {
		return err
	}
	fmt.Fprintln(a.Out)
	if more > 0 {
		fmt.Fprintf(a.Out, "%s before these\n", words.Count(more, "attempt"))
	}
	return a.Table("ATTEMPT\tENDED\tOUTCOME\tSTATUS\tTOOK\tNEXT\tANSWER", func(w *tabwriter.Writer) {
		for i := range list {
			at := &list[i]
			ended, outcome, status, next := "-", at.Outcome, "-", "-"
			if at.EndedAt != nil {
				ended = words.Stamp(*at.EndedAt)
			}
			if at.Code != "" {
				outcome = lastOf(&api.Delivery{LastCode: at.Code, LastClass: at.Class})
			}
			if at.Status != 0 {
				status = fmt.Sprint(at.Status)
			}
			if at.NextAt != nil {
				next = words.Stamp(*at.NextAt)
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d ms\t%s\t%s\n", at.Number, ended, outcome, status, at.DurationMS, next, cmp.Or(words.Clean(words.Cut(at.Excerpt, 80)), "-"))
		}
	})
}
