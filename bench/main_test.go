package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table replaces what stood between the marks, and says what is kept.
func TestPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.md")
	if err := os.WriteFile(file, []byte("before\n"+pageBegin+"\nold\n"+pageEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bench{results: []result{
		{Section: "runs", Name: "a", Value: 2000, Target: "at least 2000"},
		{Section: "runs", Name: "b", Value: 2.51, Target: "at most 2.5"},
		{Section: "delta", Name: "c", Value: 1, Target: "below 1"},
		{Section: "delta", Name: "d", Value: 1, Target: "about 1"},
		{Section: "delta", Name: "e", Value: -6.538, Target: "below 5"},
	}}
	for range 2 {
		if err := b.page(file, "0.10", "2.00"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	for _, want := range []string{"before\n" + pageBegin, pageEnd + "\nafter\n", "| a | 2000 |  | at least 2000 | yes |", "| b | 2.51 |  | at most 2.5 | **no** |",
		"| c | 1.00 |  | below 1 | **no** |", "| d | 1.00 |  | about 1 |  |", "| e | -6.54 |  | below 5 | yes |", "0.10 at the start and 2.00 at the end"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Error("what was there is still there")
	}
	if err := os.WriteFile(file, []byte("no marks"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.page(file, "", ""); err == nil {
		t.Error("a page without a place took the table")
	}
}
