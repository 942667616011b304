package contract_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
)

// rows reads a file of JSON lines below the shared folder.
func rows[T any](t *testing.T, elem ...string) []T {
	t.Helper()
	f, err := os.Open(shared(t, elem...))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		out = append(out, row)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("no rows")
	}
	return out
}

type checkRow struct {
	ID        string
	Schema    json.RawMessage
	Text      string
	OK        bool
	Canonical string
	Error     string
	Stage     string
}

// check runs one row of validate.jsonl or extract.jsonl.
func (r checkRow) check(t *testing.T) {
	t.Helper()
	s := mustParse(t, string(r.Schema))
	got, err := s.Check(r.Text)
	if r.OK {
		if err != nil || string(got) != r.Canonical {
			t.Errorf("%s: %s, %v, want %s", r.ID, got, err, r.Canonical)
		}
		return
	}
	var v *contract.Violation
	if !errors.As(err, &v) {
		t.Errorf("%s: %s, %v, want a violation", r.ID, got, err)
		return
	}
	stage := r.Stage
	if stage == "" {
		stage = contract.StageSchema
	}
	if v.Stage != stage {
		t.Errorf("%s: stage %s: %v", r.ID, v.Stage, v)
	}
	if r.Error != "" && v.Error() != r.Error {
		t.Errorf("%s: %v, want %s", r.ID, v, r.Error)
	}
	if r.Error == "" && !strings.HasPrefix(v.Error(), "$: not a single strict JSON value: ") {
		t.Errorf("%s: %v", r.ID, v)
	}
}

func TestValidateVectors(t *testing.T) {
	for _, r := range rows[checkRow](t, "vectors", "contract", "validate.jsonl") {
		r.check(t)
	}
}

func TestExtractVectors(t *testing.T) {
	for _, r := range rows[checkRow](t, "vectors", "contract", "extract.jsonl") {
		r.check(t)
	}
}

func TestSchemaVectors(t *testing.T) {
	type row struct {
		ID       string
		Schema   json.RawMessage
		OK       bool
		Rendered json.RawMessage
		Issues   []string
	}
	for _, r := range rows[row](t, "vectors", "contract", "schema.jsonl") {
		s, issues := contract.ParseSchema(r.Schema)
		if !r.OK {
			if s != nil || !slices.Equal(sorted(issues), slices.Sorted(slices.Values(r.Issues))) {
				t.Errorf("%s: issues %v, want %q", r.ID, issues, r.Issues)
			}
			continue
		}
		if len(issues) > 0 {
			t.Errorf("%s: %v", r.ID, issues)
			continue
		}
		want, err := canonjson.Canonicalize(r.Rendered, canonjson.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if !s.Render().Equal(want) {
			t.Errorf("%s: %s, want %s", r.ID, s.Render(), want)
		}
	}
}

func sorted(issues []contract.Issue) []string {
	var out []string
	for _, i := range issues {
		out = append(out, i.String())
	}
	slices.Sort(out)
	return out
}

// The files of the field cases: C01, C02, C03 hold values for a schema, C10 a
// schema.
func TestFieldCaseFiles(t *testing.T) {
	type variant struct {
		Name      string
		Text      string
		Accepted  bool
		Canonical string
	}
	type fieldCase struct {
		Input struct {
			Schema   json.RawMessage
			Text     string
			Variants []variant
		}
		Expected struct {
			Canonical    string
			AllVariants  struct{ Canonical string } `json:"all_variants"`
			Mention      [][]string                 `json:"issues_must_mention"`
			ControlValid json.RawMessage            `json:"control_accepted"`
		}
	}
	load := func(id string) (c fieldCase) {
		text, err := os.ReadFile(shared(t, "field", id+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}

	c := load("C01")
	for _, v := range c.Input.Variants {
		checkRow{ID: "C01 " + v.Name, Schema: c.Input.Schema, Text: v.Text, OK: true, Canonical: c.Expected.AllVariants.Canonical}.check(t)
	}
	c = load("C02")
	for _, v := range c.Input.Variants {
		checkRow{ID: "C02 " + v.Name, Schema: c.Input.Schema, Text: v.Text, OK: v.Accepted, Stage: contract.StageParse, Canonical: v.Canonical}.check(t)
	}
	c = load("C03")
	checkRow{ID: "C03", Schema: c.Input.Schema, Text: c.Input.Text, OK: true, Canonical: c.Expected.Canonical}.check(t)

	c = load("C10")
	s, issues := contract.ParseSchema(c.Input.Schema)
	if s != nil || len(issues) != len(c.Expected.Mention) {
		t.Errorf("C10: %v", issues)
	}
	for _, words := range c.Expected.Mention {
		if !slices.ContainsFunc(issues, func(i contract.Issue) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(i.String(), w) })
		}) {
			t.Errorf("C10: no issue mentions %q: %v", words, issues)
		}
	}
	mustParse(t, string(c.Expected.ControlValid))
}
