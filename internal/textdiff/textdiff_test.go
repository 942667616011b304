package textdiff

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// patch applies a unified difference as its form says, and trusts nothing.
func patch(old []byte, diff string) ([]byte, error) {
	lines := Lines(old)
	var out []byte
	at := 0
	rest := Lines([]byte(diff))
	for i := 0; i < len(rest); {
		var oldAt, oldLen, newLen int
		head := strings.TrimSuffix(string(rest[i]), " @@\n")
		a, b, ok := strings.Cut(strings.TrimPrefix(head, "@@ -"), " +")
		if !ok {
			return nil, fmt.Errorf("no hunk: %q", rest[i])
		}
		var err error
		if oldAt, oldLen, err = where(a); err != nil {
			return nil, err
		}
		if _, newLen, err = where(b); err != nil {
			return nil, err
		}
		if oldLen > 0 {
			oldAt--
		}
		for ; at < oldAt; at++ {
			out = append(out, lines[at]...)
		}
		for i++; oldLen > 0 || newLen > 0; i++ {
			l := rest[i]
			text := l[1:]
			if i+1 < len(rest) && string(rest[i+1]) == noNewline {
				text = bytes.TrimSuffix(text, []byte("\n"))
			}
			if l[0] != '+' {
				if !bytes.Equal(text, lines[at]) {
					return nil, fmt.Errorf("line %d is %q and not %q", at, lines[at], text)
				}
				at++
				oldLen--
			}
			if l[0] != '-' {
				out = append(out, text...)
				newLen--
			}
			if len(text) < len(l)-1 {
				i++
			}
		}
	}
	for ; at < len(lines); at++ {
		out = append(out, lines[at]...)
	}
	return out, nil
}

func where(s string) (at, n int, err error) {
	first, count, many := strings.Cut(s, ",")
	if at, err = strconv.Atoi(first); err != nil || !many {
		return at, 1, err
	}
	n, err = strconv.Atoi(count)
	return at, n, err
}

// Whatever the texts and the budget: the difference makes the new text of the old one.
func TestApplied(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		text := func(name string) []byte {
			lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "", "\r", "d\x00", "@@", "-x", "+y", " z", "\\"}), 0, 40).Draw(r, name)
			out := strings.Join(lines, "\n")
			if rapid.Bool().Draw(r, name+" ends") {
				out += "\n"
			}
			return []byte(out)
		}
		old, new := text("old"), text("new")
		budget := rapid.SampledFrom([]int{0, 50, 300, 1 << 20}).Draw(r, "budget")
		check(r, old, new, budget)
	})
}

type failer interface {
	Fatalf(string, ...any)
	Helper()
}

func check(t failer, old, new []byte, budget int) []Edit {
	t.Helper()
	a, b := Lines(old), Lines(new)
	edits := Compare(a, b, &budget)
	diff, whole := Unified(a, b, edits, 1<<30)
	got, err := patch(old, string(diff))
	if err != nil || !whole || !bytes.Equal(got, new) {
		t.Fatalf("%q → %q gives %q: %v\n%s", old, new, got, err, diff)
	}
	if bytes.Equal(old, new) != (len(edits) == 0) {
		t.Fatalf("%q and %q: %d edits", old, new, len(edits))
	}
	return edits
}

// With a budget the difference is the shortest.
func TestShortest(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		text := func(name string) []byte {
			return []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n"}), 0, 12).Draw(r, name), ""))
		}
		old, new := text("old"), text("new")
		added, deleted := Counts(check(r, old, new, 1<<20))
		a, b := Lines(old), Lines(new)
		common := make([][]int, len(a)+1) // longest common subsequence, the plain way
		for i := range common {
			common[i] = make([]int, len(b)+1)
		}
		for i := range a {
			for j := range b {
				common[i+1][j+1] = max(common[i][j+1], common[i+1][j])
				if bytes.Equal(a[i], b[j]) {
					common[i+1][j+1] = common[i][j] + 1
				}
			}
		}
		if want := len(a) + len(b) - 2*common[len(a)][len(b)]; added+deleted != want {
			r.Fatalf("%q → %q: %d lines differ, want %d", old, new, added+deleted, want)
		}
	})
}

func TestForm(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"", "a\n", "@@ -0,0 +1 @@\n+a\n"},
		{"a\n", "", "@@ -1 +0,0 @@\n-a\n"},
		{"a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n", "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
	} {
		budget := 1000
		a, b := Lines([]byte(c.old)), Lines([]byte(c.new))
		if got, _ := Unified(a, b, Compare(a, b, &budget), 1000); string(got) != c.want {
			t.Errorf("%q → %q:\n%s", c.old, c.new, got)
		}
	}
}

// A large text that is all different costs what the budget says; one with
// unique lines is cut at them.
func TestBounded(t *testing.T) {
	var old, new bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&old, "%d\n", i%7)
		fmt.Fprintf(&new, "%d\n", i%11)
	}
	budget := 400_000
	a, b := Lines(old.Bytes()), Lines(new.Bytes())
	edits := Compare(a, b, &budget)
	if budget < -200_000 {
		t.Errorf("%d steps past the budget", -budget)
	}
	diff, whole := Unified(a, b, edits, 1000)
	if whole || len(diff) > 1000 {
		t.Errorf("%d bytes, whole %v", len(diff), whole)
	}
	old.Reset()
	new.Reset()
	for i := range 5000 { // every third line is another one: more than the search takes at once
		fmt.Fprintf(&old, "line %d\n", i)
		if i%3 == 0 {
			fmt.Fprintf(&new, "other %d\n", i)
		} else {
			fmt.Fprintf(&new, "line %d\n", i)
		}
	}
	added, deleted := Counts(check(t, old.Bytes(), new.Bytes(), 50_000_000))
	if added != 1667 || deleted != 1667 {
		t.Errorf("%d lines added, %d deleted", added, deleted)
	}
}

func FuzzApplied(f *testing.F) {
	f.Add([]byte("a\nb"), []byte("b\nc\n"), 100)
	f.Fuzz(func(t *testing.T, old, new []byte, budget int) { check(t, old, new, min(budget, 1<<22)) })
}
