package admin

import (
	"cmp"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) nodesCommand() *cobra.Command {
	var page client.Page
	c := &cobra.Command{Use: "nodes", Short: "List the daemons that share the store", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Nodes(cmd.Context(), page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("NODE\tNAME\tVERSION\tSINCE\tSTATUS\tSESSIONS", func(w *tabwriter.Writer) {
				for i := range l.Items {
					n := &l.Items[i]
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Name, n.Version, words.Stamp(n.Since), nodeStatus(n), nodeWork(n))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	console.PageFlags(c, &page)
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

func (a app) routesCommand() *cobra.Command {
	var q client.RoutesQuery
	var page client.Page
	c := &cobra.Command{Use: "routes", Short: "List the ways to models", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Routes(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("ROUTE\tPROVIDER\tMODEL\tDEFAULT", func(w *tabwriter.Writer) {
				for _, r := range l.Items {
					mark := ""
					if r.Default {
						mark = "yes"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.Provider, r.Model, mark)
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Provider, "provider", "", "only those to this provider")
	console.PageFlags(c, &page)
	return c
}

func (a app) toolsCommand() *cobra.Command {
	var q client.ToolsQuery
	var page client.Page
	c := &cobra.Command{Use: "tools", Short: "List the configured tools", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Tools(cmd.Context(), q, page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("TOOL\tSOURCE\tSIDE EFFECT\tPOLICY\tDESCRIPTION", func(w *tabwriter.Writer) {
				for _, t := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.Name, t.Source, t.SideEffect, cmp.Or(t.Policy, "-"), words.Clean(words.Short(t.Description)))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	c.Flags().StringVar(&q.Source, "source", "", "only tools of this source")
	c.Flags().StringVar(&q.SideEffect, "side-effect", "", "only tools of this side effect")
	console.PageFlags(c, &page)
	return c
}
