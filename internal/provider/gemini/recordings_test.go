package gemini

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what is into the recordings")

type replayed []byte

func (r replayed) RoundTrip(hr *http.Request) (*http.Response, error) {
	return http.ReadResponse(bufio.NewReader(bytes.NewReader(r)), hr)
}

// Answers in the words of the vendor's documentation, and what is made of them.
// No recording holds a credential. I-33
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings:", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if found := wire.FindCredential(raw); found != "" {
				t.Error(found)
			}
			a := txtar.Parse(raw)
			if len(a.Files) != 2 || a.Files[0].Name != "response" || a.Files[1].Name != "want" {
				t.Fatal("want the files response and want")
			}
			got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: replayed(a.Files[0].Data)}}), hello)
			told := got.tell()
			if *rewrite {
				a.Files[1].Data = []byte(told)
				if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if told != string(a.Files[1].Data) {
				t.Errorf("got\n%s\nwant\n%s", told, a.Files[1].Data)
			}
		})
	}
}

// tell writes an answer line by line.
func (a answer) tell() string {
	var b bytes.Buffer
	line := func(name string, v any) { fmt.Fprintf(&b, "%s: %v\n", name, v) }
	if a.Reasoning != "" {
		line("reasoning", fmt.Sprintf("%q", a.Reasoning))
	}
	if a.Text != "" {
		line("text", fmt.Sprintf("%q", a.Text))
	}
	for _, c := range a.Calls {
		line("call", c)
	}
	for _, h := range a.Hosted {
		line("hosted", fmt.Sprintf("%q", h))
	}
	for _, c := range a.message {
		if len(c.State) > 0 {
			line("state of "+string(c.Kind), string(c.State))
		}
	}
	if a.Usage != nil {
		line("usage", fmt.Sprintf("%+v", *a.Usage))
	}
	if a.Err != nil {
		line("error", fmt.Sprintf("%s, code %s, status %d, wait %s: %s", a.Err.Class, a.Err.Code, a.Err.Status, a.Err.RetryAfter, a.Err.Message))
	} else {
		line("finish", fmt.Sprint(a.Reason, " (", a.Raw, ")"))
	}
	return b.String()
}
