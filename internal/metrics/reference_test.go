package metrics

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/metrics.md anew")

// docs/reference/metrics.md is made of the definitions.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\nMade of the definitions in `internal/metrics`; `go test ./internal/metrics -run Reference -rewrite` writes this page.\n\n" +
		"`GET /metrics` gives them in Prometheus' text format, to a token that is not bound to a user (role reader is enough) and on a\n" +
		"unix socket. Beside them stand the usual `go_…` and `process_…`. [operate.md](../operate.md#metrics) says what to look at.\n\n" +
		"Counters and histograms follow the events of the log and begin at zero with the process. Gauges say what stands now; those of\n" +
		"the store are asked at most once a second. Label values come from closed sets and from the configuration: `route`, `provider`\n" +
		"and `model` are those of the configured routes, `other` for what is configured no more or what a caller named, `unknown` for\n" +
		"what began before the process.\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, d := range New(Config{}).Definitions() {
		labels := ""
		for i, l := range d.Labels {
			if i > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	path := filepath.Join("..", "..", "docs", "reference", "metrics.md")
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != b.String() {
		t.Errorf("%s is stale (%v): go test ./internal/metrics -run Reference -rewrite", path, err)
	}
}

// Names are in base units and say what they are; help is a sentence.
func TestDefinitions(t *testing.T) {
	m := New(Config{Routes: testRoutes})
	seen := map[string]bool{}
	for _, d := range m.Definitions() {
		if !regexp.MustCompile(`^holdfast_[a-z_]+$`).MatchString(d.Name) || seen[d.Name] {
			t.Errorf("%s: bad or used twice", d.Name)
		}
		seen[d.Name] = true
		if (d.Type == "counter") != strings.HasSuffix(d.Name, "_total") {
			t.Errorf("%s is a %s", d.Name, d.Type)
		}
		if d.Type == "histogram" && !strings.HasSuffix(d.Name, "_seconds") && !strings.HasSuffix(d.Name, "_size") {
			t.Errorf("%s: of which unit", d.Name)
		}
		if !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%s: help is no sentence", d.Name)
		}
		for _, l := range d.Labels {
			if slices.Contains([]string{"id", "user", "user_id", "session", "run", "tool", "name", "url"}, l) {
				t.Errorf("%s has the label %s", d.Name, l)
			}
		}
	}
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "holdfast_") && !seen[f.GetName()] {
			t.Errorf("%s is not documented", f.GetName())
		}
	}
}

// What the dashboard and the alerts ask for is there, and of the type that the
// question wants.
func TestDashboardAndAlertsNameMetrics(t *testing.T) {
	kinds := map[string]string{}
	m := New(Config{Routes: testRoutes})
	for _, d := range m.Definitions() {
		kinds[d.Name] = d.Type
	}
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, ours := kinds[f.GetName()]; !ours {
			kinds[f.GetName()] = map[dto.MetricType]string{dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_SUMMARY: "summary"}[f.GetType()]
		}
	}
	deploy := filepath.Join("..", "..", "deploy")
	dashboard, err := os.ReadFile(filepath.Join(deploy, "grafana", "holdfast.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(dashboard, &board); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	check := func(where, expr string) {
		names := regexp.MustCompile(`\b(?:holdfast|go|process)_[a-z_]+\b`).FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s asks for nothing: %s", where, expr)
		}
		for _, name := range names {
			base, want := name, ""
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if cut, ok := strings.CutSuffix(name, suffix); ok && kinds[cut] == "histogram" {
					base, want = cut, "histogram"
				}
			}
			kind, ok := kinds[base]
			if !ok || want != "" && kind != want || kind == "histogram" && want == "" {
				t.Errorf("%s: there is no %s", where, name)
			}
			if kind == "counter" && !strings.Contains(expr, "rate(") && !strings.Contains(expr, "increase(") {
				t.Errorf("%s: %s only grows, ask for its rate", where, name)
			}
			used[base] = true
		}
	}
	panels := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			panels++
			check("panel "+p.Title, target.Expr)
		}
	}
	alerts, err := os.ReadFile(filepath.Join(deploy, "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	exprs := regexp.MustCompile(`expr: (>\n(?: {10}.*\n)+|.*\n)`).FindAllStringSubmatch(string(alerts), -1)
	for _, e := range exprs {
		if !strings.HasPrefix(e[1], "up{") {
			check("alert", e[1])
		}
	}
	if panels < 30 || len(exprs) < 10 || len(exprs) != strings.Count(string(alerts), "- alert:") {
		t.Errorf("%d questions of panels, %d of %d alerts were found", panels, len(exprs), strings.Count(string(alerts), "- alert:"))
	}
	for _, d := range m.Definitions() {
		if !used[d.Name] {
			t.Errorf("%s is on no panel and in no alert", d.Name)
		}
	}
}
