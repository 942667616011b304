package llm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"pgregory.net/rapid"
)

// C43: which classes another attempt may help.
func TestRetryable(t *testing.T) {
	for class, want := range map[llm.Class]bool{
		llm.RateLimit: true, llm.Overloaded: true, llm.Transport: true, llm.Truncated: true, llm.Server: true,
		llm.UnknownClass: true, llm.Abandoned: true,
		llm.Auth: false, llm.Billing: false, llm.InvalidRequest: false, llm.ContentFilter: false, llm.ContextOverflow: false,
		llm.Aborted: false, "": false, "new": false,
	} {
		if class.Retryable() != want {
			t.Errorf("%q: retryable %v", class, !want)
		}
	}
}

// The text of a foreign error may hold anything; it is no message (I-33).
func TestForeignErrorsKeepTheirText(t *testing.T) {
	cause := errors.New("Authorization: Bearer x")
	e := llm.AsError(fmt.Errorf("post: %w", cause))
	if e.Class != llm.UnknownClass || strings.Contains(e.Error(), "Bearer") || !errors.Is(e, cause) {
		t.Errorf("%v", e)
	}
	own := llm.Errorf(llm.RateLimit, "slow down, %d", 3)
	if got := llm.AsError(fmt.Errorf("attempt: %w", own)); got != own || got.Error() != "rate_limit: slow down, 3" {
		t.Errorf("%v", got)
	}
	if with := own.Because(cause); !errors.Is(with, cause) || errors.Is(own, cause) || with.Error() != own.Error() {
		t.Error("the cause is not private to the copy")
	}
}

// Unknown is not zero: it swallows every sum.
func TestUsageAdds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		usage := rapid.Ptr(rapid.Custom(func(t *rapid.T) llm.Usage {
			n := rapid.Int64Range(0, 1<<40)
			return llm.Usage{CacheRead: n.Draw(t, "r"), CacheWrite: n.Draw(t, "w"), Input: n.Draw(t, "i"), Output: n.Draw(t, "o"), Reasoning: n.Draw(t, "t")}
		}), true)
		a, b := usage.Draw(t, "a"), usage.Draw(t, "b")
		sum := a.Add(b)
		if a == nil || b == nil {
			if sum != nil {
				t.Fatal("an unknown usage was taken for zero")
			}
			return
		}
		if *sum != *b.Add(a) || sum.Input != a.Input+b.Input || sum.Output != a.Output+b.Output || sum.Reasoning != a.Reasoning+b.Reasoning ||
			sum.CacheRead != a.CacheRead+b.CacheRead || sum.CacheWrite != a.CacheWrite+b.CacheWrite {
			t.Fatalf("%+v and %+v give %+v", a, b, sum)
		}
	})
}
