package storecore

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// OptionalTime is the stored form of a time that may be none.
func OptionalTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return event.FormatTime(t)
}

// ParseOptional reads it.
func ParseOptional(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return event.ParseTime(s)
}
