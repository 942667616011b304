package wire

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The keys are made up here, of parts, so that no file holds one.
func TestFindCredential(t *testing.T) {
	secret := strings.Repeat("aB3dE9", 6)
	for _, bad := range []string{
		"Authorization: Bearer " + secret,
		"> authorization: Bearer " + secret + "\r",
		"GET / HTTP/1.1\nX-Api-Key: " + secret,
		"cookie: sid=" + secret,
		`{"headers":{"x-goog-api-key":"` + secret + `"}}`,
		`{"api_key": "` + secret + `"}`,
		"POST /v1beta/models/x:generate?alt=sse&api_key=" + secret + " HTTP/1.1",
		"data: {\"text\":\"use sk-" + secret + "\"}",
		"sk-ant-api03-" + secret, "sk-proj-" + secret, "gsk_" + secret, "AIza" + secret, "ghp_" + secret, "hf_" + secret,
		"ey" + "Jhbgciaaaa.ey" + "Jzdwiaaaaa." + secret,
		"-----BEGIN RSA " + "PRIVATE KEY-----",
	} {
		got := FindCredential([]byte("one\n" + bad + "\nlast"))
		if !strings.HasPrefix(got, "line ") || strings.Contains(got, secret) {
			t.Errorf("%q: %q", bad, got)
		}
	}
	for _, good := range []string{
		"Authorization: Bearer [redacted]", "authorization: Bearer test-key", "x-api-key: <key>", "Authorization:", "Cookie: ",
		"x-api-key: sk-xxxxxxxxxxxxxxxxxxxx", `"api_key":null`, `"api_key":{"type":"string"}`, "Set-Cookie: REDACTED",
		"sk-00000000000000000000", "x-api-key: $ANTHROPIC_API_KEY", "task-runner-of-the-long-name", "the authorization of a call is needed",
		`{"id":"chatcmpl-` + secret + `","tool_call_id":"call_` + secret + `","signature":"` + secret + `=="}`,
	} {
		if got := FindCredential([]byte(good)); got != "" {
			t.Errorf("%q: %s", good, got)
		}
	}
}

// No file under a testdata folder of a vendor holds a credential. I-33
func TestRecordingsHoldNoCredential(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "testdata") || strings.Contains(path, "rapid") || strings.Contains(path, "fuzz") {
			return err
		}
		raw, err := os.ReadFile(path)
		if found := FindCredential(raw); found != "" {
			t.Errorf("%s, %s", path, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
