// Package fileout appends deliveries to files, a line of JSON each, in folders that
// the configuration opens, and to the daemon's standard output.
package fileout

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

// Sender appends. It is safe for concurrent use: the lines of one file never mix.
type Sender struct {
	folders map[string]*folder
	stdout  io.Writer // nil: closed
	printer chan struct{}
}

// folder is a place to write to. Who writes one of its files holds the token of turn:
// one file at a time.
type folder struct {
	path string
	turn chan struct{}
}

// New makes a Sender. folders are paths by name; a nil stdout is closed.
func New(folders map[string]string, stdout io.Writer) *Sender {
	s := &Sender{folders: map[string]*folder{}, stdout: stdout, printer: make(chan struct{}, 1)}
	turns := map[string]chan struct{}{} // of a folder with two names there is one
	for name, path := range folders {
		clean := filepath.Clean(path)
		if turns[clean] == nil {
			turns[clean] = make(chan struct{}, 1)
		}
		s.folders[name] = &folder{path, turns[clean]}
	}
	return s
}

// File appends one line to a file of a folder, and returns when it is on the disk.
// Neither a .. nor a link leads out of the folder, and only a regular file is
// written. A line that a crash cut is ended before; it is repeated whole. A disk that
// hangs holds up what goes to its folder, nothing else, and no attempt past ctx.
func (s *Sender) File(ctx context.Context, in, name string, line []byte) delivery.Result {
	to, ok := s.folders[in]
	if !ok {
		return delivery.Result{Code: "server_not_configured", Detail: "targets.folders names no such folder any more"}
	}
	if ctx.Err() != nil {
		return delivery.Result{Code: "interrupted", Detail: "the attempt was interrupted"}
	}
	late := delivery.Result{Code: "timeout", Detail: "the disk of the folder takes too long"}
	select {
	case to.turn <- struct{}{}:
	case <-ctx.Done():
		return late
	}
	done := make(chan error, 1)
	line = bytes.Clone(line)
	go func() { // the disk decides when it ends; there is one for each folder at most
		err := appendLine(to.path, name, line)
		<-to.turn
		done <- err
	}()
	select {
	case err := <-done:
		return judge(err)
	case <-ctx.Done():
		return late
	}
}

func judge(err error) delivery.Result {
	switch {
	case err == nil:
		return delivery.Result{Delivered: true}
	case errors.Is(err, errIrregular):
		return delivery.Result{Code: "invalid", Permanent: true, Detail: "the path names no regular file"}
	case errors.Is(err, fs.ErrPermission):
		return delivery.Result{Code: "server_file_refused", Detail: "the file must not be written"}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return delivery.Result{Code: "server_disk_full", Detail: "the disk of the file is full"}
	}
	// What remains is a folder that is not there, or a path that leads out of it.
	return delivery.Result{Code: "server_file", Detail: "the file could not be written within its folder"}
}

var errIrregular = errors.New("no regular file")

func appendLine(dir, name string, line []byte) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if in := path.Dir(name); in != "." {
		if err := root.MkdirAll(in, 0o700); err != nil {
			return err
		}
	}
	// Without O_NONBLOCK the opening of a pipe would wait for a reader.
	f, err := root.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE|nonblock, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errIrregular
	}
	text := make([]byte, 0, len(line)+2)
	if size := info.Size(); size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			text = append(text, '\n')
		}
	}
	text = append(append(text, line...), '\n')
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if info.Size() > 0 {
		return nil
	}
	return syncNames(root, name) // the file is new: its name must last too
}

// syncNames makes the name of a file durable, and those of the folders above it.
func syncNames(root *os.Root, name string) error {
	for in := path.Dir(name); ; in = path.Dir(in) {
		f, err := root.Open(in)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil || in == "." {
			return err
		}
	}
}

// Stdout writes one line to the daemon's standard output. A reader that takes
// nothing holds up this and what follows, never the daemon.
func (s *Sender) Stdout(ctx context.Context, line []byte) delivery.Result {
	if s.stdout == nil {
		return delivery.Result{Code: "server_not_configured", Detail: "targets.stdout is not set any more"}
	}
	late := delivery.Result{Code: "timeout", Detail: "the standard output takes nothing"}
	select {
	case s.printer <- struct{}{}:
	case <-ctx.Done():
		return late
	}
	text := append(append(make([]byte, 0, len(line)+1), line...), '\n')
	done := make(chan error, 1)
	go func() { // who reads slowly decides when it ends; there is one at most
		_, err := s.stdout.Write(text)
		<-s.printer
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return delivery.Result{Code: "server_stdout", Detail: "the standard output could not be written"}
		}
		return delivery.Result{Delivered: true}
	case <-ctx.Done():
		return late
	}
}
