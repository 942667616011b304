package openaicompat

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
)

// Whatever counts a server sends, none that it is told by falls below zero (I-29).
func TestHugeUsageStaysPositive(t *testing.T) {
	huge := []int64{0, 1, 5, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64, -1, math.MinInt64 + 4}
	for _, in := range huge {
		for _, out := range huge {
			for _, thought := range huge {
				for _, total := range append(slices.Clone(huge), in+out+thought) {
					raw := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"completion_tokens_details":{"reasoning_tokens":%d}}`, in, out, total, thought)
					var u usage
					if err := json.Unmarshal([]byte(raw), &u); err != nil {
						t.Fatal(err)
					}
					if got := u.tokens(); got != nil && min(got.Input, got.Output, got.Reasoning) < 0 {
						t.Errorf("%s: %+v", raw, got)
					}
				}
			}
		}
	}
}
