package session

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
)

const schemaOfTests = `{"additionalProperties":false,"properties":{"n":{"type":"number"}},"required":["n"],"type":"object"}`

// filler sets every field below a value, exported or not, each to something
// else than zero.
type filler struct {
	t *testing.T
	n int64
}

func (f *filler) fill(v reflect.Value, path string) {
	f.n++
	switch v.Type() {
	case reflect.TypeFor[canonjson.Value]():
		text := fmt.Sprintf(`{"a":[%d]}`, f.n)
		if strings.HasSuffix(path, ".Schema") {
			text = schemaOfTests
		}
		v.SetBytes([]byte(text))
		return
	case reflect.TypeFor[*contract.Schema]():
		s, issues := contract.ParseSchema([]byte(schemaOfTests))
		if len(issues) > 0 {
			f.t.Fatal(issues)
		}
		v.Set(reflect.ValueOf(s))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			if !field.CanSet() {
				field = reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
			}
			f.fill(field, path+"."+v.Type().Field(i).Name)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			f.fill(v.Index(i), path+"[]")
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, path+"[]")
		f.fill(value, path+"[]")
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("%s %d <é\u2028>", path, f.n))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(f.n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(f.n) + .5)
	case reflect.Bool:
		v.SetBool(true)
	default:
		f.t.Fatalf("%s: the test does not know how to fill %s", path, v.Type())
	}
}

// A state comes back as it was, with every field that it and what it holds have:
// a field that the stored form does not cover shows here.
func TestStoredFormCoversEveryField(t *testing.T) {
	s := &State{}
	(&filler{t: t}).fill(reflect.ValueOf(s).Elem(), "State")
	s.files = filesSeen{} // what an owner told the state goes with the owner
	// What follows from other fields.
	s.shown, s.bytes = 0, 0
	for i := range s.history {
		s.history[i].bytes = sizeOf(s.history[i].items)
		s.shown += len(s.history[i].items)
		s.bytes += s.history[i].bytes
	}
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeState(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences("State", reflect.ValueOf(s), reflect.ValueOf(got)) {
		t.Error(d)
	}
	if again, err := got.Encode(); err != nil || string(again) != string(data) {
		t.Errorf("stored again: %v\n%s\n%s", err, again, data)
	}
}

// differences names the fields in which two values differ.
func differences(path string, a, b reflect.Value) []string {
	if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() {
		return differences(path, a.Elem(), b.Elem())
	}
	var out []string
	switch {
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			out = append(out, differences(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))...)
		}
	case a.Kind() == reflect.Slice && a.Len() == b.Len() && !a.IsNil() && !b.IsNil():
		for i := range a.Len() {
			out = append(out, differences(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))...)
		}
	case fmt.Sprintf("%#v", a) != fmt.Sprintf("%#v", b):
		out = append(out, fmt.Sprintf("%s is %#v, was %#v", path, b, a))
	}
	return out
}

// The shape of what is stored belongs to its version: another shape under the
// same version would be read as if it were this one.
func TestShapeOfTheStoredForm(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var types []string
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(typ.Elem())
		case reflect.Map:
			walk(typ.Key())
			walk(typ.Elem())
		case reflect.Struct:
			if seen[typ] || typ == reflect.TypeFor[contract.Schema]() {
				return
			}
			seen[typ] = true
			text := typ.String() + "\n"
			for i := range typ.NumField() {
				field := typ.Field(i)
				text += fmt.Sprintf("  %s %s %s\n", field.Name, field.Type, field.Tag)
				walk(field.Type)
			}
			types = append(types, text)
		}
	}
	walk(reflect.TypeFor[State]())
	slices.Sort(types)
	got := fmt.Sprintf("version %d\n\n%s", StateVersion, strings.Join(types, "\n"))
	const path = "testdata/stored_shape.txt"
	want, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if string(want) == got {
		return
	}
	before, _, _ := strings.Cut(string(want), "\n")
	now, _, _ := strings.Cut(got, "\n")
	switch {
	case before == now:
		t.Errorf("what a state holds has changed: raise StateVersion, then run with -rewrite.\n%s", firstDifference(string(want), got))
	case flag.Lookup("rewrite").Value.String() == "true":
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is of another %s; run with -rewrite", path, before)
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\n want %s\n  got %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, then %d", len(w), len(g))
}

func TestDecodeStateRefuses(t *testing.T) {
	s := &State{ID: "ses_1", Status: Open}
	good, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "null", "{}", "[]", string(good[:len(good)-1]), string(good) + "{}", `{"State":{"ID":"ses_1","Later":1}}`, `{"State":{},"State":{}}`,
		`{"State":{"Active":{"Contract":{"Schema":{"type":"null"}}}}}`, `{"State":{"Settings":{"output_contract":{"schema":{"type":"null"}}}}}`,
	} {
		if got, err := DecodeState([]byte(text)); err == nil {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
}

func FuzzDecodeState(f *testing.F) {
	s := &State{ID: "ses_1", Status: Open, history: []past{{seq: 3, items: []Item{{Kind: ItemUser}}}}}
	good, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeState(data)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be stored: %v", err)
		}
		if _, err := DecodeState(again); err != nil {
			t.Fatalf("%v: %s", err, again)
		}
	})
}
