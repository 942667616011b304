package canonjson_test

import (
	"bytes"
	v1 "encoding/json"
	"testing"

	v2 "github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

type envelope struct {
	ID    string          `json:"id"`
	Zero  canonjson.Value `json:"zero,omitzero"`
	Empty canonjson.Value `json:"empty,omitempty"`
	Plain canonjson.Value `json:"plain"`
}

// encoders are the two ways in which a Value travels in a struct; both must
// write its bytes unchanged.
var encoders = map[string]func(any) ([]byte, error){
	"encoding/json": func(v any) ([]byte, error) {
		var b bytes.Buffer
		enc := v1.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
	},
	"go-json-experiment": func(v any) ([]byte, error) { return v2.Marshal(v) },
}

var decoders = map[string]func([]byte, any) error{
	"encoding/json":      v1.Unmarshal,
	"go-json-experiment": func(b []byte, v any) error { return v2.Unmarshal(b, v) },
}

func TestValueInStructs(t *testing.T) {
	// C03: whole numbers keep their digits, nothing is escaped for HTML.
	const canonical = "{\"id\":9007199254740993,\"note\":\"<b>ok</b> & done\u2028\",\"url\":\"https://x.test/?a=1&b=2\"}"
	for name, encode := range encoders {
		for _, c := range []struct {
			in   envelope
			want string
		}{
			{envelope{ID: "1"}, `{"id":"1","plain":null}`},
			{envelope{ID: "1", Zero: canonjson.Value(`null`), Plain: canonjson.Value(`1`)}, `{"id":"1","zero":null,"plain":1}`},
			{envelope{ID: "1", Zero: canonjson.Value(`{}`), Plain: canonjson.Value(`[]`)}, `{"id":"1","zero":{},"plain":[]}`},
			{envelope{ID: "1", Empty: canonjson.Value(`1`), Plain: canonjson.Value(canonical)}, `{"id":"1","empty":1,"plain":` + canonical + `}`},
		} {
			got, err := encode(c.in)
			if err != nil || string(got) != c.want {
				t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
			}
		}
	}
	for name, decode := range decoders {
		var e envelope
		err := decode([]byte(`{"id":"1","plain": {"url":"https://x.test/?a=1\u0026b=2","id":9007199254740993,"note":"\u003cb\u003eok</b> & done\u2028"},"zero": null}`), &e)
		if err != nil || string(e.Plain) != canonical || string(e.Zero) != "null" || !e.Empty.IsZero() {
			t.Errorf("%s: %v, %v", name, e, err)
		}
		// What the surrounding decoder would let pass is refused all the same.
		for _, text := range []string{
			`{"plain":{"a":1,"a":2}}`, `{"plain":{"b":[{"a":1,"a":2}]}}`, `{"plain":"\ud83d"}`, "{\"plain\":\"\xff\"}", `{"plain":1e400}`,
		} {
			if err := decode([]byte(text), &e); err == nil {
				t.Errorf("%s: accepted %q", name, text)
			}
		}
	}
}

func TestValue(t *testing.T) {
	v, err := canonjson.Canonicalize([]byte(` {"b":1,"a":2} `), canonjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if v.String() != `{"a":2,"b":1}` || !v.Equal(canonjson.Value(`{"a":2,"b":1}`)) || v.Equal(nil) {
		t.Error(v)
	}
	if n, err := v.Node(); err != nil || n.Len() != 2 {
		t.Errorf("%v, %v", n, err)
	}
	if _, err := canonjson.Value(nil).Node(); err == nil {
		t.Error("no value has no node")
	}
	// A value that came in under wider limits is still read back.
	deep := bytes.Repeat([]byte("["), 500)
	deep = append(deep, bytes.Repeat([]byte("]"), 500)...)
	if err := v.UnmarshalJSON(deep); err != nil || !bytes.Equal(v, deep) {
		t.Error(err)
	}
}
