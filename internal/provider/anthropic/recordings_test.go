package anthropic

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the wanted results of the recordings anew")

// The recordings are streams as the vendor documents them; beside each stands
// what is made of it, one part on a line.
func TestRecordings(t *testing.T) {
	list, err := filepath.Glob("testdata/recordings/*.sse")
	if err != nil || len(list) < 10 {
		t.Fatal(list, err)
	}
	for _, file := range list {
		t.Run(filepath.Base(file), func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(someWays(t, string(body)).String(), "][", "]\n[") + "\n"
			golden := strings.TrimSuffix(file, ".sse") + ".want"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got != string(want) {
				t.Errorf("%v\n got %s\nwant %s", err, got, want)
			}
		})
	}
}
