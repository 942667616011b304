package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// block is a fenced block of the README, with the comment that stands before it.
type block struct{ mark, text string }

var blocks = regexp.MustCompile("(?s)<!-- ([a-z]+(?:: [^>]*)?) -->\n```[a-z]*\n(.*?)```\n")

// What the README shows is run: files are written, commands executed, outputs
// compared. A mark "run: 4" expects that exit code of the block's last command.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
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
	sh := newShell(t, dir, filepath.Dir(bin))
	var out, errOut string
	ran := 0
	for _, m := range blocks.FindAllStringSubmatch(string(text), -1) {
		kind, arg, _ := strings.Cut(m[1], ": ")
		b := block{kind, m[2]}
		switch b.mark {
		case "file":
			path := filepath.Join(dir, arg)
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
	if ran < 4 {
		t.Fatalf("only %d blocks of commands were found", ran)
	}
}

// shell runs blocks of commands, and the daemon among them.
type shell struct {
	t    *testing.T
	dir  string
	path string
}

func newShell(t *testing.T, dir, bin string) *shell {
	return &shell{t, dir, bin + string(os.PathListSeparator) + os.Getenv("PATH")}
}

func (s *shell) run(text string, want int) (out, errOut string) {
	s.t.Helper()
	if strings.Contains(text, "holdfast serve &") {
		text = strings.Replace(text, "holdfast serve &", "", 1)
		s.serve()
	}
	cmd := s.command("bash", "-e", "-c", text)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != want {
		s.t.Fatalf("%s\nexit code %d, want %d (%v)\n%s%s", text, code, want, err, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}

func (s *shell) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "PATH="+s.path, "HOLDFAST_SERVER=", "HOLDFAST_TOKEN=")
	return cmd
}

// serve starts the daemon and waits until it says where it listens.
func (s *shell) serve() {
	s.t.Helper()
	fifo := filepath.Join(s.dir, "address")
	cmd := s.command("bash", "-c", "exec holdfast serve --address-file address")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			s.t.Errorf("the daemon ended with %v\n%s", err, &log)
		}
	})
	wait := s.command("bash", "-c", "for i in {1..400}; do [ -s address ] && exit 0; sleep 0.05; done; exit 1")
	if err := wait.Run(); err != nil {
		s.t.Fatalf("the daemon does not listen (%s)\n%s", fifo, &log)
	}
}
