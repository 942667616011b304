package event_test

import (
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the expected files anew from what the code gives")

// golden compares with a file below testdata, or writes it under -rewrite.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s is not what the code gives (run with -rewrite and read the difference):\n%s", path, firstDifference(string(want), string(got)))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return "line " + strconv.Itoa(i+1) + "\n want " + a + "\n  got " + b
		}
	}
	return ""
}

// source gives the leaves of a value.
type source interface {
	text(name string) string
	number() int64
	flag() bool
	length() int
	present() bool
	value() canonjson.Value
}

// plain fills everything, always with the same.
type plain struct{ n int64 }

func (p *plain) text(name string) string { return "<" + name + "> & \"é\u2028\"" }
func (p *plain) number() int64           { p.n++; return p.n }
func (p *plain) flag() bool              { return true }
func (p *plain) length() int             { return 2 }
func (p *plain) present() bool           { return true }
func (p *plain) value() canonjson.Value {
	return canonjson.Value(`{"a":[1,9007199254740993,true,null,"<é>"],"b":{}}`)
}

// random draws everything.
type random struct{ t *rapid.T }

func (r random) text(string) string { return rapid.String().Draw(r.t, "text") }
func (r random) number() int64      { return rapid.Int64().Draw(r.t, "number") }
func (r random) flag() bool         { return rapid.Bool().Draw(r.t, "flag") }
func (r random) length() int        { return rapid.IntRange(0, 3).Draw(r.t, "length") }
func (r random) present() bool      { return rapid.Bool().Draw(r.t, "present") }
func (r random) value() canonjson.Value {
	texts := []string{`null`, `0`, `""`, `[]`, `{}`, `{"a":{"b":[1e400,-0.5]},"é":"<\u0001>"}`, `12345678901234567890`}
	v, err := canonjson.Canonicalize([]byte(rapid.SampledFrom(texts).Draw(r.t, "value")), canonjson.Limits{})
	if err != nil {
		return canonjson.Value(`"x"`)
	}
	return v
}

var valueType = reflect.TypeFor[canonjson.Value]()

// fill sets every field below v.
func fill(v reflect.Value, name string, optional bool, src source) {
	switch {
	case v.Type() == valueType:
		if !optional || src.present() {
			v.Set(reflect.ValueOf(src.value()))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fill(v.Field(i), name, options == "omitzero", src)
		}
	case reflect.Pointer:
		if src.present() {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), name, false, src)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), src.length(), 8))
		for i := range v.Len() {
			fill(v.Index(i), name, false, src)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range src.length() * 4 {
			v.SetMapIndex(reflect.ValueOf("X-Name-"+strconv.Itoa(i)), reflect.ValueOf(src.text("header")))
		}
	case reflect.String:
		v.SetString(src.text(name))
	case reflect.Int, reflect.Int64:
		v.SetInt(src.number())
	case reflect.Bool:
		v.SetBool(src.flag())
	default:
		panic("no rule to fill " + v.Type().String())
	}
}

func filled(typ event.Type, src source) event.Data {
	d, _, _ := event.New(typ)
	fill(reflect.ValueOf(d).Elem(), "", false, src)
	return d
}
