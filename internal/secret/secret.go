// Package secret is what the house knows of secrets wherever they are used: how
// one is asked for, which hosts it may be sent to, and how it is taken out of
// texts that others wrote. It holds none and stores none.
package secret

import (
	"context"
	"fmt"
	"log/slog"
)

// Resolve gives the values of a secret by its name: the current one first, then
// those before it that still count after a rotation. host is where it is about
// to be sent, as host:port (see HostOf); empty means that it is not sent at all,
// as a key that only signs. A secret that is not bound to the host is refused
// with the code secret_not_for_host before its value is opened, an unknown name
// with unknown_secret; both are *problem.Error. No error holds a value.
type Resolve func(ctx context.Context, name, host string) ([]string, error)

// Value is a secret in a variable: however it is printed, logged or encoded,
// it says [redacted]. Reveal is the one way to the text.
type Value struct{ text string }

// New makes a Value of a text.
func New(text string) Value { return Value{text} }

// Reveal gives the text itself.
func (v Value) Reveal() string { return v.text }

// IsZero says whether there is no text.
func (v Value) IsZero() bool { return v.text == "" }

// String says [redacted], so that a print tells nothing.
func (v Value) String() string { return Redacted }

// GoString says [redacted], also for %#v.
func (v Value) GoString() string { return Redacted }

// Format says [redacted] for every verb.
func (v Value) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(Redacted)) }

// MarshalText says [redacted]: JSON, YAML and maps of such keys use it.
func (v Value) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON says [redacted].
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// LogValue says [redacted].
func (v Value) LogValue() slog.Value { return slog.StringValue(Redacted) }
