package outbox_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"pgregory.net/rapid"
)

var said = outbox.Message{DeliveryID: "dlv_1", SessionID: "ses_1", RunID: "run_1", OutputKind: event.OutputText, Text: "a & <b>"}

func hookOf(format string) *event.ReplyTarget {
	return &event.ReplyTarget{Type: event.TargetWebhook, URL: "https://hook.test", Format: format}
}

// What had no format of its own goes out as it did.
func TestPlainForms(t *testing.T) {
	for _, target := range []*event.ReplyTarget{
		hookOf(""), hookOf("standard"), hookOf("cloudevents_binary"), {Type: "file"}, {Type: "stdout"}, {Type: "nats"}, {Type: "plugin"},
	} {
		if got := said.Bytes(target, noon); !bytes.Equal(got, said.Body()) || outbox.Timed(target) {
			t.Errorf("%s %s: %s", target.Type, target.Format, got)
		}
	}
}

func TestSlack(t *testing.T) {
	if got, want := string(said.Bytes(hookOf("slack"), noon)), `{"text":"a &amp; &lt;b&gt;","unfurl_links":false,"unfurl_media":false}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		m := said
		m.Text = strings.Repeat(rapid.StringN(0, 40, -1).Draw(t, "text"), rapid.IntRange(0, 3000).Draw(t, "times"))
		var read struct{ Text string }
		if err := json.Unmarshal(m.Bytes(hookOf("slack"), noon), &read); err != nil {
			t.Fatal(err)
		}
		n := utf8.RuneCountInString(read.Text)
		if n == 0 || n > outbox.MaxSlackText {
			t.Fatalf("%d characters", n)
		}
		if strings.ContainsAny(read.Text, "<>") { // a mention, a link
			t.Fatal("what marks a mention is not escaped")
		}
		for rest := read.Text; ; { // no escape is cut
			_, after, ok := strings.Cut(rest, "&")
			if !ok {
				break
			}
			if !strings.HasPrefix(after, "amp;") && !strings.HasPrefix(after, "lt;") && !strings.HasPrefix(after, "gt;") {
				t.Fatalf("a bare & before %.10q", after)
			}
			rest = after
		}
		whole := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(read.Text)
		if before, _, cut := strings.Cut(whole, "\n… (cut"); m.Text != "" && !strings.HasPrefix(m.Text, before) || !cut && m.Text != "" && whole != m.Text {
			t.Fatalf("%.50q became %.50q", m.Text, whole)
		}
	})
}

// CloudEvents 1.0, section 2: required attributes are there, none is empty; JSON
// format, section 3.1: data of a JSON media type is JSON.
func TestCloudEvent(t *testing.T) {
	body := said.Bytes(hookOf("cloudevents"), noon)
	canonical, err := canonjson.Canonicalize(body, canonjson.Limits{})
	if err != nil || !canonical.Equal(body) {
		t.Fatalf("not canonical (%v): %s", err, body)
	}
	var read map[string]any
	if err := json.Unmarshal(body, &read); err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(read["data"])
	if want, _ := canonjson.Canonicalize(data, canonjson.Limits{}); !bytes.Equal(want, said.Body()) {
		t.Errorf("data %s", data)
	}
	delete(read, "data")
	want := map[string]any{
		"specversion": "1.0", "id": "dlv_1", "source": "/v1/sessions/ses_1", "type": "dev.holdfast.output.emitted", "subject": "run_1",
		"datacontenttype": "application/json", "time": "2026-03-01T12:00:00Z",
	}
	if len(read) != len(want) {
		t.Errorf("attributes %v", read)
	}
	for name, value := range want {
		if read[name] != value {
			t.Errorf("%s is %v, want %v", name, read[name], value)
		}
	}
	if c, err := outbox.CloudEventOf(said.Body()); err != nil || c != said.CloudEvent() {
		t.Errorf("of the body %+v, %v", c, err)
	}
	test := outbox.Message{DeliveryID: "dlv_2"}
	if body := test.Bytes(hookOf("cloudevents"), noon); strings.Contains(string(body), `"subject"`) {
		t.Errorf("an empty attribute: %s", body)
	}
}

func TestSessionBody(t *testing.T) {
	m := said
	m.Hops = 3
	text, hops, err := outbox.SessionBody(m.Bytes(&event.ReplyTarget{Type: event.TargetSession, Session: "ses_2"}, noon))
	if err != nil || text != m.Text || hops != 3 {
		t.Errorf("%q, %d hops, %v", text, hops, err)
	}
	if _, _, err := outbox.SessionBody([]byte("no")); err == nil {
		t.Error("what is no JSON is read")
	}
}

// The message is read back by the standard library's reader, whatever was said;
// nothing that was said becomes a header.
func TestMail(t *testing.T) {
	target := &event.ReplyTarget{Type: event.TargetMail, Server: "office", From: "holdfast@house.test", To: []string{"ann@example.com", "bob@example.com"}, Subject: "Größe"}
	rapid.Check(t, func(t *rapid.T) {
		m := said
		m.Text = rapid.OneOf(rapid.String(), rapid.Just("\r\n.\r\nBcc: eve@evil.test\r\n\r\nx"), rapid.Just(strings.Repeat("long ", 1000))).Draw(t, "text")
		if rapid.Bool().Draw(t, "structured") {
			m.Text, m.Structured = `{"a":"é"}`, canonjson.Value(`{"a":"é"}`)
		}
		raw := m.Bytes(target, noon)
		for line := range strings.SplitSeq(string(raw), "\r\n") {
			if len(line) > 998 || strings.ContainsAny(line, "\r\n") { // RFC 5322, section 2.1.1
				t.Fatalf("a line of %d bytes: %.80q", len(line), line)
			}
			for i := range len(line) {
				if line[i] > '~' {
					t.Fatalf("a byte that is not ASCII in %.80q", line)
				}
			}
		}
		read, err := mail.ReadMessage(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		subject, err := new(mime.WordDecoder).DecodeHeader(read.Header.Get("Subject"))
		to, terr := read.Header.AddressList("To")
		at, derr := read.Header.Date()
		if err != nil || terr != nil || derr != nil || subject != "Größe" || len(to) != 2 || !at.Equal(noon) || len(read.Header["Bcc"]) != 0 ||
			read.Header.Get("Message-Id") != "<dlv_1@house.test>" || read.Header.Get("Auto-Submitted") != "auto-generated" || read.Header.Get("From") != "holdfast@house.test" {
			t.Fatalf("header %v %v %v %v", read.Header, err, terr, derr)
		}
		var body io.Reader = quotedprintable.NewReader(read.Body)
		if m.Structured != nil {
			body = base64.NewDecoder(base64.StdEncoding, read.Body)
		}
		got, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.NewReplacer("\r\n", "\n", "\r", "\n")
		if want := lines.Replace(m.Text); strings.TrimSuffix(lines.Replace(string(got)), "\n") != want {
			t.Fatalf("%q became %q", m.Text, got)
		}
		if !bytes.Equal(raw, m.Bytes(target, noon)) { // I-26
			t.Fatal("the bytes are others the second time")
		}
	})
	m := outbox.Message{DeliveryID: "dlv_1", RunID: "run_9"}
	target.Subject = ""
	if !strings.Contains(string(m.Bytes(target, noon)), "Subject: Answer of run_9\r\n") {
		t.Error("a mail without a subject")
	}
}

// Every end of a line in a text is one in its mail, in whatever way it is written.
func TestLinesOfAMail(t *testing.T) {
	m := said
	m.Text, m.Structured = "a\r=\nb\r\n\rc", nil
	raw := string(m.Bytes(&event.ReplyTarget{Type: event.TargetMail, Server: "office", From: "holdfast@house.test", To: []string{"ann@example.com"}}, noon))
	if !strings.HasSuffix(raw, "\r\n\r\na\r\n=3D\r\nb\r\n\r\nc\r\n") {
		t.Errorf("%q", raw)
	}
}

// A test has no run and no session: its mail has no header without a value.
func TestMailOfATest(t *testing.T) {
	m := said
	m.SessionID, m.RunID = "", ""
	raw := m.Bytes(&event.ReplyTarget{Type: event.TargetMail, Server: "office", From: "holdfast@house.test", To: []string{"ann@example.com"}}, noon)
	head, _, _ := strings.Cut(string(raw), "\r\n\r\n")
	for line := range strings.SplitSeq(head, "\r\n") {
		if _, value, ok := strings.Cut(line, ": "); !ok || strings.TrimSpace(value) != value || value == "" {
			t.Errorf("%q", line)
		}
	}
}
