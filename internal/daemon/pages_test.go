package daemon_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
)

// The configurations that the pages on models show can be read.
func TestPagesShowGoodConfigurations(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	seen := 0
	for _, page := range []string{"models.md", "models-openai.md", "models-anthropic.md", "models-gemini.md", "models-openai_compatible.md"} {
		text, err := os.ReadFile("../../docs/reference/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllSubmatch(text, -1) {
			seen++
			if _, err := config.Parse(m[1], page, t.TempDir()); err != nil {
				t.Errorf("%s: %v\n%s", page, err, m[1])
			}
		}
	}
	if seen == 0 {
		t.Error("no page shows a configuration")
	}
}
