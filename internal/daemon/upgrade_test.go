package daemon_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// makeFixture names the release whose database is made: with the code of that
// release, and never again.
var makeFixture = flag.String("make-fixture", "", "make the database of this release in internal/sqlite/testdata/upgrade")

// upgradeDir holds the databases of releases; its README says how they were made.
var upgradeDir = filepath.Join("..", "sqlite", "testdata", "upgrade")

const oldSecret = "whsec_dXBncmFkZS11cGdyYWRlLXVwZ3JhZGUtdXBncmFkZQ=="

const inputContract = `{"type":"object","properties":{"item":{"type":"string"}},"required":["item"],"additionalProperties":false}`

// tellStory makes what the database of a release holds. Each session is one
// thing that an upgrade must not lose.
func (o *old) tellStory(c *client.Client) {
	hook := func(path string) []api.ReplyTarget {
		return []api.ReplyTarget{{Type: "webhook", URL: "http://127.0.0.1:9" + path, Headers: map[string]string{"x-kind": "upgrade"}}}
	}
	// A typed run with tools and a repair, delivered; a title that was changed.
	o.session(c, &api.CreateSession{
		ID: "typed", Title: "before", Instructions: "count", Metadata: api.Raw(`{"team":"a"}`), ReplyTargets: hook("/ok"),
		InputContract:  &api.InputContract{Schema: api.Raw(inputContract)},
		OutputContract: &api.OutputContract{Schema: api.Raw(`{"type":"object","properties":{"left":{"type":"number"}},"required":["left"],"additionalProperties":false}`)},
	})
	title := "after"
	if _, err := c.UpdateSession(o.t.Context(), "typed", &api.UpdateSession{Title: &title}); err != nil {
		o.t.Fatal(err)
	}
	r, _, err := c.Submit(o.t.Context(), "typed", &api.SubmitRun{Content: api.Raw(`{"item":"typed"}`)}, client.IdempotencyKey("order-1"))
	if err != nil {
		o.t.Fatal(err)
	}
	if r = o.wait(c, r.ID, api.RunCompleted); r.Counters.Repairs != 1 || r.Counters.Tools != 2 {
		o.t.Fatalf("%+v", r.Counters)
	}
	// A message that a receiver refused for good, one that waits for it.
	o.session(c, &api.CreateSession{ID: "refused-hook", ReplyTargets: hook("/no")})
	o.wait(c, o.submit(c, "refused-hook", "limited").ID, api.RunCompleted)
	o.session(c, &api.CreateSession{ID: "large", ReplyTargets: hook("/down")})
	o.wait(c, o.submit(c, "large", "large "+largeText).ID, api.RunCompleted)
	// Ends that are not answers.
	o.session(c, &api.CreateSession{ID: "ended"})
	o.wait(c, o.submit(c, "ended", "refused").ID, api.RunFailed)
	cancelled := o.submit(c, "ended", "hanging")
	if _, err := c.Cancel(o.t.Context(), cancelled.ID, "not wanted"); err != nil {
		o.t.Fatal(err)
	}
	o.wait(c, cancelled.ID, api.RunCancelled)
	if _, err := c.CloseSession(o.t.Context(), "ended", "done with"); err != nil {
		o.t.Fatal(err)
	}
	o.session(c, &api.CreateSession{ID: "erased"})
	o.wait(c, o.submit(c, "erased", "large "+largeText+" to be forgotten").ID, api.RunCompleted)
	if err := c.EraseSession(o.t.Context(), "erased"); err != nil {
		o.t.Fatal(err)
	}
	time.Sleep(time.Minute) // deliveries have their first attempts
	// What is not at its end: a call in doubt with a run behind it, a model
	// attempt and a repeatable call that the stop cuts.
	o.session(c, &api.CreateSession{ID: "doubt"})
	o.wait(c, o.submit(c, "doubt", "doubtful").ID, api.RunNeedsAttention)
	o.submit(c, "doubt", "behind it")
	o.session(c, &api.CreateSession{ID: "hanging"})
	o.submit(c, "hanging", "hanging")
	o.submit(c, "hanging", "queued")
	o.session(c, &api.CreateSession{ID: "peeking"})
	o.submit(c, "peeking", "peeking")
	synctest.Wait() // nothing moves any more
}

// TestMakeFixture makes the database of a release and its listing; without
// the flag it only shows that they can be made.
func TestMakeFixture(t *testing.T) {
	to, release := upgradeDir, *makeFixture
	if release == "" {
		to, release = t.TempDir(), "next"
	}
	t.Setenv("HF_UPGRADE_SECRET", oldSecret)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := &old{t: t, dir: dir, seed: 1}
		c, stop := o.open(true)
		o.tellStory(c)
		stop()
		c, stop = o.open(false)
		defer stop()
		if err := os.WriteFile(filepath.Join(to, release+".txt"), []byte(listing(t, c)), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	data, err := os.ReadFile(filepath.Join(dir, "data", sqlite.DatabaseFile))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = z.Write(data); err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, release+".db.gz"), b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b.Len() > 300<<10 {
		t.Errorf("%d bytes, compressed %d: too large to be kept", len(data), b.Len())
	}
	verifyStore(t, dir)
}

// unpack puts the database of a release into a data directory of its own.
func unpack(t *testing.T, release string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := os.Open(filepath.Join(upgradeDir, release+".db.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "data"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "data", sqlite.DatabaseFile), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// releases are those whose databases are kept.
func releases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(upgradeDir, "*.db.gz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no databases of releases: %v", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".db.gz")
	}
	return files
}

// verifyStore opens a database, checks that nothing is to be found, also after
// its derived rows were made anew, and closes it.
func verifyStore(t *testing.T, dir string) sqlite.Report {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Config{Dir: filepath.Join(dir, "data"), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	var last sqlite.Report
	for _, rebuild := range []bool{false, true, false} {
		if last, err = s.Verify(t.Context(), sqlite.VerifyOptions{Rebuild: rebuild}); err != nil || !last.OK() || last.Rebuilt != rebuild {
			t.Fatalf("verify: %v, %+v", err, last)
		}
	}
	return last
}

// The database of every release opens, verifies, and says what it said. I-01, I-03, I-04
func TestUpgradeKeeps(t *testing.T) {
	t.Setenv("HF_UPGRADE_SECRET", oldSecret)
	for _, release := range releases(t) {
		dir := unpack(t, release)
		report := verifyStore(t, dir)
		if report.Events < 100 || report.Erased == 0 || report.Blobs == 0 {
			t.Errorf("%s: the database is poor: %+v", release, report)
		}
		want := readFile(t, filepath.Join(upgradeDir, release+".txt"))
		synctest.Test(t, func(t *testing.T) {
			c, stop := (&old{t: t, dir: dir, seed: 2}).open(false)
			defer stop()
			if got := strings.TrimSpace(listing(t, c)); got != want {
				t.Errorf("%s: the listing is\n%s\nwant\n%s", release, got, want)
			}
			// I-33 and what was erased: gone, and known to be gone.
			if _, err := c.Session(t.Context(), "erased"); client.Code(err) != "session_not_found" {
				t.Errorf("%s: the alias of the erased session: %v", release, err)
			}
		})
	}
}

// What was not at its end goes on under the new release, and new work is done. I-05, I-07, I-13, I-24
func TestUpgradeGoesOn(t *testing.T) {
	t.Setenv("HF_UPGRADE_SECRET", oldSecret)
	for _, release := range releases(t) {
		dir := unpack(t, release)
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(24 * time.Hour) // the clock of a bubble begins where that of the story began
			o := &old{t: t, dir: dir, seed: 3, later: true}
			c, stop := o.open(true)
			defer func() { stop() }()
			byText := map[string]*api.Run{}
			runs, err := c.Runs(t.Context(), client.RunsQuery{}, client.Page{Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			for i := range runs.Items {
				r := &runs.Items[i]
				byText[r.Request.TextPreview] = r
			}
			find := func(text string) string {
				if byText[text] == nil {
					t.Fatalf("%s: there is no run %q", release, text)
				}
				return byText[text].ID
			}
			for _, text := range []string{"queued", "peeking"} {
				r := o.wait(c, find(text), api.RunCompleted)
				if len(r.Outputs) != 1 || r.Outputs[0].Content != "done" {
					t.Errorf("%s: %s: %+v", release, text, r.Outputs)
				}
			}
			for _, r := range runs.Items {
				if r.Request.TextPreview == "hanging" && r.Status != api.RunCancelled { // one was cancelled
					o.wait(c, r.ID, api.RunCompleted)
				}
			}
			// A call in doubt stays in doubt until a person says what happened.
			doubt := o.wait(c, find("doubtful"), api.RunNeedsAttention)
			if _, err := c.ResolveAttention(t.Context(), doubt.ID, &api.ResolveAttention{
				CallID: doubt.Attention[0].CallID, Resolution: "completed", Output: "it went through",
			}); err != nil {
				t.Fatal(err)
			}
			o.wait(c, doubt.ID, api.RunCompleted)
			o.wait(c, find("behind it"), api.RunCompleted)
			// A key of before still names its run; a new one makes a new run.
			again, created, err := c.Submit(t.Context(), "typed", &api.SubmitRun{Content: api.Raw(`{"item":"typed"}`)}, client.IdempotencyKey("order-1"))
			if err != nil || created || again.Status != api.RunCompleted {
				t.Errorf("%s: the key of before: %+v, %v, %v", release, again, created, err)
			}
			fresh, created, err := c.Submit(t.Context(), "typed", &api.SubmitRun{Content: api.Raw(`{"item":"typed"}`)}, client.IdempotencyKey("order-2"))
			if err != nil || !created {
				t.Fatalf("%s: a new key: %v, %v", release, created, err)
			}
			if fresh = o.wait(c, fresh.ID, api.RunCompleted); string(fresh.StructuredOutput) != `{"left":3}` {
				t.Errorf("%s: %s", release, fresh.StructuredOutput)
			}
			if _, _, err := c.Submit(t.Context(), "typed", &api.SubmitRun{Content: api.Raw(`{"count":1}`)}); client.Code(err) != "input_contract_violated" {
				t.Errorf("%s: the contract of before: %v", release, err)
			}
			time.Sleep(24 * time.Hour) // deliveries that waited
			o.mu.Lock()
			slices.Sort(o.hits)
			if got := strings.Join(o.hits, " "); got != "/down /ok" {
				t.Errorf("%s: receivers took %s", release, got)
			}
			o.mu.Unlock()
			dead, err := c.Deliveries(t.Context(), client.DeliveriesQuery{Status: api.DeliveryDeadLettered}, client.Page{})
			if err != nil || len(dead.Items) != 1 {
				t.Errorf("%s: dead letters: %+v, %v", release, dead, err)
			}
			stop()
			stop = func() {}
		})
		verifyStore(t, dir)
	}
}
