package admin

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
	"github.com/holdfast-dev/holdfast/internal/masterkey"
	"github.com/holdfast-dev/holdfast/internal/seal"
)

func (a app) secretsCommand() *cobra.Command {
	var page client.Page
	list := &cobra.Command{Use: "list", Short: "List secret slots, never their values", Args: cobra.NoArgs,
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			l, err := c.Secrets(cmd.Context(), page)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(l)
			}
			err = a.Table("NAME\tUSER\tVERSION\tSET\tKEY\tHOSTS", func(w *tabwriter.Writer) {
				for _, x := range l.Items {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", x.Name, words.Clean(cmp.Or(x.UserID, "-")), x.Version, words.Stamp(x.CreatedAt), x.KeyID, cmp.Or(strings.Join(x.Hosts, ","), "- (it only signs)"))
				}
			})
			a.More(l.NextCursor)
			return err
		})}
	console.PageFlags(list, &page)
	show := &cobra.Command{Use: "show NAME", Short: "Show what is known of a slot, never its value", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.Secret(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(s)
		})}
	remove := &cobra.Command{Use: "delete NAME", Short: "Delete a slot, all its versions", Args: cobra.ExactArgs(1),
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.DeleteSecret(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.Say(map[string]any{"deleted": args[0]}, "%s is deleted\n", args[0])
		})}
	return console.Group("secrets", "Set secrets, and look at what is known of them", a.setSecretCommand(), list, show, remove, a.rekeyCommand(), a.newKeyCommand())
}

func (a app) setSecretCommand() *cobra.Command {
	var file, formerFor string
	var signs bool
	var req api.PutSecret
	c := &cobra.Command{Use: "set NAME", Short: "Set a secret slot, with a value from standard input or a file", Args: cobra.ExactArgs(1),
		Long: "Set a secret slot. The value is read from standard input, or from --file; never from the arguments, which other processes\n" +
			"can see. One line break at its end does not count. Where a version is there already, it counts for a while beside the new one,\n" +
			"which goes to the same hosts unless --host or --only-signs says otherwise.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if cmd.Flags().Changed("former-for") {
				req.FormerFor = &formerFor
			}
			if signs {
				if len(req.Hosts) > 0 {
					return console.Usage(errors.New("--only-signs means no host; it goes with no --host"))
				}
				req.Hosts = []string{}
			}
			if !req.Generate {
				var err error
				if req.Value, err = a.secretValue(file); err != nil {
					return err
				}
			} else if file != "" {
				return console.Usage(errors.New("--generate draws the value; it takes no --file"))
			}
			s, err := c.SetSecret(cmd.Context(), args[0], &req)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.Print(s)
			}
			fmt.Fprintf(a.Err, "%s is set: version %d, %s\n", s.Name, s.Version, whereTo(s.Hosts))
			if s.Value != "" {
				fmt.Fprintln(a.Err, "This is shown this once:")
				fmt.Fprintln(a.Out, s.Value)
			}
			return nil
		})}
	f := c.Flags()
	f.StringVar(&file, "file", "", "read the value from this file")
	f.StringSliceVar(&req.Hosts, "host", nil, "host that it may be sent to, such as api.example.com; may be repeated")
	f.BoolVar(&signs, "only-signs", false, "it may be sent to no host, also where the version before may")
	f.BoolVar(&req.Generate, "generate", false, "have the daemon draw a signing secret, and print it once")
	f.StringVar(&formerFor, "former-for", "", "how long the versions before count, such as 24h; 0s after a leak")
	return c
}

func whereTo(hosts []string) string {
	if len(hosts) == 0 {
		return "which only signs: it is sent nowhere"
	}
	return "for " + strings.Join(hosts, ", ")
}

// secretValue reads a value from a file, or from standard input; on a terminal
// it is not shown.
func (a app) secretValue(file string) (string, error) {
	in := a.In
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", console.Usage(err)
		}
		defer f.Close()
		in = f
	} else if f, ok := a.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(a.Err, "value: ")
		data, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(a.Err)
		return string(data), err
	}
	data, err := io.ReadAll(io.LimitReader(in, seal.MaxValue+2))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

func (a app) rekeyCommand() *cobra.Command {
	return &cobra.Command{Use: "rekey", Short: "Seal all slots anew under the current master key", Args: cobra.NoArgs,
		Long: "Seal all slots anew under the current master key, in steps. When it is stopped it goes on where it was. Afterwards the keys in\n" +
			"master_key.former are not needed any more.",
		RunE: a.With(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			total := 0
			for {
				step, err := c.RekeySecrets(cmd.Context())
				if err != nil {
					return err
				}
				total += step.Resealed
				if step.Left == 0 {
					return a.Say(map[string]any{"key_id": step.KeyID, "resealed": total}, "%s sealed anew; all are under the master key %s\n", words.Count(total, "version"), step.KeyID)
				}
			}
		})}
}

func (a app) newKeyCommand() *cobra.Command {
	return &cobra.Command{Use: "new-key FILE", Short: "Make a master key and write it to a new file of mode 0600", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			k, err := seal.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			switch err := masterkey.Write(args[0], k.Text()); {
			case errors.Is(err, fs.ErrExist):
				return console.Usage(fmt.Errorf("%s is there already; a key is never written over something", words.Clean(args[0])))
			case err != nil:
				return console.Usage(err)
			}
			return a.Say(map[string]any{"key_id": k.ID(), "file": args[0]}, "the master key %s is in %s\n", k.ID(), words.Clean(args[0]))
		}}
}
