package operate

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/demo"
)

func (a app) demoCommand() *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use: "demo", Short: "See the whole story: no key, no service, under a minute", Args: cobra.NoArgs,
		Long: "Start a daemon of this binary on a temporary directory, with a scripted model and a local receiver, and show: a\n" +
			"malformed submission bounced, a good one accepted, a tool call, a wrong answer repaired, the daemon killed in\n" +
			"mid-run and restarted, and the answer arriving once, signed. Exits 0 only if all of it really happened.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := demo.Run(cmd.Context(), demo.Options{Out: a.Out, Keep: keep, Color: console.Terminal(a.Out)})
			switch {
			case err == nil:
				return nil
			case cmd.Context().Err() != nil && errors.Is(err, context.Canceled):
				return console.Exit(console.ExitFailed, "interrupted", "demo: interrupted; its daemon is stopped, and its directory removed")
			}
			return console.Exit(console.ExitFailed, "demo_failed", "demo: "+err.Error())
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "leave the daemon running and its directory in place")
	return c
}
