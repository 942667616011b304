package secret

import (
	"context"
	"fmt"
	"log/slog"
)

// LogHandler takes every known secret out of log lines, whatever put it there:
// the text of an error of a library, say.
type LogHandler struct {
	to    slog.Handler
	known *Known
}

var _ slog.Handler = (*LogHandler)(nil)

// NewLogHandler stands before a handler.
func NewLogHandler(to slog.Handler, known *Known) *LogHandler { return &LogHandler{to, known} }

// Enabled implements slog.Handler.
func (h *LogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *LogHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.known.Scrub(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.to.Handle(ctx, out)
}

// WithAttrs implements slog.Handler.
func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return &LogHandler{h.to.WithAttrs(clean), h.known}
}

// WithGroup implements slog.Handler.
func (h *LogHandler) WithGroup(name string) slog.Handler {
	return &LogHandler{h.to.WithGroup(name), h.known}
}

func (h *LogHandler) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.known.Scrub(v.String()))
	case slog.KindGroup:
		list := v.Group()
		clean := make([]slog.Attr, len(list))
		for i, m := range list {
			clean[i] = h.attr(m)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindAny:
		// Only what holds a secret loses its form.
		var text string
		if err, ok := v.Any().(error); ok {
			text = err.Error()
		} else {
			text = fmt.Sprintf("%+v", v.Any())
		}
		if clean := h.known.Scrub(text); clean != text {
			return slog.String(a.Key, clean)
		}
	}
	return slog.Attr{Key: a.Key, Value: v}
}
