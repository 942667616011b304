package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// block is a fenced block of the README, with the comment that stands before it.
type block struct{ mark, text string }

var blocks = regexp.MustCompile("(?s)<!-- ([a-z]+(?:: [^>]*)?) -->\n```[a-z]*\n(.*?)```\n")

// What the README shows is run, in one shell: files are written where it
// stands, commands executed, outputs compared. A mark "run: 4" expects that
// exit code of the block's last command; blocks with "postgresql" are run where
// there is a database for the tests.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "holdfast")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	// Under the name of the command the test binary is the command.
	if err := os.WriteFile(bin, data, 0o700); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	if err := os.Mkdir(clone, 0o700); err != nil {
		t.Fatal(err)
	}
	database, away := storetest.DatabaseIf(t)
	sh := newShell(t, clone, filepath.Dir(bin), "HOLDFAST_DATABASE_URL="+database)
	var out, errOut string
	ran, ranThere := 0, 0
	for _, m := range blocks.FindAllStringSubmatch(string(text), -1) {
		kind, arg, _ := strings.Cut(m[1], ": ")
		b := block{kind, m[2]}
		if arg == "postgresql" {
			if arg = ""; away != nil {
				continue
			}
			ranThere++
		}
		switch b.mark {
		case "file":
			path := filepath.Join(sh.dir, arg)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			text := b.text
			if arg == "holdfast.yaml" {
				text = "listen: unix:hf.sock\n" + text // the port may be taken here
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "run":
			want := 0
			if arg != "" {
				if want, err = strconv.Atoi(arg); err != nil {
					t.Fatal(err)
				}
			}
			ran++
			out, errOut = sh.run(b.text, want)
		case "output":
			if !strings.HasSuffix(out, b.text) {
				t.Errorf("the README shows\n%s\nand the command prints\n%s", b.text, out)
			}
		case "error":
			if !strings.HasSuffix(errOut, b.text) {
				t.Errorf("the README shows\n%s\nand the command complains\n%s", b.text, errOut)
			}
		default:
			t.Errorf("no such mark: %s", b.mark)
		}
	}
	if ran < 6 || away == nil && ranThere < 4 {
		t.Fatalf("only %d blocks of commands were found, %d of them about PostgreSQL", ran, ranThere)
	}
	if away != nil {
		t.Skipf("all but what needs PostgreSQL was run (HOLDFAST_TEST_DATABASE names one): %v", away)
	}
}

// shell is one bash that runs blocks of commands, the daemon among them.
type shell struct {
	t   *testing.T
	tmp string
	dir string // where it stands
	in  io.WriteCloser
	out *bufio.Reader
}

func newShell(t *testing.T, dir, bin string, env ...string) *shell {
	s := &shell{t: t, tmp: t.TempDir(), dir: dir}
	cmd := exec.Command("bash", "--norc")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "HOLDFAST_SERVER=", "HOLDFAST_TOKEN=")
	cmd.Env = append(cmd.Env, env...)
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(pipe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		io.WriteString(s.in, "kill $(jobs -p) 2>/dev/null; wait\n") // what a test that failed left running
		s.in.Close()
		cmd.Wait()
	})
	return s
}

// run runs a block. A command that fails before the last one counts too.
func (s *shell) run(text string, want int) (out, errOut string) {
	s.t.Helper()
	file := func(name string) string { return filepath.Join(s.tmp, name) }
	if err := os.WriteFile(file("block"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	wait := ""
	if n := strings.Count(text, "holdfast serve"); n == 1 {
		wait = "for i in {1..400}; do [ -s holdfast-data/address ] && break; sleep 0.05; done; "
	} else if n > 1 {
		wait = fmt.Sprintf("for i in {1..400}; do [ $(ls */holdfast-data/address 2>/dev/null | wc -l) -ge %d ] && break; sleep 0.05; done; ", n)
	}
	fmt.Fprintf(s.in, "failed=0; trap 'failed=$?' ERR; set -E; . %[1]q >%[2]q 2>%[3]q </dev/null; trap - ERR; %[4]secho \"$failed $PWD\"\n",
		file("block"), file("out"), file("err"), wait)
	answer, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(file(name))
		if err != nil {
			s.t.Fatal(err)
		}
		return string(data)
	}
	out, errOut = read("out"), read("err")
	code, dir, _ := strings.Cut(strings.TrimSpace(answer), " ")
	if s.dir = dir; code != strconv.Itoa(want) {
		s.t.Fatalf("%s\nexit code %s, want %d\n%s%s", text, code, want, out, errOut)
	}
	return out, errOut
}
