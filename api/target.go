package api

// ReplyTarget is where an answer goes. Which members there are follows from the
// type; names are those of the daemon's configuration.
type ReplyTarget struct {
	Type    string            `json:"type"`              // webhook, file, stdout, mail, session, nats or plugin
	URL     string            `json:"url,omitempty"`     // of a webhook
	Secret  string            `json:"secret,omitempty"`  // of a webhook: the name of the secret that signs
	Headers map[string]string `json:"headers,omitempty"` // of a webhook: further headers, no secrets

	URLSecret string   `json:"url_secret,omitempty"` // of a webhook, in place of url: the name of a secret that holds it
	Origin    string   `json:"origin,omitempty"`     // told only: scheme and host of what url_secret named when the target was taken
	Format    string   `json:"format,omitempty"`     // of a webhook: standard (when absent), slack, cloudevents or cloudevents_binary
	Signing   string   `json:"signing,omitempty"`    // of a webhook: hmac (when absent) or ed25519
	Folder    string   `json:"folder,omitempty"`     // of a file: a name of targets.folders
	Path      string   `json:"path,omitempty"`       // of a file: within the folder
	Server    string   `json:"server,omitempty"`     // of a mail or nats: a name of targets.mail or targets.nats
	To        []string `json:"to,omitempty"`         // of a mail: 1 to 16 addresses
	From      string   `json:"from,omitempty"`       // told only: the sender that the mail server had when the target was taken
	Subject   string   `json:"subject,omitempty"`    // of a mail its subject, of nats the subject that is published under
	Session   string   `json:"session,omitempty"`    // of a session: its id or alias; the answer is submitted there
	Plugin    string   `json:"plugin,omitempty"`     // of a plugin: a name of targets.plugins
}

// TestTarget is the body of POST /v1/targets/test.
type TestTarget struct {
	Target ReplyTarget `json:"target"`
}

// TargetTest is what came of a test delivery.
type TargetTest struct {
	TargetID   string `json:"target_id"`
	DeliveryID string `json:"delivery_id"`
	Delivered  bool   `json:"delivered"`
	Status     int    `json:"status,omitempty"` // HTTP status, when one was seen
	Code       string `json:"code,omitempty"`   // stable word for what went wrong
	Detail     string `json:"detail,omitempty"`
	// Excerpt is the beginning of what the receiver answered; it is not stored.
	Excerpt    string `json:"excerpt,omitempty"`
	DurationMS int64  `json:"duration_ms"`
}

// SigningKey is the public half of a key that signs webhooks with ed25519. During a
// rotation there are two: the new one and the one before.
type SigningKey struct {
	Secret     string   `json:"secret"`
	PublicKeys []string `json:"public_keys"` // whpk_…
}
