package daemon

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// After a rotation both secrets sign, so that a receiver that has either verifies.
func TestBothSecretsSign(t *testing.T) {
	const now, before = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const key = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	var values []string
	var trouble error
	w := &ways{cfg: &config.Config{}, secrets: func(_ context.Context, _, name, host string) ([]string, error) {
		if name != "hook" || host != "" { // it signs and is not sent
			t.Errorf("asked for %s, to be sent to %q", name, host)
		}
		return values, trouble
	}}
	target := &event.ReplyTarget{Type: event.TargetWebhook, Secret: "hook"}
	values = []string{now, before}
	keys, r := w.keys(t.Context(), "", target)
	if r.Code != "" || len(keys) != 2 {
		t.Fatalf("%d keys, %+v", len(keys), r)
	}
	at, body := time.Now(), []byte("{}")
	header := http.Header{}
	header.Set("webhook-id", "dlv_1")
	header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	header.Set("webhook-signature", webhook.Signatures(keys, "dlv_1", at, body))
	for _, secret := range values {
		oracle, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := oracle.Verify(body, header); err != nil {
			t.Error(err)
		}
	}
	for name, row := range map[string]struct {
		values  []string
		err     error
		signing string
		keys    int
		code    string
	}{
		"from one kind to the other": {[]string{key, now}, nil, event.SigningEd25519, 2, ""},
		"the one before was no key":  {[]string{now, "hunter2"}, nil, "", 1, ""},
		"the present one is none":    {[]string{"hunter2", now}, nil, "", 0, "secret_invalid"},
		"another kind than wanted":   {[]string{now}, nil, event.SigningEd25519, 0, "secret_invalid"},
		"a key where a secret is":    {[]string{key}, nil, "", 0, "secret_invalid"},
		"not there":                  {nil, errors.New("the environment variable X is not set"), "", 0, "secret_unavailable"},
	} {
		values, trouble = row.values, row.err
		target.Signing = row.signing
		keys, r := w.keys(t.Context(), "", target)
		if len(keys) != row.keys || r.Code != row.code || r.Permanent {
			t.Errorf("%s: %d keys, %+v", name, len(keys), r)
		}
	}
}

// What a session says to an answer: its word, or trouble that passes.
func TestRefusedBy(t *testing.T) {
	for _, row := range []struct {
		err       error
		code      string
		permanent bool
	}{
		{problem.New(problem.Invalid, admission.CodeInputContract, "$: want a number"), "contract_violated", true},
		{problem.New(problem.Conflict, admission.CodeHops, "x"), "refused_hop_limit", true},
		{problem.New(problem.Conflict, "session_closed", "x"), "refused_session_closed", true},
		{problem.New(problem.Gone, "session_erased", "x"), "refused_session_erased", true},
		{problem.New(problem.Limited, "queue_full", "x"), "throttled_queue_full", false},
		{problem.New(problem.Conflict, "session_busy", "x"), "throttled_session_busy", false},
		{problem.New(problem.Unavailable, "store_unavailable", "x"), "server_store_unavailable", false},
		{problem.New(problem.Conflict, "secret_unavailable", "x"), "server_secret_unavailable", false}, // its fallback waits for a slot
		{errors.New("anything"), "server_internal", false},
	} {
		if r := refusedBy(problem.Of(row.err)); r.Delivered || r.Code != row.code || r.Permanent != row.permanent {
			t.Errorf("%v: %+v", row.err, r)
		}
	}
}

// Whether a URL in a secret may go to its host is asked with that host.
func TestSecretAddress(t *testing.T) {
	var asked []string
	w := &ways{cfg: &config.Config{}, secrets: func(_ context.Context, _, name, host string) ([]string, error) {
		asked = append(asked, host)
		if host == "evil.test:443" {
			return nil, problem.New(problem.Forbidden, "secret_not_for_host", "the secret is bound to other hosts")
		}
		return []string{map[string]string{"good": "https://Hooks.test/hunter2", "bad": "https://evil.test/hunter2"}[name]}, nil
	}}
	u, err := w.address(t.Context(), "", &event.ReplyTarget{Type: event.TargetWebhook, URLSecret: "good"})
	if err != nil || u.String() != "https://Hooks.test/hunter2" || len(asked) != 2 || asked[1] != "hooks.test:443" {
		t.Errorf("%v, %v, asked for %q", u, err, asked)
	}
	if _, err := w.address(t.Context(), "", &event.ReplyTarget{Type: event.TargetWebhook, URLSecret: "bad"}); !problem.Is(err, "secret_not_for_host") {
		t.Error(err)
	}
}
