package canonjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Parse reads exactly one strict JSON value. Its error is a [*SyntaxError].
// The text may be changed afterwards: nothing of it is kept.
func Parse(text []byte, lim Limits) (Node, error) {
	lim = lim.orDefault()
	if len(text) > lim.Bytes {
		return Node{}, tooLarge(lim)
	}
	return parse(text, string(text), lim)
}

// ParseString is [Parse] for a string; the result may share its memory.
func ParseString(text string, lim Limits) (Node, error) {
	lim = lim.orDefault()
	if len(text) > lim.Bytes {
		return Node{}, tooLarge(lim)
	}
	return parse([]byte(text), text, lim)
}

func tooLarge(lim Limits) *SyntaxError {
	return &SyntaxError{
		Path:   "$",
		Offset: int64(lim.Bytes),
		Msg:    fmt.Sprintf("not a single strict JSON value: larger than %d bytes", lim.Bytes),
	}
}

// parse wants the same text twice: the tokenizer reads bytes, the nodes point
// into the string.
func parse(buf []byte, text string, lim Limits) (Node, error) {
	p := parser{
		// Names are compared after sorting, which has to be done anyway.
		dec:  jsontext.NewDecoder(bytes.NewBuffer(buf), jsontext.AllowDuplicateNames(true)),
		text: text,
		lim:  lim,
	}
	n, f := p.value(0)
	if f == nil {
		f = p.end()
	}
	if f != nil {
		return Node{}, f.syntaxError()
	}
	return n, nil
}

type parser struct {
	dec    *jsontext.Decoder
	text   string
	lim    Limits
	tokens int
	stack  []Node // children of the containers that are still open
}

// fault is an error on its way out: each level adds its step.
type fault struct {
	offset   int64
	msg      string
	repeated bool
	trail    Trail
}

func (f *fault) syntaxError() *SyntaxError {
	path := f.trail.String()
	if f.repeated {
		return &SyntaxError{Path: path, Offset: f.offset, Msg: f.msg}
	}
	msg := "not a single strict JSON value: " + f.msg
	if path != "$" {
		msg += " in " + path
	}
	return &SyntaxError{Path: "$", Offset: f.offset, Msg: msg + " at byte " + strconv.FormatInt(f.offset, 10)}
}

func (p *parser) fault(msg string) *fault { return &fault{offset: p.dec.InputOffset(), msg: msg} }

// refused turns an error of the tokenizer into a fault.
func (p *parser) refused(err error) *fault {
	f := p.fault("")
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF):
		f.msg = "there is no value"
	case errors.Is(err, io.ErrUnexpectedEOF):
		f.offset, f.msg = int64(len(p.text)), "the text ends too early"
	case errors.As(err, &syntactic):
		f.offset = syntactic.ByteOffset
		f.msg = safeName(syntactic.Err.Error())
	default:
		f.msg = safeName(err.Error())
	}
	return f
}

func (p *parser) count() *fault {
	if p.tokens++; p.tokens > p.lim.Tokens {
		return p.fault(fmt.Sprintf("more than %d tokens", p.lim.Tokens))
	}
	return nil
}

// end checks that only white space is left. The tokenizer need not say what a
// second value would be.
func (p *parser) end() *fault {
	rest := strings.TrimLeft(p.text[p.dec.InputOffset():], " \t\r\n")
	if rest == "" {
		return nil
	}
	return &fault{offset: int64(len(p.text) - len(rest)), msg: "text after the value"}
}

func (p *parser) value(depth int) (Node, *fault) {
	if f := p.count(); f != nil {
		return Node{}, f
	}
	kind := p.dec.PeekKind()
	switch kind {
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		if depth >= p.lim.Depth {
			return Node{}, p.fault(fmt.Sprintf("nested deeper than %d levels", p.lim.Depth))
		}
		if _, err := p.dec.ReadToken(); err != nil {
			return Node{}, p.refused(err)
		}
		off := int32(p.dec.InputOffset() - 1)
		kids, f := p.children(kind, depth+1)
		if f != nil {
			return Node{}, f
		}
		if kind == jsontext.KindBeginArray {
			return Node{kind: Array, off: off, kids: kids}, nil
		}
		return Node{kind: Object, off: off, kids: kids}, nil
	}
	raw, off, f := p.scalar()
	if f != nil {
		return Node{}, f
	}
	n := Node{off: off}
	switch kind {
	case jsontext.KindString:
		n.kind, n.text = String, p.unquote(raw)
	case jsontext.KindNumber:
		text, ok := canonicalNumber(raw)
		if !ok {
			return Node{}, &fault{offset: int64(off), msg: "number out of range"}
		}
		n.kind, n.text = Number, text
	case jsontext.KindTrue, jsontext.KindFalse:
		n.kind, n.truth = Bool, kind == jsontext.KindTrue
	}
	return n, nil
}

// scalar reads the next string, number or literal as it is written.
func (p *parser) scalar() (raw string, off int32, f *fault) {
	v, err := p.dec.ReadValue()
	if err != nil {
		return "", 0, p.refused(err)
	}
	end := int(p.dec.InputOffset())
	start := end - len(v)
	return p.text[start:end], int32(start), nil
}

// children reads up to and with the end of the container.
func (p *parser) children(kind jsontext.Kind, depth int) ([]Node, *fault) {
	base := len(p.stack)
	sorted := true
	closing := jsontext.KindEndArray
	if kind == jsontext.KindBeginObject {
		closing = jsontext.KindEndObject
	}
	for p.dec.PeekKind() != closing {
		var name string
		var off int32
		if kind == jsontext.KindBeginObject {
			var f *fault
			if name, off, f = p.memberName(); f != nil {
				return nil, f
			}
		}
		i := len(p.stack) - base
		n, f := p.value(depth)
		if f != nil {
			if kind == jsontext.KindBeginObject {
				f.trail.Member(name)
			} else {
				f.trail.Element(i)
			}
			return nil, f
		}
		if kind == jsontext.KindBeginObject {
			n.name, n.off = name, off
			if last := len(p.stack) - 1; last >= base && CompareNames(p.stack[last].name, name) >= 0 {
				sorted = false
			}
		}
		p.stack = append(p.stack, n)
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return nil, p.refused(err)
	}
	if f := p.count(); f != nil {
		return nil, f
	}
	var kids []Node
	if len(p.stack) > base {
		kids = slices.Clone(p.stack[base:])
		p.stack = p.stack[:base]
	}
	if !sorted {
		return kids, sortMembers(kids)
	}
	return kids, nil
}

func (p *parser) memberName() (string, int32, *fault) {
	if f := p.count(); f != nil {
		return "", 0, f
	}
	if kind := p.dec.PeekKind(); kind != jsontext.KindString && kind != jsontext.KindInvalid {
		return "", 0, p.fault("a name must be a string")
	}
	raw, off, f := p.scalar()
	if f != nil {
		return "", 0, f
	}
	return p.unquote(raw), off, nil
}

// sortMembers sorts by name and refuses repeated names: the first repetition
// in the order of the text is the one reported.
func sortMembers(kids []Node) *fault {
	slices.SortFunc(kids, func(a, b Node) int {
		if c := CompareNames(a.name, b.name); c != 0 {
			return c
		}
		return int(a.off) - int(b.off)
	})
	repeated := -1
	for i := 1; i < len(kids); i++ {
		if kids[i].name == kids[i-1].name && (repeated < 0 || kids[i].off < kids[repeated].off) {
			repeated = i
		}
	}
	if repeated < 0 {
		return nil
	}
	k := &kids[repeated]
	f := &fault{offset: int64(k.off), repeated: true, msg: "duplicate field " + QuoteName(k.name)}
	f.trail.Member(k.name)
	return f
}

// unquote returns the content of a string that the tokenizer has checked.
func (p *parser) unquote(raw string) string {
	inner := raw[1 : len(raw)-1]
	if strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	content, _ := jsontext.AppendUnquote(make([]byte, 0, len(inner)), raw)
	return string(content)
}

// canonicalNumber returns the canonical text of a number that follows the
// grammar, and false when a double cannot hold it. The tokenizer is not asked:
// it would make the largest double of 1e400 and round 2^53+1.
func canonicalNumber(raw string) (string, bool) {
	if !strings.ContainsAny(raw, ".eE") {
		if raw == "-0" {
			return "0", true
		}
		return raw, true
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil || math.IsInf(f, 0) {
		return "", false
	}
	if f == 0 {
		return "0", true
	}
	var buf [32]byte
	b := jsontext.AppendFloat(buf[:0], f, 64)
	if string(b) == raw {
		return raw, true
	}
	return string(b), true
}
