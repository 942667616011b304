package secret

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// I-33: whatever puts a known secret into a log line, it does not stand there.
func TestLogHandler(t *testing.T) {
	const value = `hunter2/hunter2+"x`
	var known Known
	known.Add(value)
	for _, make := range []func(*bytes.Buffer) slog.Handler{
		func(b *bytes.Buffer) slog.Handler {
			return slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
		func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var out bytes.Buffer
		log := slog.New(NewLogHandler(make(&out), &known))
		log = log.With("with", "a "+value).WithGroup("g").With(slog.Group("in", "deep", value))
		log.Info("message "+value, "err", fmt.Errorf("wrapped: %w", errors.New(value)), "any", struct{ A string }{value}, "n", 7,
			slog.Group("group", "text", value, "list", []string{"x", value}), "lazy", New(value), "kept", struct{ A int }{3})
		log.Debug("not here at info")
		text := out.String()
		for form, echo := range echoes(value) {
			if strings.Contains(text, echo) {
				t.Errorf("%s: %s", form, text)
			}
		}
		if n := strings.Count(text, Redacted); n < 8 || !strings.Contains(text, "7") || !strings.Contains(text, "message ") {
			t.Errorf("%d places: %s", n, text)
		}
	}
}
