package webhook

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The asymmetric vectors: v1a of Standard Webhooks 1.0.0.
func TestAsymmetricVectors(t *testing.T) {
	var rows []struct {
		Key       string `json:"secret_key_base64_64_bytes"`
		ID, Body  string
		Signature string
		Timestamp int64
	}
	if err := json.Unmarshal(vectorFile(t, "vectors", "webhooks", "standard-webhooks.json"), &rows); err != nil {
		t.Fatal(err)
	}
	asymmetric := 0
	for _, row := range rows {
		if row.Key == "" {
			continue
		}
		asymmetric++
		key, err := ParseKey("whsk_" + row.Key)
		if err != nil || !key.Asymmetric() {
			t.Fatal(err)
		}
		at := time.Unix(row.Timestamp, 0)
		if got := key.Sign(row.ID, at, []byte(row.Body)); got != row.Signature {
			t.Errorf("%s: signed %s, want %s", row.ID, got, row.Signature)
		}
		public, err := ParsePublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		h := signed(row.ID, strconv.FormatInt(row.Timestamp, 10), row.Signature)
		if err := VerifyPublic(h, []byte(row.Body), public, at, 0); err != nil {
			t.Errorf("%s: %v", row.ID, err)
		}
	}
	if asymmetric < 1 {
		t.Errorf("%d asymmetric vectors", asymmetric)
	}
}

// In a rotation both sign, of whatever kind they are, and who has either verifies:
// the public library of the standard, and the one here.
func TestRotation(t *testing.T) {
	now := time.Now()
	body := []byte(`{"a":1}`)
	var texts []string
	var keys []Key
	for range 2 {
		text, err := NewSecret(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, err := ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		texts, keys = append(texts, text), append(keys, key)
	}
	private, public, err := NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(private)
	if err != nil || key.Public() != public {
		t.Fatal(err)
	}
	keys = append(keys, key)
	header := signed("dlv_1", strconv.FormatInt(now.Unix(), 10), Signatures(keys, "dlv_1", now, body))
	for _, text := range texts {
		oracle, err := standardwebhooks.NewWebhook(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := oracle.Verify(body, header); err != nil {
			t.Errorf("the library refuses: %v", err)
		}
		secret, err := ParseSecret(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(header, body, secret, now, 0); err != nil {
			t.Error(err)
		}
	}
	pub, err := ParsePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := VerifyPublic(header, body, pub, now, 0); err != nil {
		t.Error(err)
	}
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"another key": VerifyPublic(header, body, other, now, 0), "another body": VerifyPublic(header, []byte(`{}`), pub, now, 0),
		"no key": VerifyPublic(header, body, nil, now, 0), "late": VerifyPublic(header, body, pub, now.Add(time.Hour), 0),
		"no headers": VerifyPublic(http.Header{}, body, pub, now, 0),
	} {
		if err == nil {
			t.Errorf("%s verifies", name)
		}
	}
}

func TestParseKey(t *testing.T) {
	seed := bytes.Repeat([]byte{7}, 32)
	whole := ed25519.NewKeyFromSeed(seed)
	foreign := append(bytes.Clone(seed), whole[32:]...)
	foreign[40] ^= 1
	enc := base64.StdEncoding.EncodeToString
	for text, good := range map[string]bool{
		"whsk_" + enc(seed): true, "whsk_" + enc(whole): true, "whsec_" + enc(seed): true,
		"whsk_" + enc(foreign): false, "whsk_" + enc(seed[:31]): false, "whsk_" + enc(append(bytes.Clone(whole), 0)): false, "whsk_": false,
		"whpk_" + enc(seed): false, enc(seed): false, "": false, "whsk_" + enc(seed) + "\n": false, "whsk_" + strings.TrimRight(enc(seed), "="): false,
	} {
		key, err := ParseKey(text)
		if (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && (text != "" && strings.Contains(err.Error(), enc(seed)[:10])) { // I-33
			t.Errorf("the error repeats the key: %v", err)
		}
		if good && key.Asymmetric() != strings.HasPrefix(text, "whsk_") {
			t.Errorf("%s: asymmetric %v", text, key.Asymmetric())
		}
	}
	if key := HMACKey(seed); key.Public() != "" {
		t.Error("a shared secret has a public half")
	}
	for _, text := range []string{"", "whpk_", "whpk_" + enc(whole), "whsk_" + enc(seed), "whpk_" + enc(seed) + "="} {
		if _, err := ParsePublicKey(text); err == nil {
			t.Errorf("%q is a public key", text)
		}
	}
	if _, _, err := NewKey(bytes.NewReader(nil)); err == nil {
		t.Error("a key out of nothing")
	}
}

// What is read signs, and its public half verifies.
func FuzzParseKey(f *testing.F) {
	f.Add("whsk_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)))
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Add("whsk_\n=")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParseKey(text)
		if err != nil {
			return
		}
		now := time.Unix(1_700_000_000, 0)
		h := signed("dlv_1", "1700000000", key.Sign("dlv_1", now, []byte("{}")))
		if !key.Asymmetric() {
			err = Verify(h, []byte("{}"), key.secret, now, 0)
		} else {
			public, perr := ParsePublicKey(key.Public())
			if perr != nil {
				t.Fatal(perr)
			}
			err = VerifyPublic(h, []byte("{}"), public, now, 0)
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
