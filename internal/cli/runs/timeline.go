package runs

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/picture"
)

func (a app) timelineCommand() *cobra.Command {
	var ascii bool
	var width int
	c := &cobra.Command{
		Use: "timeline RUN", Short: "Show where the time and the money of a run went", Args: cobra.ExactArgs(1),
		Long: "Show where the time and the money of a run went, step by step, also while it runs. The bars are scaled to the width of\n" +
			"the terminal. Without a UTF-8 locale, or with --ascii, the picture is plain ASCII; colour is for terminals only, and\n" +
			"NO_COLOR takes it away.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := c.Timeline(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(t)
			}
			o := picture.Options{ASCII: ascii || !utf8Locale(os.Getenv), Width: width, Colour: console.Terminal(a.Out) && os.Getenv("NO_COLOR") == ""}
			if o.Width <= 0 {
				o.Width = widthOf(a.Out)
			}
			return picture.Draw(a.Out, t, o)
		})}
	c.Flags().BoolVar(&ascii, "ascii", false, "draw with ASCII only")
	c.Flags().IntVar(&width, "width", 0, "columns of the picture (default: the terminal's, else 100)")
	return c
}

// utf8Locale says whether the locale of the environment can show more than ASCII.
func utf8Locale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} { // the first that is set counts
		if v := strings.ToLower(env(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// widthOf is the width of the terminal behind w, or 100.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 100
}
