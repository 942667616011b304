package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/config"
)

// A node that is gone works on nothing, whatever it said last.
func TestNodeWork(t *testing.T) {
	for _, c := range []struct {
		node         api.Node
		status, work string
	}{
		{api.Node{Alive: true, ActiveSessions: 3, MostSessions: 256}, "alive", "3 of 256"},
		{api.Node{Alive: true, Draining: true, ActiveSessions: 1, MostSessions: 256}, "draining", "1 of 256"},
		{api.Node{ActiveSessions: 3, MostSessions: 256}, "lost", "-"},
		{api.Node{Released: true, Draining: true, ActiveSessions: 1, MostSessions: 256}, "ended", "-"},
	} {
		if s, w := nodeStatus(&c.node), nodeWork(&c.node); s != c.status || w != c.work {
			t.Errorf("%+v: %s, %s", c.node, s, w)
		}
	}
}

func TestDiffStat(t *testing.T) {
	one := api.FileDiff{Path: "a", Change: "added", Added: 2}
	for want, files := range map[string][]api.FileDiff{"1 file, +2 -0 lines": {one}, "2 files, +4 -0 lines": {one, one}} {
		var b strings.Builder
		w := bufio.NewWriter(&b)
		(&diffPrinter{w: w}).stat(&api.FilesDiff{Files: files})
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(b.String(), "\n"+want+"\n") {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}

// The daemon's log says durations as people write them, in both forms.
func TestLoggedDurations(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var b bytes.Buffer
		newLogger(config.Log{Format: format}, &b).Info("waits", "again_in", 1500*time.Millisecond, "took_ms", 7)
		if format == "text" {
			if !strings.Contains(b.String(), "again_in=1.5s took_ms=7") {
				t.Error(b.String())
			}
			continue
		}
		var line struct {
			AgainIn string `json:"again_in"`
			TookMS  int    `json:"took_ms"`
		}
		if err := json.Unmarshal(b.Bytes(), &line); err != nil || line.AgainIn != "1.5s" || line.TookMS != 7 {
			t.Errorf("%s: %v", &b, err)
		}
	}
}
