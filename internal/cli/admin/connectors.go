package admin

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) connectorsCommand() *cobra.Command {
	var q client.ConnectorsQuery
	var page client.Page
	list := &cobra.Command{Use: "list", Short: "List the connectors that take events from outside", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Connectors(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("CONNECTOR\tTYPE\tAUTH\tUSER\tSESSION\tTEMPLATE\tEVENT ID\tPATH", func(w *tabwriter.Writer) {
				for i := range l.Items {
					k := &l.Items[i]
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.Name, k.Type, k.Auth, k.UserID, words.Clean(words.Short(sessionOf(k))), cmp.Or(k.SessionTemplate, "-"), k.EventID, k.Path)
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	list.Flags().StringVar(&q.Type, "type", "", "only of this type: json, github or slack")
	console.PageFlags(list, &page)
	return console.Group("connectors", "Look at connectors and try events on them", list, a.testConnectorCommand())
}

// sessionOf says where the runs of a connector go.
func sessionOf(k *api.Connector) string {
	switch k.Session {
	case "fixed":
		return k.SessionID
	case "key":
		return "by " + k.SessionKey
	}
	return "new each time"
}

// maxEvent bounds an event that is tried, in bytes.
const maxEvent = 25 << 20

func (a app) testConnectorCommand() *cobra.Command {
	var file string
	var headers []string
	c := &cobra.Command{Use: "test CONNECTOR", Short: "See what a connector would make of an event; nothing is made", Args: cobra.ExactArgs(1),
		Example: "  holdfast connectors test hub --body event.json --header 'X-GitHub-Event: issues' --header 'X-GitHub-Delivery: 1'",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			body, err := readEvent(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			req := &api.TestConnector{Headers: map[string]string{}, Body: string(body)}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return console.Usage(fmt.Errorf("--header wants NAME: VALUE, not %q", h))
				}
				req.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
			}
			t, err := c.TestConnector(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			show := a.tellTest
			if a.JSON {
				show = func(t *api.ConnectorTest) error {
					if t.Authentication != believed {
						fmt.Fprintln(a.Err, words.Clean("the sender is not proven: "+outcomeOf(t)))
					}
					return a.Print(t)
				}
			}
			if err := show(t); err != nil || t.Outcome != api.InboundRefused {
				return err
			}
			return console.Exit(console.ExitFailed, "", "")
		})}
	c.Flags().StringVar(&file, "body", "", "file with the body of the event; - is the standard input")
	c.Flags().StringArrayVar(&headers, "header", nil, "a header of the event, as NAME: VALUE; may be given several times")
	_ = c.MarkFlagRequired("body") // the flag is there
	return c
}

// readEvent reads the body of an event within bounds.
func readEvent(file string, in io.Reader) ([]byte, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(in, maxEvent+1))
	if err == nil && len(body) > maxEvent {
		err = fmt.Errorf("the event holds more than %d bytes", maxEvent)
	}
	return body, err
}

// believed is what a test says of a sender that proves who it is.
const believed = "ok"

// outcomeOf says what would come of an event: from the sender as it is, and from one
// that proves who it is.
func outcomeOf(t *api.ConnectorTest) string {
	if t.Authentication == believed {
		return t.Outcome
	}
	return "401 sender_unknown as it is sent here; from a sender that proves itself: " + t.Outcome
}

// tellTest tells what would be made of an event, for people.
func (a app) tellTest(t *api.ConnectorTest) error {
	w := tabwriter.NewWriter(a.Out, 0, 4, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, words.Clean(value))
		}
	}
	if t.Authentication == believed {
		line("sender", believed)
	} else {
		line("sender", "not proven: "+t.Authentication)
	}
	line("event", t.Event)
	line("event id", t.EventID)
	line("outcome", outcomeOf(t))
	line("why", t.Reason)
	if p := t.Problem; p != nil {
		line("why", p.Detail+" ("+p.Code+")")
	}
	line("run", t.RunID)
	session := cmp.Or(t.SessionID, t.SessionAlias)
	line("session", session)
	if t.SessionCreated {
		label := ""
		if session == "" { // a new one each time
			label = "session"
		}
		line(label, "it would be made: "+cmp.Or(t.SessionTitle, "without a title"))
	}
	for _, r := range t.ReplyTargets {
		line("reply target", r.Type+" "+r.URL)
	}
	line("targets", t.TargetsReason)
	line("challenge", t.Challenge)
	line("metadata", string(t.Metadata))
	line("input", string(t.Input))
	return w.Flush()
}
