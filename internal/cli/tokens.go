package cli

import (
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
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Create, list and revoke access tokens", a.tokenCreate(), a.tokenList(), a.tokenRevoke())
}

func (a *app) tokenCreate() *cobra.Command {
	var req api.CreateToken
	var expires string
	c := &cobra.Command{Use: "create", Short: "Create an access token; it is shown once", Args: cobra.NoArgs,
		Long: "Create an access token; it is shown once. With --user it sees nothing of other users. --expires takes a duration (12h, 90d) or a\n" +
			"time (RFC 3339); without it the token is good as long as tokens.expiry of the configuration says.",
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			req.UserID = a.user
			if err := expiry(&req, expires); err != nil {
				return err
			}
			t, err := c.CreateToken(cmd.Context(), &req)
			if err != nil {
				return err
			}
			if t.ExpiresAt != nil && !a.json {
				a.complain("it expires at " + stamp(*t.ExpiresAt))
			}
			return a.say(t, "%s\n", t.Token)
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
	return usageError{errors.New("--expires wants a duration such as 12h or 90d, or a time such as 2027-01-31T12:00:00Z")}
}

func (a *app) tokenList() *cobra.Command {
	var q client.TokensQuery
	var page client.Page
	c := &cobra.Command{Use: "list", Short: "List access tokens", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			q.UserID = a.user
			l, err := c.Tokens(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("TOKEN\tNAME\tROLE\tUSER\tCREATED\tEXPIRES\tLAST USED", func(w *tabwriter.Writer) {
				for _, t := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, clean(or(t.Name, "-")), t.Role, or(t.UserID, "all"), stamp(t.CreatedAt), ends(t.ExpiresAt), at(t.LastUsed))
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Role, "role", "", "only tokens of this role")
	pageFlags(c, &page)
	return c
}

// at tells a time that may be none.
func at(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return stamp(*t)
}

func ends(t *time.Time) string {
	if t != nil && !time.Now().Before(*t) {
		return "expired"
	}
	return at(t)
}

func (a *app) tokenRevoke() *cobra.Command {
	return &cobra.Command{Use: "revoke TOKEN-ID", Short: "Revoke an access token", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.RevokeToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.say(map[string]any{"revoked": args[0]}, "%s is revoked\n", args[0])
		})}
}

func (a *app) auditCommand() *cobra.Command {
	var q client.EventsQuery
	var since, until string
	var after int64
	var limit int
	c := &cobra.Command{Use: "audit", Short: "Read who was turned away, and who changed tokens, receivers and secrets", Args: cobra.NoArgs,
		Long: "Read the audit stream: who was turned away at the door, counted by address and reason within a minute, and who changed what\n" +
			"of tokens, receivers and secrets. With --json the output is NDJSON: a line for each event.",
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			a.lines = true
			if q.Since, err = moment("since", since); err != nil {
				return err
			}
			if q.Until, err = moment("until", until); err != nil {
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
				fmt.Fprintf(a.err, "there are more: --after %s\n", l.NextCursor)
			}
			return nil
		})}
	c.Flags().StringSliceVar(&q.Types, "type", nil, "only events of these types")
	timeFlags(c, &since, &until)
	c.Flags().Int64Var(&after, "after", 0, "after this sequence")
	c.Flags().IntVar(&limit, "limit", 200, "events at most")
	return c
}

// audited tells a record as one line: when, what, and its members.
func (a *app) audited(e *api.Event) error {
	if a.json {
		return a.line(e)
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
	_, err := fmt.Fprintf(a.out, "%6d  %s  %-24s%s\n", e.Seq, stamp(e.Time), strings.TrimPrefix(e.Type, "audit."), clean(b.String()))
	return err
}
