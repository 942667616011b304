package cli

import (
	"database/sql"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli/console"
)

var rewrite = flag.Bool("rewrite", false, "write the generated pages anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"holdfast": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// The scripts run the real program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOLDFAST_SERVER", "")
			e.Setenv("HOLDFAST_TOKEN", "")
			fixture, err := filepath.Abs("../sqlite/testdata/upgrade/0.1.0.db.gz")
			e.Setenv("FIXTURE", fixture)
			if err != nil {
				return err
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"sql": sqlStatement},
	})
}

// sqlStatement changes a database behind the store's back: sql FILE STATEMENT.
func sqlStatement(ts *testscript.TestScript, _ bool, args []string) {
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
	ts.Check(err)
	defer db.Close()
	res, err := db.Exec(args[1])
	ts.Check(err)
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		ts.Fatalf("the statement changed nothing: %v", err)
	}
}

// docs/reference/cli.md is what the commands say of themselves.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Command line\n\nThe commands' own words; `go test ./internal/cli -run Reference -rewrite` writes this page.\n\n" +
		"Exit codes: 0 ok, 1 a failed run or check, 2 usage, 3 the daemon is not reachable, 4 refused (token, not found, conflict, contract, limit).\n" +
		"Every command takes `--json`, `--server`, `--token` and `--user`; what they do not name is taken from the environment\n" +
		"(`HOLDFAST_SERVER`, `HOLDFAST_TOKEN`), then from the folder of a `holdfast.yaml`: its daemon's address from\n" +
		"`<data_dir>/address`, which stands there while the daemon listens, or else `listen`; and, for that daemon only, the token of\n" +
		"`<data_dir>/admin.token`; a unix socket is sent none of a file, since it wants none.\n\n" +
		"With `--json` a result is one JSON document. `events`, `runs follow` and `run --follow` are NDJSON: one JSON value a line, an\n" +
		"event each, and for a run its last state at the end. An error is a problem document (RFC 9457) on standard output besides\n" +
		"the text on standard error: the daemon's own, or one made here, with the codes `usage`, `configuration_missing`,\n" +
		"`configuration_invalid`, `address_in_use`, `data_dir_missing`, `data_dir_locked`, `data_dir_network`, `data_dir_newer`, `data_dir_older`, `database_missing`,\n" +
		"`database_unreachable`, `database_unfit`, `database_newer`, `database_damaged`, `master_key_unknown`, `backup_by_server`, `backup_refused`, `restore_refused`,\n" +
		"`unreachable`, `interrupted`, `demo_failed` and `failed`. A run that failed and a verification with findings are results, not errors.\n")
	describe(&b, root(&console.App{}))
	path := filepath.Join("..", "..", "docs", "reference", "cli.md")
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is stale: go test ./internal/cli -run Reference -rewrite", path)
	}
}

func describe(b *strings.Builder, c *cobra.Command) {
	if c.Runnable() && !c.HasSubCommands() {
		b.WriteString("\n## " + c.CommandPath() + "\n\n    " + c.UseLine() + "\n\n")
		text := c.Long
		if text == "" {
			text = c.Short
		}
		b.WriteString(text + "\n")
		if flags := c.LocalNonPersistentFlags().FlagUsages(); flags != "" {
			b.WriteString("\n```\n" + flags + "```\n")
		}
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			describe(b, sub)
		}
	}
}
