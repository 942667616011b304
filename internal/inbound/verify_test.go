package inbound_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/webhook"
	"pgregory.net/rapid"
)

var now = time.Unix(1_800_000_000, 0)

const (
	secret   = "a-secret-of-the-sender"
	standard = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

func sum(secret string, parts ...string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		mac.Write([]byte(p))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// verifyStandard is what the daemon wires in.
func verifyStandard(h http.Header, body []byte, secret string, now time.Time, tolerance time.Duration) error {
	key, err := webhook.ParseSecret(secret)
	if err != nil {
		return err
	}
	return webhook.Verify(h, body, key, now, tolerance)
}

// signed gives the headers with which a sender of a kind signs a body.
func signed(auth inbound.Auth, body string, at time.Time) http.Header {
	h, stamp := http.Header{}, strconv.FormatInt(at.Unix(), 10)
	switch auth {
	case inbound.AuthBearer:
		h.Set("Authorization", "Bearer "+secret)
	case inbound.AuthGitHub:
		h.Set("X-Hub-Signature-256", "sha256="+sum(secret, body))
	case inbound.AuthSlack:
		h.Set("X-Slack-Request-Timestamp", stamp)
		h.Set("X-Slack-Signature", "v0="+sum(secret, "v0:", stamp, ":", body))
	case inbound.AuthStandard:
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(standard, "whsec_"))
		if err != nil {
			panic(err)
		}
		h.Set("webhook-id", "msg_1")
		h.Set("webhook-timestamp", stamp)
		h.Set("webhook-signature", webhook.Sign("msg_1", at, []byte(body), key))
	}
	return h
}

var sealing = []inbound.Auth{inbound.AuthBearer, inbound.AuthGitHub, inbound.AuthSlack, inbound.AuthStandard}

// secretsOf gives two secrets of a connector, the newer one first.
func secretsOf(auth inbound.Auth) []string {
	if auth == inbound.AuthStandard {
		return []string{"whsec_" + base64.StdEncoding.EncodeToString([]byte("the newer one, of 24 bytes")), standard}
	}
	return []string{"the newer secret", secret}
}

func TestSendersAreBelieved(t *testing.T) {
	const body = `{"id":1}`
	for _, auth := range sealing {
		verify := func(h http.Header, body string, secrets ...string) error {
			return auth.Verify(h, []byte(body), secrets, now, 5*time.Minute, verifyStandard)
		}
		h := signed(auth, body, now)
		secrets := secretsOf(auth)
		if err := verify(h, body, secrets...); err != nil {
			t.Errorf("%s: %v", auth, err)
		}
		if err := auth.Glance(h, now, 0); err != nil {
			t.Errorf("%s at a glance: %v", auth, err)
		}
		if err := auth.Glance(http.Header{}, now, 0); (err != nil) != auth.Sealed() {
			t.Errorf("%s without headers at a glance: %v", auth, err)
		}
		if err := verify(h, body, secrets[1]); err != nil {
			t.Errorf("%s with one secret: %v", auth, err)
		}
		for name, err := range map[string]error{
			"no secret":        verify(h, body),
			"an empty secret":  verify(h, body, ""),
			"another secret":   verify(h, body, secrets[0]),
			"no headers":       verify(http.Header{}, body, secrets...),
			"another's scheme": verify(signed(sealing[(int(auth[0])+1)%4], body, now), body, secrets[0]),
		} {
			var r inbound.Refused
			if !errors.As(err, &r) {
				t.Errorf("%s: %s: %v", auth, name, err)
			}
		}
		// An empty secret signs nothing that counts.
		if err := auth.Verify(http.Header{"Authorization": {"Bearer "}, "X-Hub-Signature-256": {"sha256=" + sum("", body)},
			"X-Slack-Signature":         {"v0=" + sum("", "v0:", strconv.FormatInt(now.Unix(), 10), ":", body)},
			"X-Slack-Request-Timestamp": {strconv.FormatInt(now.Unix(), 10)}}, []byte(body), []string{"", ""}, now, 0, verifyStandard); err == nil {
			t.Errorf("%s: an empty secret counts", auth)
		}
		if auth == inbound.AuthBearer {
			continue
		}
		if err := verify(h, body+" ", secrets...); err == nil {
			t.Errorf("%s: another body is believed", auth)
		}
		for name := range h {
			double := h.Clone()
			double.Add(name, h.Get(name))
			if err := verify(double, body, secrets...); err == nil {
				t.Errorf("%s: %s twice is believed", auth, name)
			}
		}
	}
}

// A signature with a time counts for five minutes, in both directions.
func TestSignaturesAge(t *testing.T) {
	for _, auth := range []inbound.Auth{inbound.AuthSlack, inbound.AuthStandard} {
		for offset, good := range map[time.Duration]bool{
			0: true, 300 * time.Second: true, -300 * time.Second: true, 301 * time.Second: false, -301 * time.Second: false, 24 * 365 * time.Hour: false,
		} {
			h := signed(auth, "{}", now.Add(offset))
			if err := auth.Verify(h, []byte("{}"), secretsOf(auth), now, inbound.DefaultMaxAge, verifyStandard); (err == nil) != good {
				t.Errorf("%s, %s away: %v", auth, offset, err)
			}
			if err := auth.Glance(h, now, inbound.DefaultMaxAge); (err == nil) != good {
				t.Errorf("%s, %s away, at a glance: %v", auth, offset, err)
			}
		}
	}
	for _, stamp := range []string{"", "+1800000000", "01800000000", "1800000000.0", "9223372036854775807", "-9223372036854775808", "99999999999999999999", "now"} {
		h := http.Header{"X-Slack-Request-Timestamp": {stamp}, "X-Slack-Signature": {"v0=" + sum(secret, "v0:", stamp, ":", "{}")}}
		if err := inbound.AuthSlack.Verify(h, []byte("{}"), []string{secret}, now, 0, nil); err == nil {
			t.Errorf("the timestamp %q is believed", stamp)
		}
	}
}

// The examples of the vendors' documents.
func TestVendorVectors(t *testing.T) {
	h := http.Header{"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}}
	if err := inbound.AuthGitHub.Verify(h, []byte("Hello, World!"), []string{"It's a Secret to Everybody"}, now, 0, nil); err != nil {
		t.Errorf("GitHub: %v", err)
	}
	h = http.Header{"X-Slack-Request-Timestamp": {"1531420618"}, "X-Slack-Signature": {"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}}
	body := "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
	if err := inbound.AuthSlack.Verify(h, []byte(body), []string{"8f742231b10e8888abcd99yyyzzz85a5"}, time.Unix(1531420618, 0), 0, nil); err != nil {
		t.Errorf("Slack: %v", err)
	}
}

// One changed byte of body, signature or time is one too many.
func TestTamperedIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		auth := rapid.SampledFrom(sealing).Draw(t, "auth")
		body := rapid.String().Draw(t, "body")
		h := signed(auth, body, now)
		if err := auth.Verify(h, []byte(body), secretsOf(auth), now, 0, verifyStandard); err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range h {
			names = append(names, name)
		}
		name := rapid.SampledFrom(names).Draw(t, "header")
		value := []byte(h.Get(name))
		from := 0
		if auth == inbound.AuthBearer {
			from = len("Bearer ") // a scheme may be written in any case
		}
		value[rapid.IntRange(from, len(value)-1).Draw(t, "at")] ^= rapid.ByteRange(1, 255).Draw(t, "flip")
		h.Set(name, string(value))
		if err := auth.Verify(h, []byte(body), secretsOf(auth), now, 0, verifyStandard); err == nil {
			t.Fatalf("%s: %s: %q is believed", auth, name, value)
		}
	})
}

func TestBucket(t *testing.T) {
	b := inbound.Bucket{Rate: 2, Burst: 3}
	at, took := now, 0
	for range 10 {
		if b.Take(at) {
			took++
		}
	}
	if took != 3 {
		t.Errorf("%d at once, want 3", took)
	}
	if at = at.Add(500 * time.Millisecond); !b.Take(at) || b.Take(at) {
		t.Error("half a second is not one event")
	}
	if b.Take(at.Add(-time.Hour)) {
		t.Error("a clock that goes back gives events")
	}
	at = at.Add(time.Hour)
	for took = 0; b.Take(at); took++ {
	}
	if took != 3 {
		t.Errorf("%d after an hour, want 3", took)
	}
}
