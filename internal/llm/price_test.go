package llm

import (
	"math"
	"testing"
)

func TestCost(t *testing.T) {
	p := Price{Input: 2, Output: 10, CacheRead: 0.5, CacheWrite: 3}
	for _, row := range []struct {
		u    Usage
		want float64
	}{
		{Usage{}, 0},
		{Usage{Input: 1_000_000}, 2},
		{Usage{Output: 1_000_000, Reasoning: 900_000}, 10}, // reasoning is part of the output
		{Usage{Input: 1_000_000, CacheRead: 600_000, CacheWrite: 100_000}, 0.3*2 + 0.6*0.5 + 0.1*3},
		{Usage{Input: 10, CacheRead: 1_000_000}, 0.5}, // no vendor's slip gives money back
	} {
		if got := p.Cost(&row.u); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%+v costs %v, want %v", row.u, got, row.want)
		}
	}
}
