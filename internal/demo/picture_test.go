package demo

import (
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "run the demo and draw docs/demo.svg of what it prints")

// The picture in the README shows what the demo prints: -rewrite draws it from
// a real run, and the test holds the picture to the chapters of the story.
func TestPicture(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "demo.svg")
	if *rewrite {
		cmd := exec.Command("go", "run", "./cmd/holdfast", "demo")
		cmd.Dir = filepath.Join("..", "..")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := os.WriteFile(path, []byte(draw(string(out))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	picture, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("demo.go")
	if err != nil {
		t.Fatal(err)
	}
	titles := regexp.MustCompile(`t\.title\("([^"%]+)`).FindAllStringSubmatch(string(source), -1)
	if len(titles) < 8 {
		t.Fatalf("only %d chapters found", len(titles))
	}
	for _, m := range titles {
		if !strings.Contains(string(picture), html.EscapeString(m[1])) {
			t.Errorf("the picture does not show %q: go test ./internal/demo -run Picture -rewrite", m[1])
		}
	}
}

// draw sets the text as an SVG of a terminal; ids of 32 digits are shortened.
func draw(text string) string {
	text = regexp.MustCompile(`([0-9a-f]{8})[0-9a-f]{24}`).ReplaceAllString(text, "$1…")
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "127.0.0.1:…")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	const size, lead, pad = 13, 18, 16
	wide := 0
	for _, l := range lines {
		wide = max(wide, len([]rune(l)))
	}
	var b strings.Builder
	w, h := 2*pad+wide*size*62/100, 2*pad+len(lines)*lead
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="%d">`+"\n", w, h, w, h, size)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#14181d"/>`+"\n")
	for i, l := range lines {
		color, weight := "#b8c4d0", "normal"
		switch {
		case l != "" && l[0] != ' ':
			color, weight = "#ffffff", "bold"
		case strings.Contains(l, "breaks the contract"), strings.Contains(l, "← 400"), strings.Contains(l, "is gone"), strings.Contains(l, "abandoned"), strings.Contains(l, "ok=false"):
			color = "#ff9d76"
		case strings.Contains(l, "verified"), strings.HasPrefix(strings.TrimSpace(l), "completed"), strings.Contains(l, "run.completed"), strings.Contains(l, "ok=true"), strings.Contains(l, "output.emitted"):
			color = "#8fd694"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s" font-weight="%s" xml:space="preserve">%s</text>`+"\n", pad, pad+size+i*lead, color, weight, html.EscapeString(l))
	}
	return b.String() + "</svg>\n"
}
