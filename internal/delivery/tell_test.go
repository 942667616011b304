package delivery_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// The log tells once when a delivery is tried no more, and when a receiver is left
// alone or answers again.
func TestTheLogTellsWhatWaitsForAPerson(t *testing.T) {
	for name, v := range map[string]struct {
		result delivery.Result
		want   []string
	}{
		"in trouble": {delivery.Result{Code: "http_503", Status: 503}, []string{
			`msg="the receiver keeps failing and is left alone for a while"`, `msg="a delivery is a dead letter: it is not tried again until it is replayed"`, `run_id=run_`, `attempts=4 code=http_503`, `msg="the receiver answers again"`,
		}},
		"gone": {delivery.Result{Code: "http_410", Status: 410, Permanent: true, Gone: true}, []string{
			`msg="a delivery is a dead letter`, `attempts=1 code=http_410`, `msg="the receiver says that it is gone: nothing is sent to it until its target is resumed"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(_ context.Context, m delivery.Message, _ int) delivery.Result {
					if m.ID == "dlv_1" {
						return v.result
					}
					return taken
				})
				defer p.close()
				var log bytes.Buffer
				p.open(func(c *delivery.Config) {
					c.Logger = slog.New(slog.NewTextHandler(&log, nil))
					c.Rules = rules(outbox.Rules{MaxAttempts: 4, InitialBackoff: time.Second, Factor: 1, MaxBackoff: time.Second, Threshold: 3, Cooldown: time.Minute})
				})
				p.enqueue(urlA, "dlv_1")
				p.enqueue(urlA, "dlv_2")
				rest(time.Hour)
				p.kill()
				text := log.String()
				if n := strings.Count(text, "is a dead letter"); n != 1 {
					t.Errorf("it is told %d times: %s", n, text)
				}
				for _, want := range v.want {
					if !strings.Contains(text, want) {
						t.Errorf("%s is not told: %s", want, text)
					}
				}
			})
		})
	}
}
