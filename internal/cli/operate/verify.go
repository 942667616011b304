package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

func (a app) verifyCommand() *cobra.Command {
	var file, dir string
	var rebuild, upgrade bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check the log's hash chain and the rows derived from it",
		Long: "Check every stream's sequence and hash chain, the blobs, and that the derived rows and snapshots are\n" +
			"those that follow from the log. The daemon must not be running, save with database_url: there nodes go on\n" +
			"meanwhile. With --rebuild the derived rows are replaced by those that follow from the log, and the\n" +
			"snapshots dropped.\n\n" +
			"A database of an older release is not touched: verify it with the program that wrote it, or say --upgrade,\n" +
			"after which an older program cannot open it any more.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				cfg, err := loadConfig(file)
				if err != nil {
					return err
				}
				if cfg.DatabaseURL.Set() {
					return a.verifyShared(cmd.Context(), cfg, rebuild)
				}
				dir = cfg.Path(cfg.DataDir)
			}
			return a.verify(cmd.Context(), dir, rebuild, upgrade)
		},
	}
	c.Flags().StringVar(&file, "config", console.ConfigFile, "configuration file")
	c.Flags().StringVar(&dir, "data-dir", "", "data directory, instead of the configuration's")
	c.Flags().BoolVar(&rebuild, "rebuild", false, "replace the derived rows")
	c.Flags().BoolVar(&upgrade, "upgrade", false, "bring a database of an older release up to date first")
	return c
}

// verdict is the outcome of a verification as --json shows it.
type verdict struct {
	OK       bool      `json:"ok"`
	Streams  int       `json:"streams"`
	Events   int       `json:"events"`
	Erased   int       `json:"erased"`
	Blobs    int       `json:"blobs"`
	LogSound bool      `json:"log_sound"`
	Rebuilt  bool      `json:"rebuilt"`
	Mended   bool      `json:"mended"` // by the rebuild: everything that was found
	Findings []finding `json:"findings"`
	More     int       `json:"more"`
}

type finding struct {
	Where string `json:"where"`
	Text  string `json:"text"`
}

func (a app) verify(ctx context.Context, dir string, rebuild, upgrade bool) error {
	if !exists(dir) {
		return console.Exit(console.ExitUsage, "data_dir_missing", "there is no data directory at "+dir)
	}
	if file := filepath.Join(dir, sqlite.DatabaseFile); !exists(file) {
		return console.Exit(console.ExitUsage, "database_missing", "there is no database at "+file)
	}
	if g, err := sqlite.Look(ctx, dir); err == nil && !g.Held && !upgrade && (g.Schema < g.KnownSchema || g.Rows < eventlog.RowsVersion) {
		return console.Exit(console.ExitRefused, "data_dir_older", fmt.Sprintf("the database in %s is of an older release (tables of version %d, rows of version %d; this program has %d and %d): "+
			"verify it with the program that wrote it, or, after a backup, with --upgrade", dir, g.Schema, g.Rows, g.KnownSchema, eventlog.RowsVersion))
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot})
	var damaged *sqlite.DamagedError
	if errors.As(err, &damaged) {
		return a.verifyDamaged(ctx, damaged)
	}
	if err != nil {
		return opened(err)
	}
	return a.verifyStore(ctx, rebuild, s.Close, func(ctx context.Context, rebuild bool, progress func(string, int)) (storecore.Report, error) {
		return s.Verify(ctx, sqlite.VerifyOptions{Rebuild: rebuild, Progress: progress})
	})
}

// verifyDamaged tells all that is wrong with a database that cannot be opened.
func (a app) verifyDamaged(ctx context.Context, damaged *sqlite.DamagedError) error {
	report := storecore.Report{}
	report.Find(sqlite.DatabaseFile, "%s", damaged.What)
	why, err := sqlite.Examine(ctx, damaged.Dir)
	if err != nil {
		why = append(why, err.Error())
	}
	for _, text := range why {
		if text != damaged.What {
			report.Find(sqlite.DatabaseFile, "%s", text)
		}
	}
	return a.tellVerdict(&report, false, "the database cannot be opened; nothing was changed. "+damaged.Advice())
}

// verifyShared verifies the database that nodes share.
func (a app) verifyShared(ctx context.Context, cfg *config.Config, rebuild bool) error {
	url, err := cfg.Database()
	if err != nil {
		return console.Mistakes(cfg.Mistake("database_url", "%v", err))
	}
	s, err := postgres.Open(ctx, postgres.Config{
		URL: url, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion, CheckSnapshot: eventlog.CheckSnapshot,
	})
	if err != nil {
		return opened(err)
	}
	return a.verifyStore(ctx, rebuild, s.Close, func(ctx context.Context, rebuild bool, progress func(string, int)) (storecore.Report, error) {
		return s.Verify(ctx, postgres.VerifyOptions{Rebuild: rebuild, Progress: progress})
	})
}

// verifyStore verifies an open store, closes it and tells what was found.
func (a app) verifyStore(ctx context.Context, rebuild bool, closeStore func(context.Context) error,
	verify func(ctx context.Context, rebuild bool, progress func(string, int)) (storecore.Report, error)) error {
	var progress func(string, int)
	if console.Terminal(a.Err) && !a.JSON {
		progress = func(_ string, n int) { fmt.Fprintf(a.Err, "\r%d events read", n) }
		defer fmt.Fprintln(a.Err)
	}
	report, err := verify(ctx, rebuild, progress)
	mended := false
	if err == nil && report.Rebuilt && !report.OK() {
		// What was found stood there before the rebuild; what stands there now
		// only another look tells.
		var after storecore.Report
		after, err = verify(ctx, false, progress)
		mended = err == nil && after.OK()
	}
	if err = errors.Join(err, closeStore(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return a.tellVerdict(&report, mended, "")
}

// tellVerdict prints a report, and is an error when something was found.
func (a app) tellVerdict(report *storecore.Report, mended bool, advice string) (err error) {
	found := len(report.Findings) + report.More
	if a.JSON {
		v := verdict{
			OK: found == 0 || mended, Streams: report.Streams, Events: report.Events, Erased: report.Erased, Blobs: report.Blobs,
			LogSound: report.LogSound, Rebuilt: report.Rebuilt, Mended: mended, Findings: []finding{}, More: report.More,
		}
		for _, f := range report.Findings {
			v.Findings = append(v.Findings, finding(f))
		}
		err = a.Print(v)
	} else {
		err = a.tellReport(report, mended)
	}
	if err != nil || found == 0 || mended {
		return err
	}
	text := words.Count(found, "finding")
	if advice != "" {
		text += ": " + advice
	}
	return console.Exit(console.ExitFailed, "", text)
}

// tellReport prints a report for people.
func (a app) tellReport(r *storecore.Report, mended bool) error {
	w := bufio.NewWriter(a.Out)
	fmt.Fprintf(w, "%s in %s, %d of them erased; %s\n", words.Count(r.Events, "event"), words.Count(r.Streams, "stream"), r.Erased, words.Count(r.Blobs, "blob"))
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s\n", f.Where, f.Text)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "and %d more\n", r.More)
	}
	if r.Rebuilt {
		fmt.Fprintln(w, "derived rows rebuilt")
	}
	switch {
	case mended:
		fmt.Fprintln(w, "everything that was found is mended: the log is whole, and the derived rows follow from it")
	case r.OK():
		fmt.Fprintln(w, "the log is whole, and the derived rows follow from it")
	}
	return w.Flush()
}
