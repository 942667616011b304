package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

type got struct{ Type, ID, Data string }

// readAll decodes a source to its end and, when it ended well, what Rest says.
func readAll(src io.Reader, limit int) (events []got, rest *got, err error) {
	d := NewDecoder(src, limit)
	for {
		ev, err := d.Next()
		if err != nil {
			if ev, ok := d.Rest(); ok {
				rest = &got{ev.Type, ev.ID, string(ev.Data)}
			}
			return events, rest, err
		}
		events = append(events, got{ev.Type, ev.ID, string(ev.Data)})
	}
}

// splits gives the same bytes whole, byte by byte, and cut in two at each place.
func splits(body string) map[string]func() io.Reader {
	out := map[string]func() io.Reader{
		"whole":        func() io.Reader { return strings.NewReader(body) },
		"byte by byte": func() io.Reader { return iotest.OneByteReader(strings.NewReader(body)) },
		"data and EOF": func() io.Reader { return iotest.DataErrReader(strings.NewReader(body)) },
	}
	for i := 1; i < len(body); i++ {
		out[fmt.Sprintf("cut at %d", i)] = func() io.Reader {
			return &pieces{list: [][]byte{[]byte(body[:i]), []byte(body[i:])}}
		}
	}
	return out
}

// pieces gives one piece for each read.
type pieces struct{ list [][]byte }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.list) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.list[0])
	if p.list[0] = p.list[0][n:]; len(p.list[0]) == 0 {
		p.list = p.list[1:]
	}
	return n, nil
}

// The event stream of WHATWG HTML, section 9.2.6, with each line end and every
// cut into two reads. C29, C30
func TestDecoder(t *testing.T) {
	tests := []struct {
		name, body string
		want       []got
		rest       *got
	}{
		{"one event", "data: a\n\n", []got{{"", "", "a"}}, nil},
		{"no space, one space, two", "data:a\n\ndata: b\n\ndata:  c\n\n", []got{{"", "", "a"}, {"", "", "b"}, {"", "", " c"}}, nil},
		{"several lines", "data: a\ndata:\ndata: b\n\n", []got{{"", "", "a\n\nb"}}, nil},
		{"the standard's example of empty data", "data\n\ndata\ndata\n\ndata:", []got{{"", "", ""}, {"", "", "\n"}}, &got{}},
		{"comments and keep-alives", ": PROCESSING\n\n: PROCESSING\n\n:\n\ndata: a\n: in between\ndata: b\n\n", []got{{"", "", "a\nb"}}, nil},
		{"types do not stay, ids do", "event: x\nid: 7\ndata: a\n\nevent: lost\n\ndata: b\n\n", []got{{"x", "7", "a"}, {"", "7", "b"}}, nil},
		{"retry and unknown fields", "retry: 1000\n\nfoo: bar\nbar\ndata: a\n\n", []got{{"", "", "a"}}, nil},
		{"an id with NUL", "id: a\x00b\ndata: a\n\n", []got{{"", "", "a"}}, nil},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []got{{"", "", "a"}}, nil},
		{"an event left open", "data: a\n\ndata: b\n", []got{{"", "", "a"}}, &got{"", "", "b"}},
		{"a line left open", "data: a\n\ndata: b\ndata: c", []got{{"", "", "a"}}, &got{"", "", "b\nc"}},
		{"nothing", "", nil, nil},
		{"blank lines", "\n\n\n", nil, nil},
		{"many bytes of UTF-8", "data: h\u00e9llo \u4e16\U0001f3f7\n\n", []got{{"", "", "h\u00e9llo \u4e16\U0001f3f7"}}, nil},
	}
	for _, tt := range tests {
		for end, name := range map[string]string{"\n": "LF", "\r\n": "CRLF", "\r": "CR"} {
			for how, src := range splits(strings.ReplaceAll(tt.body, "\n", end)) {
				events, rest, err := readAll(src(), 0)
				if err != io.EOF || fmt.Sprint(events) != fmt.Sprint(tt.want) {
					t.Fatalf("%s, %s, %s: %q, %v; want %q", tt.name, name, how, events, err, tt.want)
				}
				if (rest == nil) != (tt.rest == nil) || rest != nil && *rest != *tt.rest {
					t.Fatalf("%s, %s, %s: rest %v, want %v", tt.name, name, how, rest, tt.rest)
				}
			}
		}
	}
}

// A line that ended with CR is given at once, not when the next byte comes.
func TestDecoderDoesNotWaitAfterCR(t *testing.T) {
	r, w := io.Pipe()
	done := make(chan got, 1)
	go func() {
		ev, err := NewDecoder(r, 0).Next()
		done <- got{Data: string(ev.Data) + fmt.Sprint(err)}
	}()
	if _, err := w.Write([]byte("data: a\r\r")); err != nil {
		t.Fatal(err)
	}
	if g := <-done; g.Data != "a<nil>" {
		t.Fatal(g)
	}
	w.Close()
}

// Long lines are read whole; what has no end stops at the limit. C32
func TestDecoderLimit(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		long := strings.Repeat("x", size)
		events, _, err := readAll(strings.NewReader("data: "+long+"\n\ndata: next\n\n"), 0)
		if err != io.EOF || len(events) != 2 || events[0].Data != long || events[1].Data != "next" {
			t.Fatalf("%d bytes: %d events, %v", size, len(events), err)
		}
	}
	endless := map[string]io.Reader{
		"a line":   endlessly("x", "data: "),
		"lines":    endlessly("data: xxxxxxxxxxxxxxxxx\n", ""),
		"no colon": endlessly("y", ""),
	}
	for name, src := range endless {
		_, _, err := readAll(src, 1<<20)
		if !errors.Is(err, ErrEventTooLarge) {
			t.Errorf("endless %s: %v", name, err)
		}
	}
	// A comment takes no memory and so has no limit.
	events, _, err := readAll(io.MultiReader(io.LimitReader(endlessly("c", ":"), 4<<20), strings.NewReader("\ndata: a\n\n")), 1<<10)
	if err != io.EOF || len(events) != 1 {
		t.Errorf("a long comment: %v, %v", events, err)
	}
}

func TestDecoderTooLargeStays(t *testing.T) {
	d := NewDecoder(strings.NewReader("data: "+strings.Repeat("x", 100)+"\n\ndata: b\n\n"), 10)
	for range 2 {
		if _, err := d.Next(); !errors.Is(err, ErrEventTooLarge) {
			t.Fatal(err)
		}
	}
	if _, ok := d.Rest(); ok {
		t.Fatal("there is a rest behind the limit")
	}
}

func TestDecoderSourceError(t *testing.T) {
	broken := errors.New("broken")
	_, rest, err := readAll(io.MultiReader(strings.NewReader("data: a\n"), iotest.ErrReader(broken)), 0)
	if err != broken || rest == nil || rest.Data != "a" {
		t.Fatal(rest, err)
	}
	if _, _, err := readAll(idle{}, 0); err != io.ErrNoProgress {
		t.Fatal(err)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

type endless struct{ head, body []byte }

func endlessly(body, head string) io.Reader {
	return &endless{head: []byte(head), body: bytes.Repeat([]byte(body), 100)}
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.head) > 0 {
		n := copy(p, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	n := copy(p, e.body)
	e.body = append(e.body[n:len(e.body):len(e.body)], e.body[:n]...)
	return n, nil
}

// The events do not depend on how the bytes come.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\nevent: x\rid: 1\rdata\r\r: c\n\ndata: b"), 3)
	f.Add([]byte("\xef\xbb\xbfdata: a\n\n"), 1)
	f.Fuzz(func(t *testing.T, body []byte, at int) {
		whole, rest, err := readAll(bytes.NewReader(body), 64)
		single, restSingle, errSingle := readAll(iotest.OneByteReader(bytes.NewReader(body)), 64)
		if fmt.Sprint(whole, err) != fmt.Sprint(single, errSingle) || (rest == nil) != (restSingle == nil) {
			t.Fatalf("whole %q %v %v; single %q %v %v", whole, rest, err, single, restSingle, errSingle)
		}
	})
}
