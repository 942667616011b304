package postgres

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What goes into a set of rows comes out of the server's table of it, whatever is in
// a text: nothing of it is read as JSON, and rows keep their order. // C90
func TestRowset(t *testing.T) {
	s := open(t, Config{})
	odd := rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }), // what is not UTF-8 too
		rapid.SampledFrom([]string{"", "\x00", "\x01", "\x0100", `"`, `\`, `\u0000`, `"},{"v0":"x`, "\u2028\u2029", "\uffff", "\U0010ffff", "\xed\xa0\x80", "\r\n\t\b\f\x7f", "null", "'; --", strings.Repeat("x", 1<<16)}),
	)
	type row struct {
		text  string
		n     int64
		yes   bool
		bytes []byte
	}
	one := rapid.Custom(func(t *rapid.T) row {
		return row{
			odd.Draw(t, "text"), rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, 0})).Draw(t, "n"),
			rapid.Bool().Draw(t, "yes"), rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
		}
	})
	text := "SELECT v0, v1, v2, v3 FROM " + recordsetOf(1, []string{"text", "bigint", "boolean", "bytea"}, "u")
	rapid.Check(t, func(rt *rapid.T) {
		want := rapid.SliceOfN(one, 0, 20).Draw(rt, "rows")
		var set rowset
		for _, r := range want {
			set.row()
			set.value(r.text)
			set.value(r.n)
			set.bool(r.yes)
			set.bytes(r.bytes)
		}
		rows, err := s.pool.Query(t.Context(), text, set.arg())
		if err != nil {
			rt.Fatal(err)
		}
		defer rows.Close()
		n := 0
		for ; rows.Next(); n++ {
			var got row
			if err := scanRow(rows, []any{&got.text, &got.n, &got.yes, &got.bytes}); err != nil {
				rt.Fatal(err)
			}
			if n >= len(want) || got.text != want[n].text || got.n != want[n].n || got.yes != want[n].yes || !bytes.Equal(got.bytes, want[n].bytes) {
				rt.Fatalf("row %d is %+v, want %+v", n, got, want[n])
			}
		}
		if err := rows.Err(); err != nil || n != len(want) {
			rt.Fatalf("%d rows of %d, %v", n, len(want), err)
		}
	})
}

// A set of rows takes what derived rows hold, and nothing else is handed to it.
func TestRowsetPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a float was taken")
		}
	}()
	var set rowset
	set.row()
	set.value(1.5)
}
