package fileout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLines(t *testing.T) {
	dir := t.TempDir()
	s := New(map[string]string{"out": dir}, nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if r := s.File(t.Context(), "out", "2027/a.jsonl", fmt.Appendf(nil, `{"n":%d}`, i)); !r.Delivered {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	path := filepath.Join(dir, "2027", "a.jsonl")
	got := read(t, path)
	for i := range 20 {
		if strings.Count(got, fmt.Sprintf("{\"n\":%d}\n", i)) != 1 {
			t.Errorf("line %d in %q", i, got)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// A line that a crash cut is ended, so that the repetition is whole.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("{}\n{\"cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(map[string]string{"out": dir}, nil)
	if r := s.File(t.Context(), "out", "a", []byte(`{"whole":1}`)); !r.Delivered {
		t.Errorf("%+v", r)
	}
	if got := read(t, path); got != "{}\n{\"cut\n{\"whole\":1}\n" {
		t.Errorf("%q", got)
	}
}

// Nothing leads out of the folder, and nothing but a regular file is written.
func TestNoWayOut(t *testing.T) {
	top := t.TempDir()
	dir, outside := filepath.Join(top, "in"), filepath.Join(top, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": secret, "up": "../outside/secret", "dir": outside, "new": filepath.Join(outside, "made")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(map[string]string{"out": dir}, nil)
	for _, name := range []string{"link", "up", "dir/made", "new", "../outside/secret", secret, "folder", "pipe", "", "a\x00b"} {
		done := make(chan delivery.Result, 1)
		go func() { done <- s.File(t.Context(), "out", name, []byte("{}")) }()
		select {
		case r := <-done:
			if r.Delivered || r.Code == "" || (name == "pipe") != r.Permanent {
				t.Errorf("%q: %+v", name, r)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q hangs", name)
		}
	}
	if read(t, secret) != "before" {
		t.Error("a file outside was written")
	}
	if _, err := os.Stat(filepath.Join(outside, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file outside was made: %v", err)
	}
}

func TestTrouble(t *testing.T) {
	s := New(map[string]string{"gone": filepath.Join(t.TempDir(), "none")}, nil)
	for folder, code := range map[string]string{"gone": "server_file", "none": "server_not_configured"} {
		if r := s.File(t.Context(), folder, "a", []byte("{}")); r.Code != code || r.Permanent {
			t.Errorf("%s: %+v", folder, r)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := s.File(ctx, "gone", "a", nil); r.Code != "interrupted" {
		t.Errorf("%+v", r)
	}
	if r := s.Stdout(t.Context(), nil); r.Code != "server_not_configured" {
		t.Errorf("%+v", r)
	}
}

// A disk that hangs holds up what goes to its folder, no attempt past its time, and
// no other folder. // I-25
func TestHungDisk(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	s := New(map[string]string{"a": a, "again": a + "/", "b": b}, nil)
	s.folders["a"].turn <- struct{}{} // somebody writes, and does not come to an end
	for _, name := range []string{"a", "again"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if r := s.File(ctx, name, "x.jsonl", []byte("1")); r.Delivered || r.Permanent || r.Code != "timeout" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := s.File(t.Context(), "b", "x.jsonl", []byte("1")); !r.Delivered {
		t.Errorf("another folder: %+v", r)
	}
	<-s.folders["a"].turn
	if r := s.File(t.Context(), "again", "x.jsonl", []byte("1")); !r.Delivered || read(t, filepath.Join(a, "x.jsonl")) != "1\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestStdout(t *testing.T) {
	var b bytes.Buffer
	s := New(nil, &b)
	for range 2 {
		if r := s.Stdout(t.Context(), []byte("{}")); !r.Delivered {
			t.Errorf("%+v", r)
		}
	}
	if b.String() != "{}\n{}\n" {
		t.Errorf("%q", b.String())
	}
	if r := New(nil, broken{}).Stdout(t.Context(), nil); r.Code != "server_stdout" || r.Permanent {
		t.Errorf("%+v", r)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A reader that takes nothing holds an attempt up no longer than it has time, and
// the next one waits its turn: no line is written into another.
func TestStdoutBlocked(t *testing.T) {
	r, w := io.Pipe()
	s := New(nil, w)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		if r := s.Stdout(ctx, []byte("{}")); r.Code != "timeout" || r.Permanent {
			t.Errorf("%+v", r)
		}
		cancel()
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "{}\n" {
		t.Errorf("%q %v", got, err)
	}
	done := make(chan delivery.Result, 1)
	go func() { done <- s.Stdout(t.Context(), []byte("[]")) }()
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "[]\n" {
		t.Errorf("%q %v", got, err)
	}
	if res := <-done; !res.Delivered {
		t.Errorf("%+v", res)
	}
}
