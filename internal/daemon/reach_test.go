package daemon

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api"
)

// Where live text comes from follows from three things.
func TestWhereLive(t *testing.T) {
	for _, tc := range []struct {
		shared, connected, holds bool
		want                     string
	}{
		{false, false, false, api.LiveLocal},
		{false, true, false, api.LiveLocal},
		{true, true, false, api.LiveBus},
		{true, true, true, api.LiveBus},
		{true, false, true, api.LiveLocal},
		{true, false, false, api.LiveNone},
	} {
		if got := whereLive(tc.shared, tc.connected, func() bool { return tc.holds }); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}
