package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

func (a *app) deliveriesCommand() *cobra.Command {
	var q client.DeliveriesQuery
	var page client.Page
	var when whenFlags
	list := &cobra.Command{Use: "list", Short: "List deliveries, newest first", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var err error
			if q.Range, err = when.get(); err != nil {
				return err
			}
			if q.SessionID, err = sessionID(cmd.Context(), c, q.SessionID); err != nil {
				return err
			}
			l, err := c.Deliveries(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("DELIVERY\tSTATUS\tATTEMPTS\tLAST\tCREATED\tRUN\tTARGET", func(w *tabwriter.Writer) {
				for _, d := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", d.ID, d.Status, d.Attempts, or(d.LastCode, "-"), stamp(d.CreatedAt), d.RunID, d.TargetID)
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	f := list.Flags()
	f.StringVar(&q.Status, "status", "", "pending, retrying, delivered, dead_lettered or resolved")
	f.StringVarP(&q.SessionID, "session", "s", "", "of this session: its id or alias")
	f.StringVarP(&q.RunID, "run", "r", "", "of this run")
	f.StringVar(&q.TargetID, "target", "", "to this target")
	when.add(list)
	pageFlags(list, &page)
	show := &cobra.Command{Use: "show DELIVERY", Short: "Show a delivery and its attempts", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.Delivery(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.showDelivery(cmd.Context(), c, d)
		})}
	var req api.ReplayDelivery
	replay := &cobra.Command{Use: "replay DELIVERY", Short: "Send a dead letter again, with the same id and bytes", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.ReplayDelivery(cmd.Context(), args[0], &req)
			if err != nil {
				return err
			}
			return a.say(d, "%s stands at the end of its lane\n", d.ID)
		})}
	replay.Flags().BoolVar(&req.Force, "force", false, "also one that was delivered")
	replay.Flags().StringVar(&req.Reason, "reason", "", "why, for the record")
	var why string
	resolve := &cobra.Command{Use: "resolve DELIVERY", Short: "Be done with a delivery: it is not sent any more", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.ResolveDelivery(cmd.Context(), args[0], why)
			if err != nil {
				return err
			}
			return a.say(d, "%s is resolved\n", d.ID)
		})}
	resolve.Flags().StringVar(&why, "reason", "", "why, for the record")
	return group("deliveries", "Look at deliveries and replay dead letters", list, show, replay, resolve)
}

func (a *app) nodesCommand() *cobra.Command {
	var page client.Page
	c := &cobra.Command{Use: "nodes", Short: "List the daemons that share the store", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Nodes(cmd.Context(), page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("NODE\tNAME\tVERSION\tSINCE\tSTATUS\tSESSIONS", func(w *tabwriter.Writer) {
				for i := range l.Items {
					n := &l.Items[i]
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Name, n.Version, stamp(n.Since), nodeStatus(n), nodeWork(n))
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	pageFlags(c, &page)
	return c
}

func nodeStatus(n *api.Node) string {
	switch {
	case n.Released:
		return "ended"
	case !n.Alive:
		return "lost"
	case n.Draining:
		return "draining"
	}
	return "alive"
}

// nodeWork says on how much a node works; what one that is gone had is with others.
func nodeWork(n *api.Node) string {
	if n.Released || !n.Alive {
		return "-"
	}
	return fmt.Sprintf("%d of %d", n.ActiveSessions, n.MostSessions)
}

func (a *app) routesCommand() *cobra.Command {
	var q client.RoutesQuery
	var page client.Page
	c := &cobra.Command{Use: "routes", Short: "List the ways to models", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Routes(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("ROUTE\tPROVIDER\tMODEL\tDEFAULT", func(w *tabwriter.Writer) {
				for _, r := range l.Items {
					mark := ""
					if r.Default {
						mark = "yes"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.Provider, r.Model, mark)
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Provider, "provider", "", "only those to this provider")
	pageFlags(c, &page)
	return c
}

func (a *app) toolsCommand() *cobra.Command {
	var q client.ToolsQuery
	var page client.Page
	c := &cobra.Command{Use: "tools", Short: "List the configured tools", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Tools(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("TOOL\tSOURCE\tSIDE EFFECT\tPOLICY\tDESCRIPTION", func(w *tabwriter.Writer) {
				for _, t := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.Name, t.Source, t.SideEffect, or(t.Policy, "-"), clean(short(t.Description)))
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Source, "source", "", "only tools of this source")
	c.Flags().StringVar(&q.SideEffect, "side-effect", "", "only tools of this side effect")
	pageFlags(c, &page)
	return c
}

func (a *app) tokenCommand() *cobra.Command {
	var req api.CreateToken
	create := &cobra.Command{Use: "create", Short: "Create an access token; it is shown once", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			req.UserID = a.user
			t, err := c.CreateToken(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return a.say(t, "%s\n", t.Token)
		})}
	create.Flags().StringVar(&req.Role, "role", "operator", "reader, operator or admin")
	create.Flags().StringVar(&req.Name, "name", "", "what it is for")
	var q client.TokensQuery
	var page client.Page
	list := &cobra.Command{Use: "list", Short: "List access tokens", Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			q.UserID = a.user
			l, err := c.Tokens(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(l)
			}
			err = a.table("TOKEN\tNAME\tROLE\tUSER\tCREATED", func(w *tabwriter.Writer) {
				for _, t := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, or(t.Name, "-"), t.Role, or(t.UserID, "all"), stamp(t.CreatedAt))
				}
			})
			a.more(l.NextCursor)
			return err
		})}
	list.Flags().StringVar(&q.Role, "role", "", "only tokens of this role")
	pageFlags(list, &page)
	revoke := &cobra.Command{Use: "revoke TOKEN-ID", Short: "Revoke an access token", Args: cobra.ExactArgs(1),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.RevokeToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.say(map[string]any{"revoked": args[0]}, "%s is revoked\n", args[0])
		})}
	return group("token", "Create, list and revoke access tokens", create, list, revoke)
}
