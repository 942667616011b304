package event

import "strings"

// ReplyTarget is where an answer goes. Secret and URLSecret are names of
// secrets, never values; which members a type has is told by internal/replyto.
type ReplyTarget struct {
	Fallback  bool              `json:"fallback,omitzero"` // its secrets are the daemon's: it was targets.fallback at admission
	Folder    string            `json:"folder,omitzero"`
	Format    string            `json:"format,omitzero"`
	From      string            `json:"from,omitzero"` // of a mail: the sender that its server had at admission
	Headers   map[string]string `json:"headers,omitzero"`
	Origin    string            `json:"origin,omitzero"` // of what url_secret named at admission
	Path      string            `json:"path,omitzero"`
	Plugin    string            `json:"plugin,omitzero"`
	Secret    string            `json:"secret,omitzero"`
	Server    string            `json:"server,omitzero"`
	Session   SessionID         `json:"session,omitzero"`
	Signing   string            `json:"signing,omitzero"`
	Subject   string            `json:"subject,omitzero"`
	To        []string          `json:"to,omitzero"`
	Type      string            `json:"type"`
	URL       string            `json:"url,omitzero"`
	URLSecret string            `json:"url_secret,omitzero"`
}

// Types of reply targets.
const (
	TargetWebhook = "webhook"
	TargetFile    = "file"
	TargetStdout  = "stdout"
	TargetMail    = "mail"
	TargetSession = "session"
	TargetNATS    = "nats"
	TargetPlugin  = "plugin"
)

// Formats of a webhook.
const (
	FormatStandard          = "standard" // also when none is named
	FormatSlack             = "slack"
	FormatCloudEvents       = "cloudevents"        // structured mode
	FormatCloudEventsBinary = "cloudevents_binary" // binary mode
)

// Ways in which a webhook is signed.
const (
	SigningHMAC    = "hmac" // also when none is named
	SigningEd25519 = "ed25519"
)

// Address says who receives: equal addresses of one type are one receiver. Of a
// URL that stands in a secret it is the name of the secret.
func (t *ReplyTarget) Address() string {
	switch t.Type {
	case TargetFile:
		return t.Folder + "/" + t.Path
	case TargetMail:
		return t.Server + " " + strings.Join(t.To, " ")
	case TargetSession:
		return string(t.Session)
	case TargetNATS:
		return t.Server + " " + t.Subject
	case TargetPlugin:
		return t.Plugin
	}
	if t.URLSecret != "" {
		return "secret:" + t.URLSecret
	}
	return t.URL
}

// Receiver says for people who receives. Of a URL that stands in a secret it is the
// origin and the secret's name.
func (t *ReplyTarget) Receiver() string {
	switch {
	case t.Type == TargetStdout:
		return "the daemon's standard output"
	case t.Type == TargetWebhook && t.URLSecret != "":
		return t.Origin + " (secret " + t.URLSecret + ")"
	}
	return t.Address()
}

// ID is the target's id for a user.
func (t *ReplyTarget) ID(user string) TargetID { return TargetIDFor(user, t.Type, t.Address()) }

// TargetTestStarted is the intent to send a test to a target. No run stands
// behind it, and no session but that of a target of type session.
type TargetTestStarted struct {
	Actor      string     `json:"actor,omitzero"`
	DeliveryID DeliveryID `json:"delivery_id"`
	Type       string     `json:"type"`
}

// TargetTestEnded tells what came of it.
type TargetTestEnded struct {
	Code       string     `json:"code,omitzero"` // why it failed; empty: it was delivered
	DeliveryID DeliveryID `json:"delivery_id"`
	DurationMS int64      `json:"duration_ms"`
	Status     int        `json:"status,omitzero"`
}

func (*TargetTestStarted) EventType() Type { return TypeTargetTestStarted }
func (*TargetTestEnded) EventType() Type   { return TypeTargetTestEnded }
