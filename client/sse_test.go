package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func read(r io.Reader) (got []string, err error) {
	f := newFrames(r, func() {})
	for {
		m, err := f.next()
		if err != nil {
			return got, err
		}
		got = append(got, fmt.Sprintf("%s|%t|%s", m.event, m.hasID, m.data))
	}
}

// HTML Living Standard, section 9.2.6.
func TestFrames(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain", "event: a\nid: 1\ndata: x\n\n", "a|true|x"},
		{"no space", "event:a\ndata:x\n\n", "a|false|x"},
		{"two spaces", "data:  x\n\n", "|false| x"},
		{"CRLF", "event: a\r\ndata: x\r\n\r\ndata: y\r\n\r\n", "a|false|x,|false|y"},
		{"CR", "event: a\rdata: x\r\rdata: y\r\r", "a|false|x,|false|y"},
		{"lines", "data: x\ndata\ndata: y\n\n", "|false|x\n\ny"},
		{"comment", ": hello\ndata: x\n: more\n\n: \n\n", "|false|x"},
		{"no data", "event: a\nid: 3\n\ndata: x\n\n", "|false|x"},
		{"unknown field", "retry: 10\nodd: 1\ndata: x\n\n", "|false|x"},
		{"byte order mark", "\ufeffdata: x\n\n", "|false|x"},
		{"not finished", "data: x\n\ndata: y\n", "|false|x"},
		{"empty data", "data\n\n", "|false|"},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader} {
			got, err := read(wrap(strings.NewReader(c.text)))
			if strings.Join(got, ",") != c.want || !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: %q, %v", c.name, how, got, err)
			}
		}
	}
}

// Lines are not bound to the size of a buffer; what is past the cap is refused.
func TestLargeFrames(t *testing.T) {
	big := strings.Repeat("x", MaxFrame-100)
	if got, err := read(strings.NewReader("data: " + big + "\n\ndata: y\n\n")); len(got) != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("%d events, %v", len(got), err)
	}
	endless := func(line string) io.Reader { return io.LimitReader(&repeated{line: line}, 100<<20) }
	for _, line := range []string{"x", "data: x\n", "event: x\n"} {
		if _, err := read(endless(line)); !errors.Is(err, errTooLarge) {
			t.Errorf("endless %q: %v", line, err)
		}
	}
	if _, err := read(io.LimitReader(&repeated{line: ": \n"}, MaxFrame*2)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("heartbeats add up: %v", err)
	}
}

type repeated struct {
	line string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.line[r.at%len(r.line)]
		r.at++
	}
	return len(p), nil
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("event: a\nid: 1\ndata: x\n\n"))
	f.Add([]byte("\xef\xbb\xbfdata\r\rdata: \r\n\n:\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		whole, err1 := read(bytes.NewReader(text))
		parts, err2 := read(iotest.HalfReader(bytes.NewReader(text)))
		if fmt.Sprint(whole) != fmt.Sprint(parts) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("%q depends on how it comes: %q, %q", text, whole, parts)
		}
		// A stream with other line ends says the same.
		if !bytes.ContainsRune(text, '\r') {
			crlf, _ := read(bytes.NewReader(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))))
			if fmt.Sprint(whole) != fmt.Sprint(crlf) {
				t.Fatalf("%q with CRLF: %q, %q", text, whole, crlf)
			}
		}
	})
}
