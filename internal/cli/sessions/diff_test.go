package sessions

import (
	"bufio"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
)

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
