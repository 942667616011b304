package main

import (
	"context"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// A section starts daemons in processes of their own: this program.
func TestMain(m *testing.M) {
	if isChild() {
		return
	}
	os.Exit(m.Run())
}

// Every section still measures what the page says it does: it ends, and gives the
// rows that the page has, in their order, with a number each. How large the numbers
// are is not looked at. A row that is new goes into the page with a – for its value.
func TestSections(t *testing.T) {
	promised := promises(t)
	for _, s := range slices.Backward(sections()) { // the longest ones are last
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b := &bench{out: t.Output()}
			b.tiny()
			var wanted bool
			b.database, wanted = storetest.DatabaseURL()
			if err := b.measureSection(ctx, s, t.TempDir()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range b.results {
				r := &b.results[i]
				if r.Skipped && r.Name == noDatabase {
					if wanted {
						t.Fatal("no PostgreSQL for the tests")
					}
					t.Skip("no PostgreSQL for the tests (HOLDFAST_TEST_DATABASE names one)")
				}
				got = append(got, sizeless(r.Name, r.Unit, r.Target))
				if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
					t.Errorf("%s: %v", r.Name, r.Value)
				}
				if r.Skipped && r.Note != unknownHere {
					t.Errorf("%s is not measured: %s", r.Name, r.Note)
				}
				if !r.Skipped && slices.Contains([]string{"a second", "/s", "events/s", "times", "ns", "ms", "s"}, r.Unit) && r.Value <= 0 {
					t.Errorf("%s: %v %s", r.Name, r.Value, r.Unit)
				}
			}
			want := promised[s.name]
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Fatalf("row %d is not that of the page:\n  measured: %s\n  the page: %s", i+1, at(got, i), at(want, i))
				}
			}
		})
	}
	if len(promised) != len(sections()) {
		t.Errorf("the page has %d sections and not %d", len(promised), len(sections()))
	}
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "(none)"
}

var number = regexp.MustCompile(`[0-9][0-9,.]*`)

// sizeless is a row without the sizes that it was measured with.
func sizeless(name, unit, target string) string {
	return number.ReplaceAllString(name+" | "+unit+" | "+target, "#")
}

// promises reads the rows of the page, by section.
func promises(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), pageBegin)
	table, _, ended := strings.Cut(rest, pageEnd)
	if !ok || !ended {
		t.Fatal("the page has no table")
	}
	rows, section := map[string][]string{}, ""
	for line := range strings.Lines(table) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "**"), "**: "); ok {
			section = name
			rows[section] = nil
			continue
		}
		cells := strings.Split(line, "|")
		if len(cells) < 7 || strings.TrimSpace(cells[1]) == "what" || strings.HasPrefix(strings.TrimSpace(cells[1]), "---") {
			continue
		}
		rows[section] = append(rows[section], sizeless(strings.TrimSpace(cells[1]), strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])))
	}
	return rows
}
