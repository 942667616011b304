package config

import (
	"testing"
	"time"
)

// The first override that fits holds, by whole origins and whole segments of paths.
func TestOverrides(t *testing.T) {
	targets := Targets{Overrides: []TargetOverride{
		{TargetID: "tgt_1", MaxAttempts: 1}, {Origin: "https://A.example", PathPrefix: "/hooks/", MaxAttempts: 2}, {Origin: "https://a.example", MaxAttempts: 3},
		{Origin: "http://[::1]:8080", MaxAttempts: 4},
	}}
	for _, row := range []struct {
		id, address string
		want        int // 0: none
	}{
		{"tgt_1", "https://b.example/", 1}, {"tgt_1", "https://a.example/hooks", 1}, {"tgt_2", "https://a.example/hooks", 2},
		{"tgt_2", "https://a.example:443/hooks/x?y", 2}, {"tgt_2", "https://a.example/hooksy", 3}, {"tgt_2", "HTTPS://a.EXAMPLE", 3},
		{"tgt_2", "http://a.example/", 0}, {"tgt_2", "https://a.example:8443/", 0}, {"tgt_2", "https://a.example.org/", 0}, {"tgt_2", "http://[::1]:8080/x", 4},
		{"tgt_2", "", 0}, {"tgt_2", "://", 0},
	} {
		got := 0
		if o := targets.Override(row.id, row.address); o != nil {
			got = o.MaxAttempts
		}
		if got != row.want {
			t.Errorf("%s %s: override %d, want %d", row.id, row.address, got, row.want)
		}
	}
	all := DeliveryRules{MaxAttempts: 7, Timeout: Duration(time.Second), RetryStatuses: []int{404}, Circuit: Circuit{Failures: 9}}
	got := all.With(DeliveryRules{MaxAttempts: 2, Circuit: Circuit{Cooldown: 5}})
	if got.MaxAttempts != 2 || got.Timeout != Duration(time.Second) || len(got.RetryStatuses) != 1 || got.Circuit.Failures != 9 || got.Circuit.Cooldown != 5 {
		t.Errorf("%+v", got)
	}
}
