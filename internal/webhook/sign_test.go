package webhook

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// vectorFile finds a shared test vector beside the repository.
func vectorFile(t *testing.T, parts ...string) []byte {
	t.Helper()
	shared := os.Getenv("HOLDFAST_SHARED")
	if shared == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				shared = filepath.Join(dir, "..", "shared")
				break
			}
			if dir == filepath.Dir(dir) {
				t.Fatal("no go.mod above the test")
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(append([]string{shared}, parts...)...))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the shared test vectors are not here; set HOLDFAST_SHARED")
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func signed(id, stamp, signature string) http.Header {
	h := http.Header{}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, stamp)
	h.Set(HeaderSignature, signature)
	return h
}

func TestVectors(t *testing.T) {
	var rows []struct {
		Secret, ID, Body, Signature string
		Timestamp                   int64
	}
	if err := json.Unmarshal(vectorFile(t, "vectors", "webhooks", "standard-webhooks.json"), &rows); err != nil {
		t.Fatal(err)
	}
	symmetric := 0
	for _, row := range rows {
		if !strings.HasPrefix(row.Signature, "v1,") {
			continue // see TestAsymmetricVectors
		}
		symmetric++
		secret, err := ParseSecret(row.Secret)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(row.Timestamp, 0)
		if got := Sign(row.ID, at, []byte(row.Body), secret); got != row.Signature {
			t.Errorf("%s: signed %s, want %s", row.ID, got, row.Signature)
		}
		h := signed(row.ID, strconv.FormatInt(row.Timestamp, 10), row.Signature)
		if err := Verify(h, []byte(row.Body), secret, at, 0); err != nil {
			t.Errorf("%s: %v", row.ID, err)
		}
	}
	if symmetric < 2 {
		t.Errorf("%d symmetric vectors, want 2 or more", symmetric)
	}
}

// I-26: the independent library of the standard agrees, in both directions.
func TestOracle(t *testing.T) {
	now := time.Now()
	for _, body := range []string{"", "{}", `{"a":"ü\n"}`, strings.Repeat("x", 100_000), "\x00\xff"} {
		text, err := NewSecret(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := ParseSecret(text)
		if err != nil {
			t.Fatal(err)
		}
		oracle, err := standardwebhooks.NewWebhook(text)
		if err != nil {
			t.Fatal(err)
		}
		stamp := strconv.FormatInt(now.Unix(), 10)
		if err := oracle.Verify([]byte(body), signed("dlv_1", stamp, Sign("dlv_1", now, []byte(body), secret))); err != nil {
			t.Errorf("oracle refuses ours: %v", err)
		}
		theirs, err := oracle.Sign("dlv_1", now, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(signed("dlv_1", stamp, theirs), []byte(body), secret, now, 0); err != nil {
			t.Errorf("ours refuses the oracle's: %v", err)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, 32)
	other := bytes.Repeat([]byte{8}, 32)
	now := time.Unix(1_700_000_000, 0)
	body := []byte(`{"a":1}`)
	good := Sign("dlv_1", now, body, secret)
	twice := signed("dlv_1", "1700000000", good)
	twice.Add(HeaderID, "dlv_2")
	for _, test := range []struct {
		name string
		h    http.Header
		body string
		now  time.Time
		want error
	}{
		{"good", signed("dlv_1", "1700000000", good), string(body), now, nil},
		{"rotation", signed("dlv_1", "1700000000", "v1a,xx "+Sign("dlv_1", now, body, other)+" "+good), string(body), now, nil},
		{"at the edge", signed("dlv_1", "1700000000", good), string(body), now.Add(5 * time.Minute), nil},
		{"old", signed("dlv_1", "1700000000", good), string(body), now.Add(5*time.Minute + time.Second), ErrTimestamp},
		{"future", signed("dlv_1", "1700000000", good), string(body), now.Add(-5*time.Minute - time.Second), ErrTimestamp},
		{"huge", signed("dlv_1", "9223372036854775807", good), string(body), now, ErrTimestamp},
		{"least", signed("dlv_1", "-9223372036854775808", good), string(body), now, ErrTimestamp},
		{"other body", signed("dlv_1", "1700000000", good), `{"a":2}`, now, ErrSignature},
		{"other id", signed("dlv_2", "1700000000", good), string(body), now, ErrSignature},
		{"other time", signed("dlv_1", "1700000001", good), string(body), now, ErrSignature},
		{"other secret", signed("dlv_1", "1700000000", Sign("dlv_1", now, body, other)), string(body), now, ErrSignature},
		{"other version", signed("dlv_1", "1700000000", "v2"+good[2:]), string(body), now, ErrSignature},
		{"empty signature entry", signed("dlv_1", "1700000000", "v1,"), string(body), now, ErrSignature},
		{"prefix", signed("dlv_1", "1700000000", good[:20]), string(body), now, ErrSignature},
		{"other form of the time", signed("dlv_1", "+1700000000", good), string(body), now, ErrHeaders},
		{"no time", signed("dlv_1", "", good), string(body), now, ErrHeaders},
		{"no header", http.Header{}, string(body), now, ErrHeaders},
		{"id twice", twice, string(body), now, ErrHeaders},
		// The same signed bytes, cut elsewhere.
		{"dot in id", signed("a.1699999999", "1700000000", Sign("a", time.Unix(1_699_999_999, 0), []byte("1700000000.5"), secret)), "5", now, ErrHeaders},
		{"long signature", signed("dlv_1", "1700000000", strings.Repeat("v1, ", 2000)+good), string(body), now, ErrHeaders},
	} {
		if err := Verify(test.h, []byte(test.body), secret, test.now, 0); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

func TestParseSecret(t *testing.T) {
	text, err := NewSecret(bytes.NewReader(make([]byte, 32)))
	if err != nil || text != "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" {
		t.Errorf("new secret: %q, %v", text, err)
	}
	if _, err := NewSecret(bytes.NewReader(make([]byte, 31))); err == nil {
		t.Error("a short random source gave a secret")
	}
	for _, bad := range []string{
		"", "whsec_", "hunter2hunter2hunter2hunter2hunter2", strings.TrimPrefix(text, "whsec_"), text + "=", text + "\n",
		"whsec_AAAA\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=",
		"whsec_AAAAAAAAAAAAAAAAAAAA", "whsec_" + strings.Repeat("A", 88), "whsk_" + strings.Repeat("A", 44),
	} {
		if _, err := ParseSecret(bad); !errors.Is(err, ErrSecret) || strings.Contains(err.Error(), "hunter2") { // I-33
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Fuzz(func(t *testing.T, text string) {
		secret, err := ParseSecret(text)
		if err != nil {
			return
		}
		if _, err := standardwebhooks.NewWebhook(text); err != nil {
			t.Errorf("the standard's library refuses %q: %v", text, err)
		}
		if len(secret) < minSecret || len(secret) > maxSecret {
			t.Errorf("%d bytes", len(secret))
		}
	})
}

// Whatever Verify takes, the standard's library takes.
func FuzzVerify(f *testing.F) {
	secret := bytes.Repeat([]byte{7}, 32)
	at := time.Unix(1_700_000_000, 0)
	f.Add("dlv_1", "1700000000", Sign("dlv_1", at, []byte("{}"), secret), []byte("{}"))
	f.Add("a.b", "+1", "v1, v1,x v1a,", []byte(""))
	oracle, err := standardwebhooks.NewWebhookRaw(secret)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, id, stamp, signature string, body []byte) {
		h := signed(id, stamp, signature)
		if Verify(h, body, secret, at, 0) == nil && oracle.VerifyIgnoringTimestamp(body, h) != nil {
			t.Errorf("accepted %q %q %q", id, stamp, signature)
		}
	})
}
