package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/backup"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
)

func (a app) backupCommand() *cobra.Command {
	var file, dir, temp, recipientsFile string
	var recipients []string
	var asTar bool
	c := &cobra.Command{
		Use:   "backup DIR|FILE.tar|-",
		Short: "Copy the data directory while the daemon works",
		Long: "Copy one moment of the data directory, beside a daemon that works or without one, and verify the copy: into a\n" +
			"directory that is not there yet, into a file (a name that ends in .tar, or --tar), or with - as a tar into\n" +
			"standard output. It reads the files of the data directory and wants to run as the daemon's user on its machine.\n\n" +
			"Secrets (the first admin token, the webhook secret, the master key and what it opens) are left out, unless\n" +
			"--recipient or --recipients-file says for whom they are to be encrypted with age. Workspaces, the\n" +
			"configuration and what it refers to are not part of a backup.\n\n" +
			"With database_url the database server makes the backups: see docs/operate.md.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := backup.Options{To: args[0], Tar: asTar || strings.HasSuffix(args[0], ".tar"), Temp: temp, Progress: a.progress()}
			var err error
			if o.DataDir, o.KeyFile, err = a.dataDir(file, dir); err != nil {
				return err
			}
			if args[0] == "-" {
				if a.JSON {
					return console.Usage(errors.New("standard output holds the backup: --json has no place beside it"))
				}
				o.To, o.Tar, o.Stream = "", false, a.Out
			}
			if o.Recipients, err = recipientsOf(recipients, recipientsFile); err != nil {
				return err
			}
			m, err := backup.Make(cmd.Context(), o)
			a.endProgress()
			if err != nil {
				return refusal("backup_refused", err)
			}
			return a.tellBackup(&m, args[0])
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", console.ConfigFile, "configuration file")
	f.StringVar(&dir, "data-dir", "", "data directory, instead of the configuration's")
	f.BoolVar(&asTar, "tar", false, "write a tar file, whatever its name")
	f.StringVar(&temp, "temp", "", "folder on a local disk for the copy while it is verified, where it cannot be made beside the backup")
	f.StringArrayVar(&recipients, "recipient", nil, "carry the secrets, encrypted for this age recipient (age1…); may be given more than once")
	f.StringVar(&recipientsFile, "recipients-file", "", "carry the secrets, encrypted for the age recipients in this file")
	return c
}

// dataDir gives the data directory that is meant, and the file of its master key.
func (a app) dataDir(file, dir string) (data, key string, err error) {
	if dir != "" {
		return dir, filepath.Clean(dir) + ".key", nil
	}
	cfg, err := loadConfig(file)
	if err != nil {
		return "", "", err
	}
	if cfg.DatabaseURL.Set() {
		return "", "", console.Exit(console.ExitUsage, "backup_by_server", "with database_url the log stands in PostgreSQL, whose own tools copy and restore it: pg_dump -n SCHEMA -Fc (one moment, while everything runs), "+
			"or a base backup with its write-ahead log; restore with pg_restore into an empty schema while no node runs, and look at it with holdfast verify. docs/operate.md, PostgreSQL, has more")
	}
	return cfg.Path(cfg.DataDir), cfg.MasterKeyFile(), nil
}

func recipientsOf(list []string, file string) (out []age.Recipient, err error) {
	text := strings.Join(list, "\n")
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, console.Usage(err)
		}
		text += "\n" + string(data)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if out, err = age.ParseRecipients(strings.NewReader(text)); err != nil {
		return nil, console.Usage(errors.New("a recipient is not one of age: want age1…, as age-keygen prints it"))
	}
	return out, nil
}

// progress tells a person how far a long work is.
func (a app) progress() func(string, int64, int64) {
	if !console.Terminal(a.Err) || a.JSON {
		return nil
	}
	return func(what string, done, of int64) {
		switch {
		case what == "verifying":
			fmt.Fprintf(a.Err, "\r\x1b[K%s: %d events", what, done)
		case of > 0:
			fmt.Fprintf(a.Err, "\r\x1b[K%s: %d of %d MiB", what, done>>20, of>>20)
		}
	}
}

func (a app) endProgress() {
	if console.Terminal(a.Err) && !a.JSON {
		fmt.Fprint(a.Err, "\r\x1b[K")
	}
}

// refusal gives an error that a person can mend its exit code.
func refusal(code string, err error) error {
	var e *backup.Error
	if errors.As(err, &e) {
		return console.Exit(console.ExitRefused, code, e.Text)
	}
	return opened(err)
}

func (a app) tellBackup(m *backup.Manifest, to string) error {
	if a.JSON {
		return a.Print(m)
	}
	w := bufio.NewWriter(a.Out)
	if to == "-" {
		w = bufio.NewWriter(a.Err)
	}
	fmt.Fprintf(w, "%s in %s, %d MiB, verified; ends %s\n", words.Count(int(m.Events), "event"), words.Count(m.Streams, "stream"), m.Database.Size>>20, m.Ends)
	switch {
	case m.Secrets != nil:
		fmt.Fprintln(w, "secrets are in it, encrypted with age: keep the identity that opens them apart from it")
		if len(m.LeftOut) > 0 {
			fmt.Fprintf(w, "not in it: %s, which is in no file: keep a copy of it, without which the slots of the backup stay closed\n", strings.Join(m.LeftOut, ", "))
		}
	case len(m.LeftOut) > 0:
		fmt.Fprintf(w, "left out: %s; keep copies of them apart, or carry them with --recipient\n", strings.Join(m.LeftOut, ", "))
	}
	return w.Flush()
}

func (a app) restoreCommand() *cobra.Command {
	var file, dir, identity string
	var o backup.RestoreOptions
	var release bool
	c := &cobra.Command{
		Use:   "restore DIR|FILE|-",
		Short: "Make a data directory of a backup, or release one that was made",
		Long: "Make a data directory of a backup: an empty one, or one that is not there yet. The backup is verified before the\n" +
			"directory can be used.\n\n" +
			"What the daemon did after the backup is not in it, and effects outside happened all the same: runs and deliveries\n" +
			"that were unfinished then may have ended since. So a restored directory waits: its daemon answers and takes commands,\n" +
			"and begins no work until it is released. Look at what is unfinished (holdfast runs list, holdfast deliveries list),\n" +
			"cancel and resolve what must not go on, and say holdfast restore --release. With --go nothing waits.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.DataDir, o.KeyFile, err = a.dataDir(file, dir); err != nil {
				return err
			}
			if release {
				if len(args) > 0 {
					return console.Usage(errors.New("--release names no backup"))
				}
				return a.release(o.DataDir)
			}
			if len(args) == 0 {
				return console.Usage(errors.New("name the backup, or - for standard input"))
			}
			if o.From = args[0]; o.From == "-" {
				o.Stream = a.In
			}
			if identity != "" {
				if o.Identities, err = identities(identity); err != nil {
					return err
				}
			}
			o.Progress = a.progress()
			return a.restore(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", console.ConfigFile, "configuration file")
	f.StringVar(&dir, "data-dir", "", "data directory, instead of the configuration's")
	f.StringVar(&identity, "identity", "", "file with the age identity that opens the secrets of the backup")
	f.BoolVar(&o.WithoutSecrets, "without-secrets", false, "leave out the secrets that the backup carries, the slots among them")
	f.BoolVar(&o.DropTokens, "drop-tokens", false, "leave out all access tokens, those revoked after the backup among them; the next start makes a new one")
	f.BoolVar(&o.Go, "go", false, "let work begin with the first start")
	f.BoolVar(&release, "release", false, "let the work of a restored data directory begin")
	return c
}

func identities(file string) ([]age.Identity, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, console.Usage(err)
	}
	defer f.Close()
	list, err := age.ParseIdentities(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, console.Usage(fmt.Errorf("%s holds no age identity (AGE-SECRET-KEY-…)", file))
	}
	return list, nil
}

func (a app) restore(ctx context.Context, o backup.RestoreOptions) error {
	r, err := backup.Restore(ctx, o)
	a.endProgress()
	if err != nil {
		return refusal("restore_refused", err)
	}
	if a.JSON {
		return a.Print(&r)
	}
	w := bufio.NewWriter(a.Out)
	fmt.Fprintf(w, "%s in %s, verified, in %s; the newest is of %s\n", words.Count(int(r.Events), "event"), words.Count(r.Streams, "stream"), o.DataDir, r.Newest)
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "not in it: %s; put them back before the first start, or new ones are made (receivers of webhooks must know a new secret)\n", strings.Join(r.Missing, ", "))
		if slices.Contains(r.Missing, "admin.token") && !o.DropTokens {
			fmt.Fprintln(w, "the tokens of the backup are good, and no admin token is made beside them; who has none makes one over a unix socket: holdfast serve --listen unix:PATH, then holdfast token create --role admin")
		}
	}
	fmt.Fprintf(w, "unfinished: %s, %s; those that ended after the backup would go on or be sent again\n", words.Count(r.Runs, "run"), words.Plural(r.Deliveries, "delivery", "deliveries"))
	if r.Held {
		fmt.Fprintln(w, "no work begins until you say: holdfast restore --release")
	}
	return w.Flush()
}

func (a app) release(dir string) error {
	was, err := backup.Release(dir)
	if err != nil {
		return err
	}
	if !was {
		return a.Say(map[string]any{"released": false}, "%s was not held\n", dir)
	}
	return a.Say(map[string]any{"released": true}, "work begins in %s\n", dir)
}
