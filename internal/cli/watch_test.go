package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A watch shows what there is until it is interrupted; a failure in between does
// not end it, one at the beginning does.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs}
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		n := 0
		show := func(context.Context) error {
			if n++; n == 2 {
				return errors.New("away")
			}
			fmt.Fprintf(a.out, "seen %d\n", n)
			return nil
		}
		if err := a.watch(ctx, &watchFlags{on: true, every: 2 * time.Second}, show); err != nil {
			t.Error(err)
		}
		if out.String() != "seen 1\n\nseen 3\n\nseen 4\n" || errs.String() != "holdfast: away\n" {
			t.Errorf("%q %q", out.String(), errs.String())
		}
		if err := a.watch(t.Context(), &watchFlags{on: true, every: time.Second}, func(context.Context) error { return errors.New("no") }); err == nil {
			t.Error("a watch that could not begin went on")
		}
		var usage usageError
		if err := a.watch(t.Context(), &watchFlags{on: true, every: time.Millisecond}, show); !errors.As(err, &usage) {
			t.Errorf("an interval of a millisecond: %v", err)
		}
	})
}
