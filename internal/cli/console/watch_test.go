package console

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
		a := &App{Out: &out, Err: &errs}
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		n := 0
		show := func(context.Context) error {
			if n++; n == 2 {
				return errors.New("away")
			}
			fmt.Fprintf(a.Out, "seen %d\n", n)
			return nil
		}
		if err := a.Watch(ctx, &WatchFlags{on: true, every: 2 * time.Second}, show); err != nil {
			t.Error(err)
		}
		if out.String() != "seen 1\n\nseen 3\n\nseen 4\n" || errs.String() != "holdfast: away\n" {
			t.Errorf("%q %q", out.String(), errs.String())
		}
		if err := a.Watch(t.Context(), &WatchFlags{on: true, every: time.Second}, func(context.Context) error { return errors.New("no") }); err == nil {
			t.Error("a watch that could not begin went on")
		}
		var usage UsageError
		if err := a.Watch(t.Context(), &WatchFlags{on: true, every: time.Millisecond}, show); !errors.As(err, &usage) {
			t.Errorf("an interval of a millisecond: %v", err)
		}
	})
}
