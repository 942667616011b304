package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) assetsCommand() *cobra.Command {
	put := &cobra.Command{Use: "put FILE...", Short: "Hand in files", Args: cobra.MinimumNArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			out := api.List[api.Asset]{Items: []api.Asset{}}
			for _, path := range args {
				asset, err := putFile(cmd.Context(), c, path)
				if err != nil {
					return err
				}
				out.Items = append(out.Items, *asset)
				if !a.JSON {
					fmt.Fprintf(a.Out, "%s %s %d bytes %s\n", asset.ID, asset.MediaType, asset.Bytes, words.Clean(path))
				}
			}
			if a.JSON {
				return a.Print(out)
			}
			return nil
		})}
	var page client.Page
	list := &cobra.Command{Use: "list", Short: "List assets, newest first", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Assets(cmd.Context(), page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("ASSET\tTYPE\tBYTES\tCREATED\tNAME", func(w *tabwriter.Writer) {
				for _, x := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", x.ID, x.MediaType, x.Bytes, words.Stamp(x.CreatedAt), words.Clean(cmp.Or(x.Name, "-")))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show ASSET", Short: "Show what is known of an asset", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			asset, err := c.Asset(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(asset)
		})}
	get := &cobra.Command{Use: "get ASSET", Short: "Write an asset's bytes to standard output", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if console.Terminal(a.Out) {
				return console.Usage(fmt.Errorf("the bytes of an asset are not for a terminal: redirect them to a file"))
			}
			body, err := c.AssetBytes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(a.Out, body)
			return err
		})}
	return console.Group("assets", "Hand in files and look at them", put, list, show, get)
}

// putFile hands in one file. What is wrong with it is told with its path.
func putFile(ctx context.Context, c *client.Client, path string) (*api.Asset, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, console.Usage(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, console.Usage(fmt.Errorf("%s is no file", path))
	}
	asset, err := c.CreateAsset(ctx, filepath.Base(path), mime.TypeByExtension(filepath.Ext(path)), f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return asset, nil
}
