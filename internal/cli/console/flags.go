package console

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
)

// PageFlags adds the flags of a list in pages.
func PageFlags(c *cobra.Command, p *client.Page) {
	c.Flags().IntVar(&p.Limit, "limit", 50, "rows at most")
	c.Flags().StringVar(&p.Cursor, "cursor", "", "go on from here")
}

// WhenFlags are the flags of a list that goes by time.
type WhenFlags struct{ since, until, order string }

// Add adds them to a command.
func (w *WhenFlags) Add(c *cobra.Command) {
	w.AddBounds(c)
	c.Flags().StringVar(&w.order, "order", "", "desc, newest first, or asc, oldest first (default desc)")
}

// AddBounds adds those without an order.
func (w *WhenFlags) AddBounds(c *cobra.Command) { TimeFlags(c, &w.since, &w.until) }

// TimeFlags adds --since and --until.
func TimeFlags(c *cobra.Command, since, until *string) {
	c.Flags().StringVar(since, "since", "", "only what was made from then on: a time (RFC 3339), or so long ago, as in 2h")
	c.Flags().StringVar(until, "until", "", "only what was made before then: a time (RFC 3339), or so long ago, as in 30m")
}

// Get reads them.
func (w *WhenFlags) Get() (r client.Range, err error) {
	if r.Since, err = Moment("since", w.since); err != nil {
		return r, err
	}
	if r.Until, err = Moment("until", w.until); err != nil {
		return r, err
	}
	switch w.order {
	case "", "desc":
	case "asc":
		r.Asc = true
	default:
		return r, Usage(errors.New("--order is asc or desc"))
	}
	return r, nil
}

// Moment reads a time, or a duration before now; empty: zero.
func Moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	return time.Time{}, Usage(fmt.Errorf("--%s wants a time such as 2026-11-30T12:00:00Z, or a duration such as 2h", flag))
}
