package openaicompat

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"
)

// Recordings show how known servers answer. Each is read in every way in which
// a network may deliver it. C07, C19, C22, C27, C29, C30
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil || len(a.Files) != 2 || len(a.Comment) == 0 {
				t.Fatalf("want a comment, a response and what is wanted of it: %v", err)
			}
			if found := wire.FindCredential(txtar.Format(a)); found != "" { // I-33
				t.Fatal(found)
			}
			head, body := split(t, a.Files[0].Data)
			want := string(a.Files[1].Data)
			ways := pieces.EveryWay(body)
			if !strings.Contains(head.Header.Get("Content-Type"), "event-stream") {
				ways = pieces.Cuts(body)
			}
			for how, r := range ways {
				got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: recorded{head, r}}}), hello)
				if told := tell(got); told != want {
					t.Fatalf("%s:\n%s\nwant\n%s", how, told, want)
				}
			}
		})
	}
}

// split takes the head off a response.
func split(t *testing.T, raw []byte) (*http.Response, []byte) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

type recorded struct {
	head *http.Response
	body io.Reader
}

func (r recorded) RoundTrip(*http.Request) (*http.Response, error) {
	head := *r.head
	head.Body = io.NopCloser(r.body)
	return &head, nil
}

// tell writes an answer down, one line for each thing that came.
func tell(a answer) string {
	var b strings.Builder
	say := func(what, text string) {
		if strings.ContainsAny(text, "\n\r") {
			text = strconv.Quote(text)
		}
		if text != "" {
			fmt.Fprintf(&b, "%s: %s\n", what, text)
		}
	}
	say("reasoning", a.Reasoning)
	say("state", a.State)
	say("text", a.Text)
	for _, c := range a.Calls {
		say("call", c.ID+" "+c.Name+" "+c.Args)
	}
	if a.Usage != nil {
		say("usage", fmt.Sprintf("%+v", *a.Usage))
	}
	if a.Err != nil {
		say("error", fmt.Sprintf("%s %s %s", a.Err.Class, a.Err.Code, a.Err.Message))
	} else {
		say("finish", fmt.Sprintf("%s %s", a.Reason, a.Raw))
	}
	return b.String()
}

// Pieces of any size at any place change nothing, with any line end, with the
// final marker and without. C24, C30
func TestAnyPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawReply(rt)
		body := r.Stream()
		if rapid.Bool().Draw(rt, "no marker") {
			body = bytes.TrimSuffix(body, []byte("data: [DONE]\n\n"))
		}
		body = bytes.TrimRight(body, strings.Repeat("\n", rapid.IntRange(0, 1).Draw(rt, "bare")))
		ends := map[string][]byte{}
		for name, text := range pieces.LineEnds(body) {
			ends[name] = text
		}
		want := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", bytes.NewReader(body))}), hello)
		text := ends[rapid.SampledFrom([]string{"LF", "CRLF", "CR"}).Draw(rt, "end")]
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(text)), 0, 20).Draw(rt, "cuts")
		got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", pieces.Reader(text, cuts...))}), hello)
		if got.String() != want.String() || r.Refusal == "" && (got.Err != nil || got.Text != r.Text || got.Reasoning != r.Reasoning || len(got.Calls) != len(r.Calls)) {
			rt.Fatalf("got %v\nwant %v\nof %+v", got, want, r)
		}
	})
}
