package cli

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
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
			return nil
		},
	})
}

// docs/reference/cli.md is what the commands say of themselves.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Command line\n\nThe commands' own words; `go test ./internal/cli -run Reference -rewrite` writes this page.\n\n" +
		"Exit codes: 0 ok, 1 a failed run or check, 2 usage, 3 the daemon is not reachable, 4 refused (token, conflict, contract).\n" +
		"Every command takes `--json`, `--server`, `--token` and `--user`; what they do not name is taken from the environment\n" +
		"(`HOLDFAST_SERVER`, `HOLDFAST_TOKEN`), then from `holdfast.yaml` in the working directory.\n")
	a := &app{}
	describe(&b, a.root())
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
