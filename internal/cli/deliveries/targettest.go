package deliveries

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// testTargetCommand sends a test to a target.
func (a app) testTargetCommand() *cobra.Command {
	return &cobra.Command{Use: "test TARGET", Short: "Send a test to a reply target", Args: cobra.ExactArgs(1),
		Long: "Send a test to a reply target, the way a delivery is sent, and show what came of it.\n\n" +
			"TARGET is a target as the API takes it, such as '{\"type\": \"mail\", \"server\": \"office\", \"to\": [\"ann@example.com\"]}',\n" +
			"- for one on standard input, or the URL of a webhook.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			target, err := readTarget(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			t, err := c.TestTarget(cmd.Context(), target)
			if err != nil {
				return err
			}
			if a.JSON {
				err = a.Print(t)
			} else {
				err = a.Table("DELIVERED\tSTATUS\tCODE\tTOOK\tTARGET\tDELIVERY", func(w *tabwriter.Writer) {
					fmt.Fprintf(w, "%t\t%s\t%s\t%dms\t%s\t%s\n", t.Delivered, number(t.Status), cmp.Or(t.Code, "-"), t.DurationMS, t.TargetID, t.DeliveryID)
				})
				if t.Detail != "" {
					fmt.Fprintln(a.Out, t.Detail)
				}
				if t.Excerpt != "" {
					fmt.Fprintf(a.Out, "%q\n", t.Excerpt) // a stranger's words: nothing in them may act on a terminal
				}
			}
			if err == nil && !t.Delivered && t.Code != "not_sent" {
				err = console.Exit(console.ExitFailed, "", "") // the output has told
			}
			return err
		})}
}

// number is a number that may be absent.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// readTarget reads a target from an argument.
func readTarget(arg string, stdin io.Reader) (*api.ReplyTarget, error) {
	if strings.HasPrefix(arg, "http://") || strings.HasPrefix(arg, "https://") {
		return &api.ReplyTarget{Type: "webhook", URL: arg}, nil
	}
	var r io.Reader = strings.NewReader(arg)
	if arg == "-" {
		r = io.LimitReader(stdin, 64<<10)
	}
	var t api.ReplyTarget
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return nil, console.Usage(fmt.Errorf("the target is no JSON object of a reply target: %w", err))
	}
	return &t, nil
}

// keygenCommand makes a key that signs.
func (a app) keygenCommand() *cobra.Command {
	return &cobra.Command{Use: "keygen", Short: "Make an ed25519 key that signs webhooks", Args: cobra.NoArgs,
		Long: "Make an ed25519 key that signs webhooks. The first line is the private half, for a secret of the daemon; the second the\n" +
			"public half, for receivers, which the daemon also shows under /v1/signing-keys/NAME.",
		RunE: func(*cobra.Command, []string) error {
			private, public, err := webhook.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(map[string]string{"private_key": private, "public_key": public})
			}
			_, err = fmt.Fprintf(a.Out, "%s\n%s\n", private, public)
			return err
		}}
}
