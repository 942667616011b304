// Package words has the words of the command line that several commands use: times
// and numbers as people read them, and others' texts so that they steer no terminal.
package words

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Stamp is a time as a table shows it.
func Stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// Clean keeps what a model or a tool wrote from steering the terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, s)
}

// Short cuts a value for one line.
func Short(s string) string {
	return Cut(s, 100)
}

// Cut cuts a text after a number of runes.
func Cut(s string, limit int) string {
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

// Count is a number of things: "1 route", "2 routes".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Plural is Count for things that do not add an s.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Soon is how long there is until a time.
func Soon(at *time.Time) string {
	if at == nil {
		return "-"
	}
	d := time.Until(*at).Round(time.Second)
	if d <= 0 {
		return "now"
	}
	return "in " + d.String()
}

// InvalidUTF8 gives the byte at which a text stops being UTF-8; -1: it is.
func InvalidUTF8(text string) int {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD") {
			return i
		}
	}
	return -1
}
