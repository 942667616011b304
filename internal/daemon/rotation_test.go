package daemon

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// Of a slot that is rotated the secret before signs beside the new one for 24 hours,
// to the second, and no longer, as a receiver with either of them sees it.
func TestBothSecretsSignForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := sqlite.Open(context.Background(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		key, err := seal.NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		room := slots.New(slots.Config{Store: store, Ring: seal.NewRing(key), FormerFor: (&config.Config{}).Slots.FormerFor.Or(0)})
		w := &ways{cfg: &config.Config{}, secrets: room.Use}
		target := &event.ReplyTarget{Type: event.TargetWebhook, Secret: "hook"}
		var secrets []string
		rotate := func() {
			t.Helper()
			text, err := webhook.NewSecret(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			secrets = append(secrets, text)
			if _, err := room.Set(t.Context(), slots.Setting{Owner: "ann", Name: "hook", Value: secret.New(text)}); err != nil {
				t.Fatal(err)
			}
		}
		// signs holds a delivery of now against each secret, the oldest first.
		signs := func(when string, want ...bool) {
			t.Helper()
			keys, trouble := w.keys(t.Context(), "ann", target)
			if trouble.Code != "" {
				t.Fatalf("%s: %+v", when, trouble)
			}
			at, body := time.Now(), []byte("{}")
			header := http.Header{}
			header.Set("webhook-id", "dlv_1")
			header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
			header.Set("webhook-signature", webhook.Signatures(keys, "dlv_1", at, body))
			for i, text := range secrets {
				receiver, err := standardwebhooks.NewWebhook(text)
				if err != nil {
					t.Fatal(err)
				}
				if got := receiver.Verify(body, header) == nil; got != want[i] {
					t.Errorf("%s: secret %d signs: %t, want %t", when, i, got, want[i])
				}
			}
		}
		rotate()
		signs("at first", true)
		rotate()
		signs("after a rotation", true, true)
		time.Sleep(12 * time.Hour)
		rotate()
		signs("after another", true, true, true)
		time.Sleep(12*time.Hour - time.Second)
		if err := room.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		signs("a second before a day is over", true, true, true)
		time.Sleep(2 * time.Second)
		signs("a day after the first rotation", false, true, true)
		time.Sleep(12 * time.Hour)
		signs("a day after the second", false, false, true)
		if err := room.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		signs("once they are deleted", false, false, true)
	})
}
