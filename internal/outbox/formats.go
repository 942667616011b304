package outbox

import (
	"bytes"
	"encoding/base64"
	"mime"
	"mime/quotedprintable"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// EventType is the CloudEvents type of an output.
const EventType = "dev.holdfast.output.emitted"

// MaxSlackText bounds the text of a Slack message, in characters: past it Slack
// cuts what it was sent.
const MaxSlackText = 40_000

// Bytes are what every attempt to a target carries (I-26), in the form that the
// target wants. at is when the output is made: it counts where a form has a time of
// its own.
func (m Message) Bytes(t *event.ReplyTarget, at time.Time) []byte {
	switch t.Type {
	case event.TargetMail:
		return m.mail(t, at)
	case event.TargetSession:
		return m.session()
	case event.TargetWebhook:
		switch t.Format {
		case event.FormatSlack:
			return m.slack()
		case event.FormatCloudEvents:
			return m.cloudEvent(at)
		}
	}
	return m.Body()
}

// Timed says whether what goes to a target holds the time at which it was made.
func Timed(t *event.ReplyTarget) bool {
	return t.Type == event.TargetMail || t.Type == event.TargetWebhook && t.Format == event.FormatCloudEvents
}

// slack is the body of a Slack incoming webhook. The three characters that mark
// mentions and links are escaped, so that what a model wrote calls nobody, and links
// are not followed by Slack.
func (m Message) slack() []byte {
	text := slackText(m.Text)
	b := append([]byte(nil), `{"text":`...)
	b = canonjson.AppendString(b, text)
	return append(b, `,"unfurl_links":false,"unfurl_media":false}`...)
}

var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func slackText(s string) string {
	out := slackEscapes.Replace(s)
	if out == "" {
		return " " // a message without text is refused
	}
	if utf8.RuneCountInString(out) <= MaxSlackText {
		return out
	}
	note := "\n… (cut; the whole has " + strconv.Itoa(utf8.RuneCountInString(s)) + " characters)"
	room := MaxSlackText - utf8.RuneCountInString(note)
	cut, n := 0, 0
	for i, r := range s { // cut what was said, so that no escape is cut
		size := 1
		switch r {
		case '&':
			size = len("&amp;")
		case '<', '>':
			size = len("&lt;")
		}
		if n += size; n > room {
			break
		}
		cut = i + utf8.RuneLen(r)
	}
	return slackEscapes.Replace(s[:cut]) + note
}

// CloudEvent is what CloudEvents 1.0 says of an output beside its data.
type CloudEvent struct {
	ID, Source, Type, Subject string
}

// CloudEvent gives the attributes: id and source are the same at every attempt.
func (m Message) CloudEvent() CloudEvent {
	return CloudEvent{ID: string(m.DeliveryID), Source: "/v1/sessions/" + string(m.SessionID), Type: EventType, Subject: string(m.RunID)}
}

// CloudEventOf gives the attributes of a standard body, for the binary mode.
func CloudEventOf(body []byte) (CloudEvent, error) {
	var read struct {
		DeliveryID event.DeliveryID `json:"delivery_id"`
		RunID      event.RunID      `json:"run_id"`
		SessionID  event.SessionID  `json:"session_id"`
	}
	if err := json.Unmarshal(body, &read); err != nil {
		return CloudEvent{}, err
	}
	return Message{DeliveryID: read.DeliveryID, RunID: read.RunID, SessionID: read.SessionID}.CloudEvent(), nil
}

// cloudEvent is the structured mode: one JSON object whose data is the standard body.
func (m Message) cloudEvent(at time.Time) []byte {
	c := m.CloudEvent()
	b := append([]byte(nil), `{"data":`...)
	b = append(b, m.Body()...)
	b = append(b, `,"datacontenttype":"application/json"`...)
	for _, a := range [][2]string{
		{"id", c.ID}, {"source", c.Source}, {"specversion", "1.0"}, {"subject", c.Subject}, {"time", at.UTC().Format(time.RFC3339Nano)}, {"type", c.Type},
	} {
		if a[1] == "" { // a test has no run: an attribute is absent or not empty
			continue
		}
		b = append(b, `,"`+a[0]+`":`...)
		b = canonjson.AppendString(b, a[1])
	}
	return append(b, '}')
}

// session is the standard body with the hops that the run behind it had.
func (m Message) session() []byte {
	b := append([]byte(nil), `{"hops":`...)
	b = strconv.AppendInt(b, int64(m.Hops), 10)
	b = append(b, `,"message":`...)
	b = append(b, m.Body()...)
	return append(b, '}')
}

// SessionBody reads what Bytes made for a target of type session: the text that
// is submitted, and the hops of the run that said it.
func SessionBody(body []byte) (text string, hops int, err error) {
	var read struct {
		Hops    int `json:"hops"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	}
	err = json.Unmarshal(body, &read)
	return read.Message.Content, read.Hops, err
}

// mail is a whole message (RFC 5322, MIME). Its Message-ID follows from the
// delivery, so that a mail server or a reader recognises a repetition.
func (m Message) mail(t *event.ReplyTarget, at time.Time) []byte {
	var b bytes.Buffer
	subject := t.Subject
	if subject == "" {
		subject = "Answer of " + string(m.RunID)
		if m.RunID == "" {
			subject = "Test"
		}
	}
	_, domain, _ := strings.Cut(t.From, "@")
	header := func(name, value string) { b.WriteString(name + ": " + value + "\r\n") }
	header("Date", at.UTC().Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	header("From", t.From)
	header("To", strings.Join(t.To, ",\r\n "))
	header("Subject", mime.QEncoding.Encode("utf-8", subject))
	header("Message-ID", "<"+string(m.DeliveryID)+"@"+domain+">")
	header("Auto-Submitted", "auto-generated") // RFC 3834: nobody answers a machine by machine
	if m.SessionID != "" {                     // a test is of none
		header("X-Holdfast-Session", string(m.SessionID))
	}
	if m.RunID != "" {
		header("X-Holdfast-Run", string(m.RunID))
	}
	header("MIME-Version", "1.0")
	media := "text/plain"
	if m.Structured != nil {
		media = "application/json"
	}
	header("Content-Type", media+"; charset=utf-8")
	if m.Structured != nil { // JSON is one long line, whose bytes count
		header("Content-Transfer-Encoding", "base64")
		b.WriteString("\r\n")
		text := base64.StdEncoding.EncodeToString([]byte(m.Text))
		for len(text) > 76 {
			b.WriteString(text[:76] + "\r\n")
			text = text[76:]
		}
		b.WriteString(text + "\r\n")
		return b.Bytes()
	}
	header("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	// A line ends in one way: the writer loses an end behind a lone \r and what is encoded.
	_, _ = q.Write([]byte(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(m.Text))) // a buffer takes everything
	_ = q.Close()
	b.WriteString("\r\n")
	return b.Bytes()
}
