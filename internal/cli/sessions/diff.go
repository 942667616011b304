package sessions

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
)

func (a app) diffCommand() *cobra.Command {
	var q client.DiffQuery
	c := &cobra.Command{
		Use: "diff SESSION", Short: "Show what changed in a session's workspace", Args: cobra.ExactArgs(1),
		Long: "Show what changed in a session's workspace, as a unified difference: by default from before the first step that may have\n" +
			"changed files to after the last. Ends are snapshots, which step.ended and tool.call.started name; they stand on the node that\n" +
			"made them, and the older ones go. On a terminal control characters are taken out; what goes into a pipe or a file is as it is.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if q.Run != "" && q.Step != "" || (q.Run != "" || q.Step != "") && (q.From != "" || q.To != "") {
				return console.Usage(errors.New("say --run, or --step, or --from and --to"))
			}
			d, err := c.Diff(cmd.Context(), args[0], q)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(d)
			}
			p := diffPrinter{w: bufio.NewWriter(a.Out), clean: console.Terminal(a.Out)}
			if q.Stat {
				p.stat(d)
			} else {
				p.diff(d)
			}
			if d.More > 0 {
				fmt.Fprintf(a.Err, "%d more files differ; name a run or a step\n", d.More)
			}
			return p.w.Flush()
		})}
	f := c.Flags()
	f.StringVar(&q.Run, "run", "", "only what this run changed")
	f.StringVar(&q.Step, "step", "", "only what this step changed")
	f.StringVar(&q.From, "from", "", "where to begin: a step, before which, or the tree of a snapshot (sha256:…)")
	f.StringVar(&q.To, "to", "", "where to end: a step, after which, or a tree")
	f.BoolVar(&q.Stat, "stat", false, "the files and the numbers of lines only")
	return c
}

// diffPrinter writes a difference for people and for programs that apply it.
type diffPrinter struct {
	w     *bufio.Writer
	clean bool
}

func (p *diffPrinter) diff(d *api.FilesDiff) {
	for i := range d.Files {
		f := &d.Files[i]
		from, to := quotePath("a/", f.Path), quotePath("b/", f.Path)
		fmt.Fprintf(p.w, "diff %s %s\n", from, to)
		switch f.Change {
		case api.FileAdded:
			from = "/dev/null"
		case api.FileDeleted:
			to = "/dev/null"
		case api.FileMode:
			fmt.Fprintf(p.w, "permissions changed\n")
			continue
		}
		switch {
		case f.NotHeld:
			fmt.Fprintf(p.w, "%s, %d to %d bytes: its content is not held\n", f.Change, f.Before, f.Bytes)
		case f.Binary:
			fmt.Fprintf(p.w, "%s, %d to %d bytes: binary\n", f.Change, f.Before, f.Bytes)
		case f.Diff == "" && f.Cut:
			fmt.Fprintf(p.w, "%s, %d to %d bytes: too large to show\n", f.Change, f.Before, f.Bytes)
		case f.Diff == "":
			fmt.Fprintf(p.w, "%s, empty\n", f.Change)
		default:
			fmt.Fprintf(p.w, "--- %s\n+++ %s\n", from, to)
			p.text(f.Diff)
			if f.Cut {
				fmt.Fprintf(p.w, "\\ The rest is too large to show\n")
			}
		}
	}
}

// text writes hunks.
func (p *diffPrinter) text(s string) {
	if p.clean {
		s = strings.Map(func(r rune) rune {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				return -1
			}
			return r
		}, s)
	}
	_, _ = io.WriteString(p.w, s)
}

func (p *diffPrinter) stat(d *api.FilesDiff) {
	added, deleted := 0, 0
	for i := range d.Files {
		f := &d.Files[i]
		added, deleted = added+f.Added, deleted+f.Deleted
		lines := fmt.Sprintf("+%d -%d", f.Added, f.Deleted)
		switch {
		case f.NotHeld:
			lines = "not held"
		case f.Binary:
			lines = "binary"
		case f.Cut:
			lines = "large"
		case f.Change == api.FileMode:
			lines = "-"
		}
		fmt.Fprintf(p.w, "%-9s %-12s %s\n", f.Change, lines, quotePath("", f.Path))
	}
	files := "files"
	if len(d.Files)+d.More == 1 {
		files = "file"
	}
	fmt.Fprintf(p.w, "%d %s, +%d -%d lines\n", len(d.Files)+d.More, files, added, deleted)
}

// quotePath writes a path so that it stands on one line and ends where it ends.
func quotePath(prefix, path string) string {
	if strings.ContainsFunc(path, func(r rune) bool { return r == '"' || r == '\\' || r == ' ' || !unicode.IsPrint(r) }) {
		return strconv.Quote(prefix + path)
	}
	return prefix + path
}
