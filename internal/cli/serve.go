package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/version"
)

const configFile = "holdfast.yaml"

func (a *app) serveCommand() *cobra.Command {
	var file, listen, addressFile string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			if listen != "" {
				if path, ok := strings.CutPrefix(listen, "unix:"); ok {
					if path, err = filepath.Abs(path); err != nil {
						return err
					}
					listen = "unix:" + path
				}
				cfg.Listen = listen
			}
			return a.serve(cmd.Context(), cfg, addressFile)
		},
	}
	c.Flags().StringVar(&file, "config", configFile, "configuration file")
	c.Flags().StringVar(&listen, "listen", "", "listen here instead of where the configuration says")
	c.Flags().StringVar(&addressFile, "address-file", "", "write the address to this file once the daemon listens")
	return c
}

func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &exitError{exitUsage, "there is no configuration at " + file + "; write one, or name one with --config"}
	}
	var ce *config.Error
	if errors.As(err, &ce) {
		return nil, &exitError{exitUsage, ce.Error()}
	}
	return cfg, err
}

// serve runs the daemon until the context ends.
func (a *app) serve(ctx context.Context, cfg *config.Config, addressFile string) error {
	log := newLogger(cfg.Log, a.err)
	d, err := daemon.Open(ctx, cfg, daemon.Options{Logger: log})
	if err != nil {
		return opened(err)
	}
	l, local, err := listen(address(cfg))
	if err != nil {
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	}
	path, err := d.FirstToken(ctx, os.Getenv("HOLDFAST_TOKEN"))
	if err == nil {
		err = d.Start(ctx)
	}
	if err != nil {
		l.Close()
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	}
	if path != "" {
		log.Info("first start: the admin token is in a file", "path", path)
	}
	d.Serve(l, local)
	at := addressOf(l, local)
	log.Info("listening", "address", at, "version", version.String(), "pid", os.Getpid())
	if addressFile != "" {
		if err := writeWhole(addressFile, at+"\n"); err != nil {
			return errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
		}
	}
	<-ctx.Done()
	// A second signal ends the process at once; that is a crash, and safe as one.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	log.Info("stopping")
	began := time.Now()
	err = d.Stop(context.WithoutCancel(ctx))
	log.Info("stopped", "took_ms", time.Since(began).Milliseconds())
	return err
}

// opened explains why the data directory could not be opened.
func opened(err error) error {
	var le *sqlite.LockedError
	if errors.As(err, &le) {
		return &exitError{exitRefused, le.Error()}
	}
	return err
}

func listen(address string) (net.Listener, bool, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		l, err := net.Listen("tcp", address)
		return l, false, err
	}
	// The data directory is locked by us, so that a socket left here belongs
	// to a daemon that is gone.
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, true, err
		}
	}
	l, err := listenPrivate(path)
	return l, true, err
}

// address is where the configuration listens; a socket's path begins at the
// folder of the configuration.
func address(cfg *config.Config) string {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
		return "unix:" + cfg.Path(path)
	}
	return cfg.Listen
}

func addressOf(l net.Listener, local bool) string {
	if local {
		return "unix:" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// writeWhole writes a file that readers see whole or not at all.
func writeWhole(path, text string) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// newLogger makes the daemon's log: lines hold ids and codes, never content.
func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	level := map[string]slog.Level{"debug": slog.LevelDebug, "warn": slog.LevelWarn, "error": slog.LevelError}[cfg.Level]
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "text" || cfg.Format == "" && terminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Check a configuration file", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file := configFile
			if len(args) == 1 {
				file = args[0]
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(map[string]any{"ok": true, "routes": len(cfg.Routes), "tools": len(cfg.Tools)})
			}
			fmt.Fprintf(a.out, "%s is good: %d routes, %d tools, listens on %s\n", file, len(cfg.Routes), len(cfg.Tools), cfg.Listen)
			return nil
		},
	}
	return group("config", "Look at the configuration", check)
}

func (a *app) verifyCommand() *cobra.Command {
	var file, dir string
	var rebuild bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check the log's hash chain and the rows derived from it",
		Long: "Check every stream's sequence and hash chain, the blobs, and that the derived rows are those that\n" +
			"follow from the log. The daemon must not be running. With --rebuild the derived rows are replaced\n" +
			"by those that follow from the log.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				cfg, err := loadConfig(file)
				if err != nil {
					return err
				}
				dir = cfg.Path(cfg.DataDir)
			}
			return a.verify(cmd.Context(), dir, rebuild)
		},
	}
	c.Flags().StringVar(&file, "config", configFile, "configuration file")
	c.Flags().StringVar(&dir, "data-dir", "", "data directory, instead of the configuration's")
	c.Flags().BoolVar(&rebuild, "rebuild", false, "replace the derived rows")
	return c
}

func (a *app) verify(ctx context.Context, dir string, rebuild bool) error {
	if _, err := os.Stat(filepath.Clean(dir)); err != nil {
		return &exitError{exitUsage, "there is no data directory at " + dir}
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		return opened(err)
	}
	opt := sqlite.VerifyOptions{Rebuild: rebuild}
	if terminal(a.err) && !a.json {
		opt.Progress = func(stream string, n int) { fmt.Fprintf(a.err, "\r%d events read", n) }
		defer fmt.Fprintln(a.err)
	}
	report, err := s.Verify(ctx, opt)
	if err = errors.Join(err, s.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if a.json {
		if err := a.print(report); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.out, "%d events in %d streams, %d of them erased; %d blobs\n", report.Events, report.Streams, report.Erased, report.Blobs)
		for _, f := range report.Findings {
			fmt.Fprintf(a.out, "%s: %s\n", f.Where, f.Text)
		}
		if report.More > 0 {
			fmt.Fprintf(a.out, "and %d more\n", report.More)
		}
		if report.Rebuilt {
			fmt.Fprintln(a.out, "derived rows rebuilt")
		}
	}
	if !report.OK() {
		return &exitError{exitFailed, fmt.Sprintf("%d findings", len(report.Findings)+report.More)}
	}
	if !a.json {
		fmt.Fprintln(a.out, "the log is whole, and the derived rows follow from it")
	}
	return nil
}
