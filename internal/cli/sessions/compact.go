package sessions

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

// compactCommand asks for a compaction and tells what came of it.
func (a app) compactCommand() *cobra.Command {
	detach := false
	c := &cobra.Command{Use: "compact SESSION", Short: "Put a summary in the place of the older conversation", Args: cobra.ExactArgs(1),
		Long: "Put a summary in the place of the older conversation, in what models are shown from then on; the log keeps everything.\n" +
			"The session must be at rest: no run that is not at its end.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			out, err := c.Compact(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if detach {
				return a.Say(out, "%s is asked for\n", out.ID)
			}
			return a.compacted(cmd.Context(), c, out)
		})}
	c.Flags().BoolVar(&detach, "detach", false, "do not wait for its end")
	return c
}

// compacted follows a compaction to its end.
func (a app) compacted(ctx context.Context, c *client.Client, of *api.Compaction) error {
	over := errors.New("over")
	var end *api.Event
	err := c.StreamSession(ctx, of.SessionID, of.Seq, func(m client.Message) error {
		if m.Event == nil || m.Event.StepID != of.ID || m.Event.Type != "context.compacted" && m.Event.Type != "context.compaction.failed" {
			return nil
		}
		end = m.Event
		return over
	})
	if !errors.Is(err, over) {
		return err
	}
	var d struct {
		Entries int    `json:"entries"`
		Tokens  int64  `json:"tokens"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(end.Data, &d); err != nil {
		return err
	}
	if end.Type == "context.compaction.failed" {
		return console.Exit(console.ExitFailed, d.Code, "not compacted: "+words.Clean(d.Message))
	}
	return a.Say(end, "compacted: a summary stands for %d entries; about %d tokens are in the window\n", d.Entries, d.Tokens)
}
