package textedit

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

const poem = "one\ntwo\n\tthree\ntwo\nfive\n"

func TestApply(t *testing.T) {
	for _, test := range []struct {
		name    string
		text    string
		edits   []Edit
		want    string
		summary string
	}{
		{"in a line", poem, []Edit{{Old: "hre", New: "HRE"}}, "one\ntwo\n\ttHREe\ntwo\nfive\n", "@@ line 3 @@\n-\tthree\n+\ttHREe\n"},
		{"all", poem, []Edit{{Old: "two", New: "2\n2", All: true}}, "one\n2\n2\n\tthree\n2\n2\nfive\n",
			"@@ line 2 @@\n-two\n+2\n+2\n@@ line 5 @@\n-two\n+2\n+2\n"},
		{"all of one", poem, []Edit{{Old: "five", New: "5", All: true}}, "one\ntwo\n\tthree\ntwo\n5\n", "@@ line 5 @@\n-five\n+5\n"},
		{"whole lines", poem, []Edit{{Old: "one\ntwo\n", New: "1\n"}}, "1\n\tthree\ntwo\nfive\n", "@@ line 1 @@\n-one\n-two\n+1\n"},
		{"a line goes", poem, []Edit{{Old: "one\n", New: ""}}, "two\n\tthree\ntwo\nfive\n", "@@ line 1 @@\n-one\n"},
		{"lines join", poem, []Edit{{Old: "ne\n", New: ""}}, "otwo\n\tthree\ntwo\nfive\n", "@@ line 1 @@\n-one\n-two\n+otwo\n"},
		{"a line end comes", "ab", []Edit{{Old: "b", New: "b\n"}}, "ab\n", "@@ line 1 @@\n-ab\n+ab\n+\n"},
		{"each in what was left", poem, []Edit{{Old: "one", New: "six"}, {Old: "six\ntwo", New: "x"}}, "x\n\tthree\ntwo\nfive\n",
			"@@ line 1 @@\n-one\n+six\n@@ line 1 @@\n-six\n-two\n+x\n"},
		{"exact bytes", "a\r\nb\r\n", []Edit{{Old: "a\r\n", New: "c\n"}}, "c\nb\r\n", "@@ line 1 @@\n-a\r\n+c\n"},
		{"all does not overlap", "aaa", []Edit{{Old: "aa", New: "b", All: true}}, "ba", "@@ line 1 @@\n-aaa\n+ba\n"},
	} {
		r, err := Apply(test.text, test.edits, 1000)
		if err != nil || r.Text != test.want || r.Summary != test.summary {
			t.Errorf("%s: %q, %v\n%s", test.name, r.Text, err, r.Summary)
		}
	}
}

// What does not fit is refused as a whole, and says what to do.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name  string
		text  string
		edits []Edit
		want  string
	}{
		{"none", poem, nil, "there are no edits"},
		{"too many", poem, make([]Edit, MaxEdits+1), "101 edits, at most 100"},
		{"empty", poem, []Edit{{New: "x"}}, "old_text is empty; to write a whole file use write_file"},
		{"same", poem, []Edit{{Old: "one", New: "one"}}, "are the same"},
		{"twice", poem, []Edit{{Old: "two", New: "x"}}, "old_text is there 2 times, at lines 2, 4; give more of the text around it so that it is there once, or set all"},
		{"twice in a line", "xx\n", []Edit{{Old: "x", New: "y"}}, "there 2 times, at line 1;"},
		{"overlapping", "aaa", []Edit{{Old: "aa", New: "b"}}, "there 2 times"},
		{"often", strings.Repeat("x\n", 50), []Edit{{Old: "x", New: "y"}}, "more than 10 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …;"},
		{"second", poem, []Edit{{Old: "one", New: "1"}, {Old: "one", New: "2"}}, "edit 2 of 2: old_text is not there"},
		{"nothing written", "", []Edit{{Old: "one", New: "1"}}, "the file is empty"},
		{"nothing like it", poem, []Edit{{Old: "zzzzzz", New: "1"}}, "nor is a line like it; read the file again"},
		{"white space", poem, []Edit{{Old: "    three", New: "1"}}, "line 3 is as its first line but for white space: \"\\tthree\";"},
		{"nearest", "alpha beta\nalpha gamma\n", []Edit{{Old: "\n\nalpha gama\n", New: "1"}}, "the nearest to its first line is line 2: \"alpha gamma\";"},
		{"file CRLF", "a\r\nb\r\nc\r\n", []Edit{{Old: "b\nc", New: "1"}}, `at line 2 only the line ends differ: lines of the file end in \r\n; write the same`},
		{"old CRLF", "a\nb\nc\n", []Edit{{Old: "b\r\nc", New: "1"}}, `at line 2 only the line ends differ: lines of the file end in \n, those of old_text in \r\n;`},
		{"mixed", "a\r\nb\nc\r\n", []Edit{{Old: "a\nb\r\n", New: "1"}}, `some lines of the file end in \r\n, others in \n`},
		{"back again", "ab", []Edit{{Old: "a", New: "c"}, {Old: "c", New: "a"}}, "undo each other"},
		{"too large", "a", []Edit{{Old: "a", New: strings.Repeat("x", 1001)}}, "would have 1001 bytes, at most 1000"},
		{"too large on the way", "a", []Edit{{Old: "a", New: strings.Repeat("x", 1001)}, {Old: "x", New: "", All: true}}, "edit 1 of 2: the text would have 1001 bytes"},
		{"too large by all", strings.Repeat("a", 900), []Edit{{Old: "a", New: strings.Repeat("x", 1<<20), All: true}}, "would have 943718400 bytes"},
	} {
		r, err := Apply(test.text, test.edits, 1000)
		if err == nil || r != (Result{}) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestSummaryIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"many changes": strings.Repeat("x\n", 100_000), "one long line": strings.Repeat("x", 200_000), "long lines": strings.Repeat(strings.Repeat("ü", 5000)+"x\n", 100),
	} {
		r, err := Apply(text, []Edit{{Old: "x", New: "yy", All: true}}, 1<<20)
		if err != nil || len(r.Summary) > maxSummary+4*maxLine || !utf8.ValidString(r.Summary) {
			t.Errorf("%s: %d bytes, %v", name, len(r.Summary), err)
		}
	}
	lines := strings.Repeat("x\n", 90) + "z"
	r, err := Apply(lines+"\n", []Edit{{Old: lines, New: "y"}}, 1000)
	if err != nil || !strings.Contains(r.Summary, "-x\n-[71 more]\n+y\n") {
		t.Errorf("%v\n%s", err, r.Summary)
	}
	_, err = Apply(strings.Repeat("x", 5000)+"y", []Edit{{Old: strings.Repeat("x", 5000) + "z", New: ""}}, 10_000)
	if err == nil || len(err.Error()) > 1000 {
		t.Errorf("a long line: %v", err)
	}
}

// One edit without all: it is made exactly when the piece is in one place, and
// what is around it stays.
func TestOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab\n]{0,20}`).Draw(t, "text")
		e := Edit{Old: rapid.StringMatching(`[ab\n]{1,3}`).Draw(t, "old"), New: rapid.StringMatching(`[abc\n]{0,3}`).Draw(t, "new")}
		e.All = rapid.Bool().Draw(t, "all")
		places, apart := 0, strings.Count(text, e.Old)
		for i := range text {
			if strings.HasPrefix(text[i:], e.Old) {
				places++
			}
		}
		want := places == 1 || e.All && places > 0
		if e.Old == e.New {
			want = false
		}
		r, err := Apply(text, []Edit{e}, 1000)
		if (err == nil) != want {
			t.Fatalf("%q in %q %d times: %v", e.Old, text, places, err)
		}
		if want && (r.Text != strings.ReplaceAll(text, e.Old, e.New) || r.Replaced != apart || r.Summary == "") {
			t.Fatalf("%q in %q: %+v", e.Old, text, r)
		}
	})
}

func FuzzApply(f *testing.F) {
	f.Add("a\r\nb\n", "b", "c\n", "c", "", true)
	f.Add("aaa", "aa", "", "b", "x", false)
	f.Fuzz(func(t *testing.T, text, old, new, old2, new2 string, all bool) {
		r, err := Apply(text, []Edit{{old, new, all}, {old2, new2, !all}}, 4096)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
			return
		}
		if r.Text == text || len(r.Text) > 4096 || r.Replaced < 2 || len(r.Summary) > maxSummary+4*maxLine {
			t.Errorf("%+v", r)
		}
	})
}
