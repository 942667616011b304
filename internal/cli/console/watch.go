package console

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// The interval of a watch, when none is said and at least.
const (
	watchEvery = 2 * time.Second
	watchLeast = 200 * time.Millisecond
)

// WatchFlags are those of a command that can show what it shows again and again.
type WatchFlags struct {
	on    bool
	every time.Duration
}

// Add adds them to a command.
func (w *WatchFlags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&w.on, "watch", "w", false, "show it again and again, until interrupted")
	cmd.Flags().DurationVar(&w.every, "every", watchEvery, "with --watch: how often")
}

// Watch shows once, or with --watch again and again until ctx ends, which is no
// error. On a terminal each time takes the place of the one before; elsewhere an
// empty line stands between, and nothing where it is JSON. What show writes to
// a.Out comes out whole. Where the first time fails so does the watch; a later
// failure is told, and it goes on.
func (a *App) Watch(ctx context.Context, w *WatchFlags, show func(ctx context.Context) error) error {
	if !w.on {
		return show(ctx)
	}
	if w.every < watchLeast {
		return Usage(fmt.Errorf("--every must be %v or more", watchLeast))
	}
	out := a.Out
	defer func() { a.Out = out }()
	screen := Terminal(out) && !a.JSON
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for first := true; ; first = false {
		var page bytes.Buffer
		a.Out = &page
		err := show(ctx)
		a.Out = out
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			a.Complain(err.Error())
		case screen:
			fmt.Fprintf(out, "\x1b[H\x1b[2J%s  every %v\n\n%s", time.Now().Format(time.TimeOnly), w.every, page.Bytes())
		default:
			if !first && !a.JSON {
				fmt.Fprintln(out)
			}
			if _, err := out.Write(page.Bytes()); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
