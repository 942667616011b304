package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/listener"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/version"
)

func (a app) serveCommand() *cobra.Command {
	var file, listen, addressFile string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: "Run the daemon until SIGTERM or SIGINT; a second signal ends it at once. While it listens its address stands in\n" +
			"<data_dir>/address, where the other commands find it.",
		Args: cobra.NoArgs,
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
				if err := cfg.ListenOn(listen); err != nil {
					return console.Usage(errors.New("--" + err.Text))
				}
			}
			return a.serve(cmd.Context(), cfg, addressFile)
		},
	}
	c.Flags().StringVar(&file, "config", console.ConfigFile, "configuration file")
	c.Flags().StringVar(&listen, "listen", "", "listen here instead of where the configuration says")
	c.Flags().StringVar(&addressFile, "address-file", "", "write the address to this file too once the daemon listens")
	return c
}

func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, console.Exit(console.ExitUsage, "configuration_missing", "there is no configuration at "+file+"; write one, or name one with --config")
	}
	return cfg, console.Mistakes(err)
}

// serve runs the daemon until the context ends.
func (a app) serve(ctx context.Context, cfg *config.Config, addressFile string) error {
	log := newLogger(cfg.Log, a.Err)
	warnings, err := daemon.Check(cfg)
	if err != nil {
		return console.Mistakes(err)
	}
	for _, w := range warnings {
		log.Warn("the configuration works, and may not be meant so", "warning", w)
	}
	cfg.Unreadable = func(at config.Reference, err error) {
		log.Warn("a reference could not be read when its value was needed", "key", at.Key, "reference", at.Ref.String(), "err", err)
	}
	hadSecret := exists(daemon.SigningSecretPath(cfg))
	d, err := daemon.Open(ctx, cfg, daemon.Options{Logger: log})
	if err != nil {
		return console.Mistakes(opened(err))
	}
	if !hadSecret && exists(daemon.SigningSecretPath(cfg)) {
		log.Info("first start: the secret that webhooks are signed with is in a file", "path", daemon.SigningSecretPath(cfg))
	}
	l, local, conf, stopTLS, err := listen(cfg, log)
	if err != nil {
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	}
	defer stopTLS()
	path, err := d.FirstToken(ctx, os.Getenv("HOLDFAST_TOKEN"))
	if err == nil {
		err = d.AuditStart(ctx)
	}
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
	if conf != nil {
		d.ServeTLS(l, conf)
	} else {
		d.Serve(l, local)
	}
	at := addressOf(cfg, l, local)
	log.Info("listening", "address", at, "version", version.String(), "pid", os.Getpid())
	if err = writeWhole(console.AddressPath(cfg), at+"\n"); errors.Is(err, syscall.ENOSPC) { // what makes room must find it
		log.Error("no room to write the address of this daemon down; commands look for it at what listen says", "err", err)
		err = nil
	}
	if err == nil && addressFile != "" {
		err = writeWhole(addressFile, at+"\n")
	}
	if err != nil {
		os.Remove(console.AddressPath(cfg))
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	}
	<-ctx.Done()
	// A second signal ends the process at once; that is a crash, and safe as one.
	// Those that come together are one: timeout(1) tells a process and its group.
	again := time.AfterFunc(time.Second, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	defer again.Stop()
	log.Info("stopping")
	began := time.Now()
	// While the data directory is locked by us the file is ours.
	err = os.Remove(console.AddressPath(cfg))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	log.Info("stopped", "took_ms", time.Since(began).Milliseconds())
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// opened explains why the data directory could not be opened.
func opened(err error) error {
	var le *dirlock.Error
	if errors.As(err, &le) {
		return console.Exit(console.ExitRefused, "data_dir_locked", le.Error())
	}
	var ne *diskfs.NetworkError
	if errors.As(err, &ne) {
		return console.Exit(console.ExitRefused, "data_dir_network", ne.Error())
	}
	var away *postgres.UnreachableError
	if errors.As(err, &away) {
		return console.Exit(console.ExitUnreachable, "database_unreachable", strings.TrimPrefix(err.Error(), "open store: "))
	}
	var wrong *postgres.SetupError
	if errors.As(err, &wrong) {
		return console.Exit(console.ExitRefused, "database_unfit", wrong.Error())
	}
	var there *postgres.NewerError
	if errors.As(err, &there) {
		return console.Exit(console.ExitRefused, "database_newer", there.Error())
	}
	var damaged *sqlite.DamagedError
	if errors.As(err, &damaged) {
		return console.Exit(console.ExitRefused, "database_damaged", damaged.Error())
	}
	var here *sqlite.NewerError
	if errors.As(err, &here) {
		return console.Exit(console.ExitRefused, "data_dir_newer", here.Error())
	}
	var sealed *slots.UnknownKeyError
	if errors.As(err, &sealed) {
		return console.Exit(console.ExitRefused, "master_key_unknown", sealed.Error())
	}
	return err
}

// listen opens the listener of the configuration. conf is not nil where it speaks
// TLS; stop ends what was begun for that.
func listen(cfg *config.Config, log *slog.Logger) (l net.Listener, local bool, conf *tls.Config, stop func(), err error) {
	stop = func() {}
	if path, ok := strings.CutPrefix(console.Address(cfg), "unix:"); ok {
		l, err = listener.Unix(path, log)
		var used *listener.InUseError
		if errors.As(err, &used) {
			err = console.Exit(console.ExitRefused, "address_in_use", used.Error())
		}
		return l, true, nil, stop, err
	}
	if l, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, false, nil, stop, err
	}
	switch t := cfg.TLS; {
	case t.ACME != nil:
		var end func()
		if conf, end, err = listener.Authority(listener.ACME{
			Domains: t.ACME.Domains, Email: t.ACME.Email, Directory: t.ACME.Directory, Roots: cfg.Path(t.ACME.Roots),
			Folder: filepath.Join(cfg.Path(cfg.DataDir), "acme"), Listen: l.Addr().String(),
		}, log); err == nil {
			stop = end
		}
	case t.Set():
		conf, err = listener.Files(cfg.Path(t.Cert), cfg.Path(t.Key), log)
		if err != nil {
			err = console.Mistakes(cfg.Mistake("tls", "%v", err))
		}
	}
	if err != nil {
		l.Close()
		return nil, false, nil, stop, err
	}
	return l, false, conf, stop, nil
}

// addressOf is where the other commands on this machine reach the daemon: with TLS
// by a name of its certificate.
func addressOf(cfg *config.Config, l net.Listener, local bool) string {
	at := l.Addr().String()
	if local {
		return "unix:" + at
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return "http://" + at
	}
	if url := cfg.PublicURL(port); url != "" {
		return url
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		at = net.JoinHostPort("127.0.0.1", port)
	}
	if cfg.TLS.Set() {
		return "https://" + at
	}
	return "http://" + at
}

// writeWhole writes a file that readers see whole or not at all.
func writeWhole(path, text string) error {
	// The name is drawn: in a folder that others write to, such as /tmp, one that is
	// known could be a link to a file of ours.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// newLogger makes the daemon's log: lines hold ids and codes, never content.
func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	level := map[string]slog.Level{"debug": slog.LevelDebug, "warn": slog.LevelWarn, "error": slog.LevelError}[cfg.Level]
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "text" || cfg.Format == "" && console.Terminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	opts.ReplaceAttr = func(_ []string, at slog.Attr) slog.Attr {
		if at.Value.Kind() == slog.KindDuration { // else a number of nanoseconds
			at.Value = slog.StringValue(at.Value.Duration().String())
		}
		return at
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func (a app) configCommand() *cobra.Command {
	var file string
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Check a configuration file", Args: cobra.MaximumNArgs(1),
		Long: "Check a configuration file, and what it names: scripts, the URLs, schemas and headers of HTTP tools, the roots of\n" +
			"workspaces, reply targets and session templates. A reference to a secret that cannot be read now is a warning on standard error. Nothing is written.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if cmd.Flags().Changed("config") {
					return console.Usage(errors.New("name the file once: as FILE, or with --config"))
				}
				file = args[0]
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			warnings, err := daemon.Check(cfg)
			for _, w := range warnings {
				a.Complain("warning: " + w)
			}
			if err != nil {
				return console.Mistakes(err)
			}
			if a.JSON {
				return a.Print(map[string]any{"ok": true, "routes": len(cfg.Routes), "tools": len(cfg.Tools), "warnings": append([]string{}, warnings...)})
			}
			fmt.Fprintf(a.Out, "%s is good: %s, %s, listens on %s\n", file, words.Count(len(cfg.Routes), "route"), words.Count(len(cfg.Tools), "tool"), cfg.Listen)
			return nil
		},
	}
	check.Flags().StringVar(&file, "config", console.ConfigFile, "the same as FILE")
	return console.Group("config", "Look at the configuration", check)
}
