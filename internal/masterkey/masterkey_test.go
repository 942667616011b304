package masterkey

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/seal"
)

func newKey(t *testing.T) *seal.Key {
	t.Helper()
	k, err := seal.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFileIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.key")
	cfg := Config{Current: Source{File: path}, Random: rand.Reader}
	var missing *MissingError
	if _, _, err := Load(t.Context(), cfg); !errors.As(err, &missing) {
		t.Fatalf("%v", err)
	}
	cfg.Make = true
	first, made, err := Load(t.Context(), cfg)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	again, made, err := Load(t.Context(), cfg)
	if err != nil || made || again.Current() != first.Current() {
		t.Errorf("another key at the second start: %v", err)
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	if err := Write(path, "hfmk_other"); err == nil {
		t.Error("a key was written over another")
	}
	var cannot *CannotMakeError
	if _, _, err := Load(t.Context(), Config{Current: Source{File: filepath.Join(path, "x", "y")}, Make: true, Random: rand.Reader}); err == nil {
		t.Error("made below a file")
	}
	if _, _, err := Load(t.Context(), Config{Current: Source{File: filepath.Join(t.TempDir(), "none", "y")}, Make: true, Random: rand.Reader}); !errors.As(err, &cannot) {
		t.Errorf("%v", err)
	}
}

func TestLooserModesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k")
	if err := Write(path, newKey(t).Text()); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o660: false, 0o644: false, 0o601: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		for _, cfg := range []Config{{Current: Source{File: path}}, {Current: Source{Env: "HF_TEST_MK"}, Former: []Source{{File: path}}}} {
			t.Setenv("HF_TEST_MK", newKey(t).Text())
			_, _, err := Load(t.Context(), cfg)
			if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "chmod 600") {
				t.Errorf("%04o: %v", mode, err)
			}
		}
	}
}

// New values go under the current key; those of former times open.
func TestSeveralKeys(t *testing.T) {
	old, now := newKey(t), newKey(t)
	t.Setenv("HF_TEST_OLD", old.Text())
	t.Setenv("HF_TEST_NOW", now.Text())
	ring, _, err := Load(t.Context(), Config{Current: Source{Env: "HF_TEST_NOW"}, Former: []Source{{Env: "HF_TEST_OLD"}}})
	if err != nil || ring.Current() != now.ID() || !ring.Has(old.ID()) {
		t.Errorf("%v %v", ring, err)
	}
	t.Setenv("HF_TEST_OLD", "hfmk_short-and-secret")
	if _, _, err := Load(t.Context(), Config{Current: Source{Env: "HF_TEST_NOW"}, Former: []Source{{Env: "HF_TEST_OLD"}}}); err == nil || strings.Contains(err.Error(), "short-and-secret") || !strings.Contains(err.Error(), "HF_TEST_OLD") {
		t.Errorf("%v", err)
	}
}

// hook is a program that wraps by turning letters around: this test itself.
func hook(mode string) *Hook {
	return &Hook{Command: []string{os.Args[0], "-test.run=TestHookProgram", "--", mode}, PassEnv: []string{"HF_TEST_HOOK"}, Timeout: time.Minute}
}

func TestHookProgram(t *testing.T) {
	if os.Getenv("HF_TEST_HOOK") == "" {
		return // it is a program for the other tests
	}
	var in, op string
	if _, err := fmt.Scanln(&in); err != nil {
		os.Exit(9)
	}
	turn := func(s string) string {
		b := []byte(s)
		for i, c := range b {
			if c >= 'a' && c <= 'z' {
				b[i] = 'a' + (c-'a'+13)%26
			}
		}
		return string(b)
	}
	value := strings.Split(in, `"`)[7]
	op = strings.Split(in, `"`)[3]
	switch mode := os.Args[len(os.Args)-1]; {
	case mode == "fails":
		fmt.Fprintf(os.Stderr, "no access for %s\n%s", value, strings.Repeat("x", 1<<20))
		os.Exit(3)
	case mode == "traces": // unwraps, tells what it does, and fails then
		fmt.Fprintf(os.Stderr, "+ printf %s key/1234abcd-12ab-34cd-56ef-1234567890ab", turn(value))
		os.Exit(3)
	case mode == "late": // has answered before it fails, and tells the key in another form
		fmt.Printf(`{"key":"%s"}`, turn(value))
		fmt.Fprintf(os.Stderr, "bytes %x", turn(value))
		os.Exit(3)
	case mode == "same" && op == "wrap":
		fmt.Printf(`{"wrapped":"%s"}`, value)
	case mode == "noise":
		fmt.Print("hello")
	case mode == "endless":
		fmt.Print(`{"key":"`, strings.Repeat("x", 1<<20), `"}`)
	case os.Getenv("HOLDFAST_TOKEN") != "":
		fmt.Print(`{}`) // it has what it was not given
	case op == "wrap":
		fmt.Printf(`{"wrapped":"%s"}`, turn(value))
	default:
		fmt.Printf(`{"key":"%s"}`, turn(value))
	}
	os.Exit(0)
}

func TestKMS(t *testing.T) {
	t.Setenv("HF_TEST_HOOK", "1")
	t.Setenv("HOLDFAST_TOKEN", "not for the hook")
	path := filepath.Join(t.TempDir(), "data.key")
	cfg := Config{Current: Source{File: path}, Hook: hook("turns"), Make: true, Random: rand.Reader}
	first, made, err := Load(t.Context(), cfg)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), wrappedPrefix) {
		t.Fatalf("%q %v", text, err)
	}
	again, made, err := Load(t.Context(), cfg)
	if err != nil || made || again.Current() != first.Current() {
		t.Fatalf("%v", err)
	}
	for name, test := range map[string]struct {
		hook *Hook
		want string
	}{
		"no hook":  {nil, "name the program that unwraps it in master_key.kms"},
		"fails":    {hook("fails"), "no access for [redacted]"},
		"traces":   {hook("traces"), "+ printf [redacted] key/1234abcd-12ab-34cd-56ef-1234567890ab"}, // I-33
		"late":     {hook("late"), "bytes [redacted]"},
		"noise":    {hook("noise"), "not one JSON object"},
		"endless":  {hook("endless"), "not one JSON object"},
		"no file":  {&Hook{Command: []string{"/nonexistent/program"}}, "program"},
		"too slow": {&Hook{Command: hook("turns").Command, PassEnv: []string{"HF_TEST_HOOK"}, Timeout: 1}, "no answer within"},
	} {
		cfg := cfg
		cfg.Hook = test.hook
		if _, _, err := Load(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 600 {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg.Current.File, cfg.Hook = filepath.Join(t.TempDir(), "k"), hook("same")
	if _, _, err := Load(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "the key itself") {
		t.Errorf("a hook that wraps nothing: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Hook = hook("turns")
	if _, _, err := Load(ended, cfg); err == nil {
		t.Error("it ran all the same")
	}
}
