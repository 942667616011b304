package apitest

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/slots"
)

// SlotsOf is a room of secrets whose key is the same in every telling.
func SlotsOf(t testing.TB, store eventlog.Secrets) *slots.Room {
	t.Helper()
	k, err := seal.ParseKey(strings.Repeat("A", 43))
	if err != nil {
		t.Fatal(err)
	}
	return slots.New(slots.Config{Store: store, Ring: seal.NewRing(k), DefaultUser: admission.DefaultUser, PerOwner: 3,
		Named:    map[string]slots.Named{"configured": {}},
		Generate: func() (string, error) { return "whsec_" + rand.Text(), nil }})
}
