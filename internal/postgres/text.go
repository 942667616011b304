package postgres

import (
	"reflect"
	"strings"
	"unicode/utf8"
)

// PostgreSQL's text has no NUL and nothing that is not UTF-8, and SQLite's has
// both. So that a session fares the same on each (C90), what it cannot hold is
// written behind a mark, and the mark itself too. What is usual stays as it is.
// The log itself is bytes, which need no mark.
const mark = '\x01'

const hexDigits = "0123456789abcdef"

// toText writes a string so that text can hold it. Different strings stay different.
func toText(s string) string {
	if strings.IndexByte(s, 0) < 0 && strings.IndexByte(s, mark) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if s[i] == 0 || s[i] == mark || r == utf8.RuneError && size == 1 {
			b.WriteByte(mark)
			b.WriteByte(hexDigits[s[i]>>4])
			b.WriteByte(hexDigits[s[i]&15])
			i++
			continue
		}
		b.WriteString(s[i : i+size])
		i += size
	}
	return b.String()
}

// fromText reads what toText wrote. What it did not write is left as it is.
func fromText(s string) string {
	if strings.IndexByte(s, mark) < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == mark && i+2 < len(s) {
			high, low := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
			if high >= 0 && low >= 0 {
				b = append(b, byte(high<<4|low))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// toTexts makes arguments such as text can hold.
func toTexts(args []any) []any {
	for i, a := range args {
		switch v := a.(type) {
		case string:
			args[i] = toText(v)
		case []string:
			for j := range v {
				v[j] = toText(v[j])
			}
		}
	}
	return args
}

// fromTexts reads what was scanned into strings, of whatever type.
func fromTexts(dest []any) {
	for _, d := range dest {
		switch p := d.(type) {
		case *string:
			*p = fromText(*p)
		case *[]string:
			for i := range *p {
				(*p)[i] = fromText((*p)[i])
			}
		case *int64, *int, *[]byte, *bool:
		default:
			if v := reflect.ValueOf(d).Elem(); v.Kind() == reflect.String {
				if s := v.String(); strings.IndexByte(s, mark) >= 0 {
					v.SetString(fromText(s))
				}
			}
		}
	}
}
