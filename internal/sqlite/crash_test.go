package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// crashDir names the environment variable that makes the test binary the
// process that is killed.
const crashDir = "HOLDFAST_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Fprintln(os.Stderr, appendUntilKilled(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// appendUntilKilled appends from several goroutines and tells each stamp on
// standard output after it was acknowledged.
func appendUntilKilled(dir string) error {
	s, err := Open(context.Background(), Config{Dir: dir, Rows: storetest.Rows})
	if err != nil {
		return err
	}
	errs := make(chan error)
	var mu sync.Mutex
	for i := range 4 {
		go func() {
			id := event.SessionID(fmt.Sprint("ses_", i))
			for n := 0; ; n++ {
				a := said(id, strings.Repeat("x", n%2000))
				b := event.NewBlob(id, event.BlobContent, fmt.Append(nil, n))
				a.Blobs = []event.Blob{b}
				a.Entries[0].Events[0].Data.(*event.TextEnded).Content.Ref = b.Ref
				if n%7 == 0 {
					target := event.TargetIDFor("ann", "webhook", "address")
					a.Entries = append(a.Entries, eventlog.Entry{Stream: target.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{SessionID: id, UserID: "ann",
						Data: &event.DeliveryEnqueued{DeliveryID: event.DeliveryID(fmt.Sprint("dlv_", os.Getpid(), i, "_", n))}}}})
				}
				stamps, err := s.Append(context.Background(), a)
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				for _, st := range stamps {
					fmt.Println(st.Stream, st.Head, st.Events[0].Hash)
				}
				mu.Unlock()
			}
		}()
	}
	return <-errs
}

// Every acknowledged append is there after the process was killed, whole, and
// the log verifies. // I-01 I-02 I-04
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	acked := make(map[string]string) // stream and sequence: hash
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		readUntilKilled(t, exe, dir, 1+rand.IntN(600), acked)
		s, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows})
		if err != nil {
			t.Fatal(err)
		}
		mustVerify(t, s)
		items, _, err := s.Feed(t.Context(), 0, 1<<20, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		stored := make(map[string]string)
		for _, p := range items {
			stored[fmt.Sprint(p.Event.Stream, " ", p.Event.Seq)] = p.Event.Hash.String()
		}
		for at, hash := range acked {
			if stored[at] != hash {
				t.Errorf("%s was acknowledged with %s, stored is %q", at, hash, stored[at])
			}
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged appends", len(acked))
}

// readUntilKilled runs a child and kills it after it has told n stamps; what
// it told before it died counts too.
func readUntilKilled(t *testing.T, exe, dir string, n int, acked map[string]string) {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for told := 0; lines.Scan(); told++ {
		if told == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if f := strings.Fields(lines.Text()); len(f) == 3 && len(f[2]) == len(event.Digest{}.String()) {
			acked[f[0]+" "+f[1]] = f[2]
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
}
