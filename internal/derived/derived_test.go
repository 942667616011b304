package derived_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"pgregory.net/rapid"
)

// table executes changes of one table with the key (a, b): what a store does.
type table map[string]map[string]any

func (t table) exec(changes []derived.Change) {
	for _, c := range changes {
		row := map[string]any{"a": "", "b": "", "c": "", "d": "", "n_e": int64(0)}
		for _, k := range c.Key {
			row[k.Name] = k.Value
		}
		id := fmt.Sprintf("%s %v %v", c.Table, row["a"], row["b"])
		switch c.Op {
		case derived.Insert:
			t[id] = row
		case derived.Delete:
			maps.DeleteFunc(t, func(at string, r map[string]any) bool {
				if !strings.HasPrefix(at, string(c.Table)+" ") {
					return false
				}
				for _, k := range c.Key {
					if r[k.Name] != k.Value {
						return false
					}
				}
				return true
			})
			continue
		}
		for _, col := range c.Cols {
			if t[id] == nil {
				continue
			}
			if c.Op == derived.Add {
				t[id][col.Name] = t[id][col.Name].(int64) + col.Value.(int64)
			} else {
				t[id][col.Name] = col.Value
			}
		}
	}
}

func change(t *rapid.T) derived.Change {
	word := rapid.SampledFrom([]string{"x", "y"})
	c := derived.Change{
		Table: rapid.SampledFrom([]derived.Table{"one", "two"}).Draw(t, "table"),
		Op:    rapid.SampledFrom([]derived.Op{derived.Insert, derived.Set, derived.Set, derived.Set, derived.Add, derived.Delete}).Draw(t, "op"),
	}
	if c.Op == derived.Delete { // any columns
		for _, name := range rapid.SampledFrom([][]string{{"a"}, {"a", "b"}, {"c"}, {"d", "b"}}).Draw(t, "by") {
			c.Key = append(c.Key, derived.Col{Name: name, Value: word.Draw(t, name)})
		}
		return c
	}
	c.Key = []derived.Col{{Name: "a", Value: word.Draw(t, "a")}, {Name: "b", Value: word.Draw(t, "b")}}
	if c.Op == derived.Add {
		c.Cols = []derived.Col{{Name: "n_e", Value: int64(rapid.IntRange(-3, 3).Draw(t, "n"))}}
		return c
	}
	for _, name := range []string{"c", "d"} {
		if rapid.Bool().Draw(t, "has "+name) {
			c.Cols = append(c.Cols, derived.Col{Name: name, Value: word.Draw(t, name)})
		}
	}
	if rapid.Bool().Draw(t, "has n") {
		c.Cols = append(c.Cols, derived.Col{Name: "n_e", Value: int64(rapid.IntRange(0, 3).Draw(t, "n"))})
	}
	return c
}

// Merge keeps the meaning of a list of changes, and leaves the list alone.
func TestMergeKeepsMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := rapid.SliceOfN(rapid.Custom(change), 0, 12).Draw(t, "changes")
		before := fmt.Sprint(changes)
		merged := derived.Merge(changes)
		if fmt.Sprint(changes) != before {
			t.Fatal("Merge changed what it was given")
		}
		want, got := table{}, table{}
		want.exec(changes)
		got.exec(merged)
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%v gives %v\nmerged to %v gives %v", changes, want, merged, got)
		}
		if len(merged) > len(changes) {
			t.Fatal("Merge made more of it")
		}
	})
}

func TestMergeJoins(t *testing.T) {
	key := []derived.Col{{Name: "a", Value: "x"}}
	col := func(name, value string) []derived.Col { return []derived.Col{{Name: name, Value: value}} }
	got := derived.Merge([]derived.Change{
		{Table: "one", Op: derived.Insert, Key: key, Cols: col("c", "1")},
		{Table: "two", Op: derived.Delete, Key: key},
		{Table: "one", Op: derived.Set, Key: key, Cols: col("c", "2")},
		{Table: "one", Op: derived.Set, Key: key, Cols: col("d", "3")},
	})
	want := []derived.Change{
		{Table: "one", Op: derived.Insert, Key: key, Cols: append(col("c", "2"), col("d", "3")...)},
		{Table: "two", Op: derived.Delete, Key: key},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// A set stays behind what may have removed or counted its row.
func TestMergeKeepsOrder(t *testing.T) {
	key := []derived.Col{{Name: "a", Value: "x"}}
	for _, between := range []derived.Change{
		{Table: "one", Op: derived.Delete, Key: []derived.Col{{Name: "c", Value: "1"}}},
		{Table: "one", Op: derived.Add, Key: key, Cols: []derived.Col{{Name: "n_e", Value: int64(1)}}},
	} {
		changes := []derived.Change{
			{Table: "one", Op: derived.Insert, Key: key, Cols: []derived.Col{{Name: "c", Value: "1"}}}, between,
			{Table: "one", Op: derived.Set, Key: key, Cols: []derived.Col{{Name: "c", Value: "2"}, {Name: "n_e", Value: int64(7)}}},
		}
		if got := derived.Merge(changes); !reflect.DeepEqual(got, changes) {
			t.Errorf("%v became %v", changes, got)
		}
	}
}

func TestSpecs(t *testing.T) {
	seen := map[derived.Table]bool{}
	for _, s := range derived.Specs() {
		all := append(slices.Clone(s.Key), s.Columns...)
		slices.Sort(all)
		if seen[s.Table] || len(s.Key) == 0 || len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Errorf("%s stands twice, has no key or a column twice: %v", s.Table, all)
		}
		seen[s.Table] = true
		// A session, a target or a job is the unit of sharding: every key begins with it.
		if k := s.Key[0]; k != "session_id" && k != "target_id" && k != "user_id" && k != "job_id" {
			t.Errorf("the key of %s begins with %s", s.Table, k)
		}
		if !reflect.DeepEqual(derived.SpecOf(s.Table), s) {
			t.Errorf("SpecOf(%s) is another", s.Table)
		}
	}
}
