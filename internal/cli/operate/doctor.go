package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cli/console"
	"github.com/holdfast-dev/holdfast/internal/cli/words"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/doctor"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/version"
)

func (a app) doctorCommand() *cobra.Command {
	var file string
	var online bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything the daemon needs, and say what to do",
		Long: "Look at everything the daemon needs: configuration, secrets, data directory, disk, database, clock, listener and the way\n" +
			"to the models; with database_url also the server's settings, what a commit costs, and the nodes that are there. It may run beside a daemon. Each finding says ok, warn or fail, and what to do; a fail makes the exit code 1.\n" +
			"Servers of models are asked for an answer without a key; with --online they are asked for their list of models with it,\n" +
			"which costs nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), file, online) },
	}
	c.Flags().StringVar(&file, "config", console.ConfigFile, "configuration file")
	c.Flags().BoolVar(&online, "online", false, "ask vendors for their models, with the key")
	return c
}

// examination is what --json shows.
type examination struct {
	OK       bool             `json:"ok"` // nothing fails
	Worst    doctor.Level     `json:"worst"`
	Findings []doctor.Finding `json:"findings"`
}

func (a app) doctor(ctx context.Context, file string, online bool) error {
	cfg, err := loadConfig(file)
	var wrong console.ConfigError
	var found []doctor.Finding
	switch {
	case errors.As(err, &wrong):
		found = unreadable(wrong)
	case err != nil:
		return err
	default:
		found = doctor.Examine(ctx, a.patient(cfg, online))
	}
	worst := doctor.Worst(found)
	if a.JSON {
		err = a.Print(examination{OK: worst != doctor.Fail, Worst: worst, Findings: found})
	} else {
		err = a.tellFindings(found)
	}
	if err != nil || worst != doctor.Fail {
		return err
	}
	return console.Exit(console.ExitFailed, "", "")
}

// unreadable is a configuration that cannot be read: nothing else can be looked at.
func unreadable(wrong console.ConfigError) []doctor.Finding {
	var found []doctor.Finding
	for _, m := range wrong {
		found = append(found, doctor.Finding{Check: "configuration", Level: doctor.Fail, Text: m.Error(),
			Do: "mend the file at that place; nothing else could be looked at"})
	}
	return found
}

func (a app) patient(cfg *config.Config, online bool) doctor.Input {
	in := doctor.Input{Config: cfg, Online: online, Version: version.String(), RowsVersion: eventlog.RowsVersion,
		Private: []string{daemon.TokenPath(cfg), daemon.SigningSecretPath(cfg)}}
	if way, err := daemon.DoctorGuard(cfg); err == nil { // what is wrong with it Check tells
		in.Vendors = way
	}
	if key := cfg.MasterKeyFile(); key != "" {
		in.Private = append(in.Private, key)
	}
	warnings, err := daemon.Check(cfg)
	in.Warnings = warnings
	var wrong console.ConfigError
	if err = console.Mistakes(err); errors.As(err, &wrong) {
		for _, m := range wrong {
			in.Mistakes = append(in.Mistakes, m.Error())
		}
	} else if err != nil {
		in.Mistakes = append(in.Mistakes, err.Error())
	}
	in.Running = func(ctx context.Context) (string, error) {
		c, err := client.New(console.AddressesOf(cfg)[0], "")
		if err != nil {
			return "", err
		}
		h, err := c.Ready(ctx)
		var ce *client.Error
		if errors.As(err, &ce) && ce.Problem.Code == "not_ready" {
			return "", &doctor.NotReadyError{Why: ce.Problem.Detail}
		}
		if err != nil {
			return "", err
		}
		return h.Version, nil
	}
	return in
}

// tellFindings prints findings for people: a line each, and below it what to do.
func (a app) tellFindings(found []doctor.Finding) error {
	colour := map[doctor.Level]string{}
	if console.Terminal(a.Out) && os.Getenv("NO_COLOR") == "" {
		colour = map[doctor.Level]string{doctor.OK: "32", doctor.Warn: "33", doctor.Fail: "31"}
	}
	counts := map[doctor.Level]int{}
	var b strings.Builder
	for _, f := range found {
		counts[f.Level]++
		mark := fmt.Sprintf("%-4s", f.Level)
		if c := colour[f.Level]; c != "" {
			mark = "\x1b[" + c + "m" + mark + "\x1b[0m"
		}
		fmt.Fprintf(&b, "%s  %-15s %s\n", mark, f.Check, words.Clean(f.Text))
		if f.Do != "" {
			fmt.Fprintf(&b, "%22s→ %s\n", "", words.Clean(f.Do))
		}
	}
	fmt.Fprintf(&b, "%d ok, %d to look at, %d to mend\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
	_, err := fmt.Fprint(a.Out, b.String())
	return err
}
