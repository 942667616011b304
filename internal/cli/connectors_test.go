package cli

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
)

// The configuration of the page on connectors is one, and its events are mapped
// to the inputs that it shows.
func TestConnectorExamples(t *testing.T) {
	text := page(t, "connectors.md")
	file := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(text)
	if file == nil {
		t.Fatal("there is no configuration")
	}
	cfg, err := config.Parse([]byte("routes: {main: {provider: openai, model: m}}\n"+file[1]), "holdfast.yaml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)<!-- event (\\w+)(.*?) -->\n```json\n(.*?)```\n<!-- input -->\n```text\n(.*?)\n```").FindAllStringSubmatch(text, -1)
	if len(examples) != 3 {
		t.Fatalf("%d examples were found", len(examples))
	}
	for _, m := range examples {
		rules, cerr := cfg.Connector(m[1])
		if cerr != nil {
			t.Fatal(cerr)
		}
		h := http.Header{"Content-Type": {"application/json"}}
		for pair := range strings.SplitSeq(m[2], ",") {
			if name, value, ok := strings.Cut(strings.TrimSpace(pair), ": "); ok {
				h.Set(name, value)
			}
		}
		ev, err := rules.Map(h, []byte(m[3]))
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
			continue
		}
		var input string
		if err := json.Unmarshal(ev.Content, &input); err != nil || strings.TrimSpace(input) != m[4] {
			t.Errorf("%s: %v\n%s\nis not what the page says\n%s", m[1], err, ev.Content, m[4])
		}
		if strings.Contains(string(ev.Content)+string(ev.Metadata), "never-kept") {
			t.Errorf("%s: the token is kept", m[1])
		}
	}
	// The events that the page lists are those of the connectors.
	for _, name := range []string{"code", "chat"} {
		rules, cerr := cfg.Connector(name)
		if cerr != nil {
			t.Fatal(cerr)
		}
		for _, e := range rules.Handles() {
			if !strings.Contains(text, "`"+e+"`") {
				t.Errorf("the page does not name %s of %s", e, name)
			}
		}
	}
}
