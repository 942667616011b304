package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) tokenCommand() *cobra.Command {
	return console.Group("token", "Create, list and revoke access tokens", a.tokenCreate(), a.tokenList(), a.tokenRevoke())
}

func (a app) tokenCreate() *cobra.Command {
	var req api.CreateToken
	var expires string
	c := &cobra.Command{Use: "create", Short: "Create an access token; it is shown once", Args: cobra.NoArgs,
		Long: "Create an access token; it is shown once. With --user it sees nothing of other users. --expires takes a duration (12h, 90d) or a\n" +
			"time (RFC 3339); without it the token is good as long as tokens.expiry of the configuration says.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			req.UserID = a.User
			if err := expiry(&req, expires); err != nil {
				return err
			}
			t, err := c.CreateToken(cmd.Context(), &req)
			if err != nil {
				return err
			}
			if t.ExpiresAt != nil && !a.JSON {
				a.Complain("it expires at " + words.Stamp(*t.ExpiresAt))
			}
			return a.Say(t, "%s\n", t.Token)
		})}
	c.Flags().StringVar(&req.Role, "role", "operator", "reader, operator or admin")
	c.Flags().StringVar(&req.Name, "name", "", "what it is for")
	c.Flags().StringVar(&expires, "expires", "", "when it ends: a duration such as 12h or 90d, or a time")
	return c
}

// expiry reads when a token is to end.
func expiry(req *api.CreateToken, text string) error {
	if text == "" {
		return nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		req.ExpiresAt = &at
		return nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 36500 {
			req.ExpiresIn = (time.Duration(n) * 24 * time.Hour).String()
			return nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		req.ExpiresIn = d.String()
		return nil
	}
	return console.Usage(errors.New("--expires wants a duration such as 12h or 90d, or a time such as 2027-01-31T12:00:00Z"))
}

func (a app) tokenList() *cobra.Command {
	var q client.TokensQuery
	var page client.Page
	c := &cobra.Command{Use: "list", Short: "List access tokens", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			q.UserID = a.User
			l, err := c.Tokens(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("TOKEN\tNAME\tROLE\tUSER\tCREATED\tEXPIRES\tLAST USED", func(w *tabwriter.Writer) {
				for _, t := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, words.Clean(cmp.Or(t.Name, "-")), t.Role, cmp.Or(t.UserID, "all"), words.Stamp(t.CreatedAt), ends(t.ExpiresAt), at(t.LastUsed))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Role, "role", "", "only tokens of this role")
	console.PageFlags(c, &page)
	return c
}

// at tells a time that may be none.
func at(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return words.Stamp(*t)
}

func ends(t *time.Time) string {
	if t != nil && !time.Now().Before(*t) {
		return "expired"
	}
	return at(t)
}

func (a app) tokenRevoke() *cobra.Command {
	return &cobra.Command{Use: "revoke TOKEN-ID", Short: "Revoke an access token", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.RevokeToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.Say(map[string]any{"revoked": args[0]}, "%s is revoked\n", args[0])
		})}
}

func (a app) auditCommand() *cobra.Command {
	var q client.EventsQuery
	var since, until string
	var after int64
	var limit int
	c := &cobra.Command{Use: "audit", Short: "Read who was turned away, and who changed tokens, receivers and secrets", Args: cobra.NoArgs,
		Long: "Read the audit stream: who was turned away at the door, counted by address and reason within a minute, and who changed what\n" +
			"of tokens, receivers and secrets. With --json the output is NDJSON: a line for each event.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			a.Lines = true
			if q.Since, err = console.Moment("since", since); err != nil {
				return err
			}
			if q.Until, err = console.Moment("until", until); err != nil {
				return err
			}
			l, err := c.Audit(cmd.Context(), q, after, limit)
			if err != nil {
				return err
			}
			for i := range l.Items {
				if err := a.audited(&l.Items[i]); err != nil {
					return err
				}
			}
			if l.NextCursor != "" {
				fmt.Fprintf(a.Err, "there are more: --after %s\n", l.NextCursor)
			}
			return nil
		})}
	c.Flags().StringSliceVar(&q.Types, "type", nil, "only events of these types")
	console.TimeFlags(c, &since, &until)
	c.Flags().Int64Var(&after, "after", 0, "after this sequence")
	c.Flags().IntVar(&limit, "limit", 200, "events at most")
	return c
}

// audited tells a record as one line: when, what, and its members.
func (a app) audited(e *api.Event) error {
	if a.JSON {
		return a.Line(e)
	}
	var members map[string]any
	if err := json.Unmarshal(e.Data, &members); err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range []string{"reason", "count", "peer", "actor", "token_id", "name", "role", "user_id", "expires_at", "target_id", "delivery_id", "job", "change",
		"forced", "owner", "version", "hosts", "method", "path", "detail", "since", "listen", "tls", "node", "config"} {
		if v, ok := members[name]; ok {
			fmt.Fprintf(&b, "  %s=%v", name, v)
		}
	}
	_, err := fmt.Fprintf(a.Out, "%6d  %s  %-24s%s\n", e.Seq, words.Stamp(e.Time), strings.TrimPrefix(e.Type, "audit."), words.Clean(b.String()))
	return err
}
