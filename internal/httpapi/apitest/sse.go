package apitest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// SSE is one open stream, read as its lines say.
type SSE struct {
	T      testing.TB
	res    *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// Message is one server-sent event, or a comment.
type Message struct{ Kind, ID, Data, Comment string }

// NewSSE reads an answer that is a stream, a few bytes at a time.
func NewSSE(t testing.TB, res *http.Response) *SSE {
	return &SSE{T: t, res: res, lines: bufio.NewReaderSize(res.Body, 16), cancel: func() {}}
}

// Open opens a stream; it is closed with the test at the latest.
func (w *World) Open(client *http.Client, path, token string, header ...string) (*SSE, error) {
	ctx, cancel := context.WithCancel(w.T.Context())
	res, err := client.Do(w.Request("GET", path, token, nil, header...).WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	s := &SSE{T: w.T, res: res, lines: bufio.NewReader(res.Body), cancel: cancel}
	w.T.Cleanup(s.Close)
	return s, nil
}

// Follow opens a stream with the token of the administrator.
func (w *World) Follow(path string, header ...string) *SSE {
	w.T.Helper()
	s, err := w.Open(w.Server.Client(), path, w.Admin, header...)
	if err != nil {
		w.T.Fatal(err)
	}
	if s.res.StatusCode != 200 || s.res.Header.Get("Content-Type") != "text/event-stream" {
		w.T.Fatalf("status %d, %v", s.res.StatusCode, s.res.Header)
	}
	return s
}

// Close hangs up.
func (s *SSE) Close() {
	s.cancel()
	s.res.Body.Close()
}

// Next reads a message; io.EOF when the stream has ended.
func (s *SSE) Next() (Message, error) {
	var m Message
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return m, err
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "event":
			m.Kind = value
		case "id":
			m.ID = value
		case "data":
			m.Data += value
		case "":
			if line != "\n" {
				m.Comment = line
			}
			if line == "\n" {
				return m, nil
			}
		}
	}
}

// Want reads messages and compares kinds, with ids where there are some.
func (s *SSE) Want(list ...string) (got []Message) {
	s.T.Helper()
	for _, want := range list {
		m, err := s.Next()
		if err != nil {
			s.T.Fatalf("want %s: %v", want, err)
		}
		text := m.Kind
		if m.ID != "" {
			text += "#" + m.ID
		}
		if text != want {
			s.T.Fatalf("got %s %s, want %s", text, m.Data, want)
		}
		got = append(got, m)
	}
	return got
}

// Ends checks that nothing follows.
func (s *SSE) Ends() {
	s.T.Helper()
	if m, err := s.Next(); !errors.Is(err, io.EOF) {
		s.T.Fatalf("after the end: %+v, %v", m, err)
	}
}
