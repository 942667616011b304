// Package inbound holds the rules of connectors: who may send events to the
// daemon from outside, and what an event is mapped to.
//
// They are pure: bytes, headers, a clock and a compiled configuration go in; a
// verdict, or the session and input of a run, come out. What is in a body is
// hostile. It becomes the text of an input, a key that is only ever hashed, and
// metadata; it never becomes instructions, and names no route, tool, secret or
// user, nor, unless the configuration lists its origin, a reply target.
package inbound

import (
	"crypto/sha256"
	"encoding/hex"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Kind is what a connector speaks.
type Kind string

// The kinds.
const (
	KindJSON   Kind = "json"   // any JSON body
	KindGitHub Kind = "github" // GitHub's webhooks
	KindSlack  Kind = "slack"  // Slack's Events API
)

// Bounds, and their defaults.
const (
	DefaultBody  = 1 << 20  // bytes of a body
	MaxBody      = 25 << 20 // the most that may be configured
	DefaultRate  = 20       // events a second
	DefaultBurst = 100      // events at once
	DefaultInput = 256 << 10
	MaxInput     = 1 << 20
	maxEventID   = 256 // bytes
	maxKey       = 1024
	maxTitle     = 200
	maxTargets   = 8
	maxURL       = 2048
	maxEvents    = 64
)

// The codes of what does not map, beside CodeMapping.
const (
	CodeEventID   = "event_id_required"
	CodeBody      = "invalid_json"
	CodeMedia     = "unsupported_media_type"
	CodeTarget    = "reply_target_refused"
	CodeUnhandled = "event_not_handled"
)

// Spec is a connector as it is configured.
type Spec struct {
	Name      string
	Kind      Kind
	Auth      Auth
	Open      bool // unauthenticated, and said so
	MaxAge    time.Duration
	BodyBytes int

	EventHeader  string // where the id of an event is; at most one of the three
	EventPointer string
	EventDigest  bool // the digest of the body is the id

	Fixed   string // an id or alias of a session
	Key     string // template: each value has a session of its own
	Fresh   bool   // a new session for each event
	Title   string // template of the title of a session that is made
	Pointer string // of the input
	Text    string // template of the input
	Whole   bool   // the input is the whole body
	Input   int    // bytes

	Events  []string // of the kind's, that make runs; nil: the kind's own choice
	Refuse  bool     // other events are refused, and not ignored
	Bots    bool     // events of bots make runs too
	Targets string   // pointer to the reply targets of a body; empty: none are taken
	Origins []string // which they may have
}

// Connector is a compiled Spec. It never changes.
type Connector struct {
	Spec
	eventID, pointer, targets Pointer
	key, title, text          *Template
	origins                   []string
}

// Mistake is a mistake of a Spec, with the key of the configuration at fault.
type Mistake struct{ Key, Text string }

func (m *Mistake) Error() string { return m.Key + ": " + m.Text }

// Variables of templates.
const (
	varConnector = "connector"
	varEvent     = "event"
	varEventID   = "event_id"
	varThread    = "thread"
	varText      = "text"
)

// variables are those of the list that the kind has.
func (c *Connector) variables(list ...string) []string {
	if c.Kind != KindJSON {
		return list
	}
	return slices.DeleteFunc(list, func(v string) bool { return v == varEvent || v == varThread || v == varText })
}

// Compile checks a Spec. The error is a *Mistake.
func Compile(s Spec) (*Connector, error) {
	c := &Connector{Spec: s}
	for _, check := range []func() *Mistake{c.checkAuth, c.checkEventID, c.checkSession, c.checkInput, c.checkEvents, c.checkTargets} {
		if m := check(); m != nil {
			return nil, m
		}
	}
	return c, nil
}

func (c *Connector) checkAuth() *Mistake {
	switch c.Kind {
	case KindJSON, KindGitHub, KindSlack:
	default:
		return &Mistake{"type", "must be json, github or slack"}
	}
	switch c.Auth {
	case AuthBearer, AuthStandard, AuthGitHub, AuthSlack:
		if c.Open {
			return &Mistake{"unauthenticated", "contradicts auth, which names how a sender proves who it is: take one of the two out"}
		}
	case AuthNone:
		if !c.Open {
			return &Mistake{"auth", "without authentication everybody who reaches the daemon makes runs: name auth.type and auth.secrets, or say unauthenticated: true"}
		}
	default:
		return &Mistake{"auth.type", "must be bearer, standard_webhooks, github, slack or none"}
	}
	switch {
	case c.MaxAge < 0 || c.MaxAge > time.Hour:
		return &Mistake{"auth.max_age", "must be from 1s to 1h"}
	case c.MaxAge == 0:
		c.MaxAge = DefaultMaxAge
	case c.MaxAge < time.Second:
		return &Mistake{"auth.max_age", "must be from 1s to 1h"}
	case c.Auth != AuthStandard && c.Auth != AuthSlack:
		return &Mistake{"auth.max_age", "only the signatures of standard_webhooks and slack hold a time"}
	}
	if c.BodyBytes == 0 {
		c.BodyBytes = DefaultBody
	}
	if c.BodyBytes < 0 || c.BodyBytes > MaxBody {
		return &Mistake{"limits.body_bytes", "must be from 1 to 26214400 (25 MiB)"}
	}
	return nil
}

// checkEventID sees that every event has an id, so that a repeat is known as one.
func (c *Connector) checkEventID() *Mistake {
	n := 0
	for _, set := range []bool{c.EventHeader != "", c.EventPointer != "", c.EventDigest} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		return &Mistake{"event_id", "name one of header, pointer and digest"}
	case n == 1:
	case c.Kind == KindGitHub:
		c.EventHeader = "X-GitHub-Delivery"
	case c.Kind == KindSlack:
		c.EventPointer = "/event_id"
	case c.Auth == AuthStandard:
		c.EventHeader = "webhook-id"
	default:
		return &Mistake{"event_id", "say what tells one event from another, so that a repeat makes no second run: header, pointer or digest: true"}
	}
	if c.EventPointer != "" {
		p, err := ParsePointer(c.EventPointer)
		if err != nil {
			return &Mistake{"event_id.pointer", err.Error()}
		}
		c.eventID = p
	}
	if h := c.EventHeader; h != "" {
		if !token(h) || strings.EqualFold(h, "Authorization") || strings.EqualFold(h, "Cookie") {
			return &Mistake{"event_id.header", "is no name of a header that can hold an id"}
		}
	}
	return nil
}

func (c *Connector) checkSession() *Mistake {
	n := 0
	for _, set := range []bool{c.Fixed != "", c.Key != "", c.Fresh} {
		if set {
			n++
		}
	}
	if n != 1 {
		return &Mistake{"session", "say where runs go: fixed (an id or alias), key (a session for each value of the body), or template alone (a new session for each event)"}
	}
	var err error
	if c.Key != "" {
		if c.key, err = ParseTemplate(c.Key, c.variables(varEvent, varThread)...); err != nil {
			return &Mistake{"session.key", err.Error()}
		}
		if c.key.Fixed() {
			return &Mistake{"session.key", "has no placeholder, so that all events have one session: that is session.fixed"}
		}
	}
	if c.title, err = ParseTemplate(c.Title, c.variables(varConnector, varEventID, varEvent, varThread)...); err != nil {
		return &Mistake{"session.title", err.Error()}
	}
	return nil
}

func (c *Connector) checkInput() *Mistake {
	n := 0
	for _, set := range []bool{c.Pointer != "", c.Text != "", c.Whole} {
		if set {
			n++
		}
	}
	if n > 1 {
		return &Mistake{"input", "name one of text, pointer and body"}
	}
	var err error
	if c.pointer, err = ParsePointer(c.Pointer); err != nil {
		return &Mistake{"input.pointer", err.Error()}
	}
	if c.Text != "" {
		if c.text, err = ParseTemplate(c.Text, c.variables(varConnector, varEventID, varEvent, varThread, varText)...); err != nil {
			return &Mistake{"input.text", err.Error()}
		}
	}
	if c.Input == 0 {
		c.Input = DefaultInput
	}
	if c.Input < 0 || c.Input > MaxInput {
		return &Mistake{"input.max_bytes", "must be from 1 to 1048576 (1 MiB)"}
	}
	return nil
}

func (c *Connector) checkEvents() *Mistake {
	if c.Kind == KindJSON && (c.Events != nil || c.Refuse || c.Bots) {
		return &Mistake{"events", "events, other_events and bots are of github and slack connectors"}
	}
	if len(c.Events) > maxEvents {
		return &Mistake{"events", "names more than 64 events"}
	}
	for _, e := range c.Events {
		if !eventName(e) {
			return &Mistake{"events", "an event is named as issues or issues.opened, app_mention or message.im"}
		}
	}
	return nil
}

func (c *Connector) checkTargets() *Mistake {
	if c.Targets == "" {
		if len(c.Origins) > 0 {
			return &Mistake{"payload_targets", "origins wants pointer, where the targets of a body are"}
		}
		return nil
	}
	var err error
	if c.targets, err = ParsePointer(c.Targets); err != nil {
		return &Mistake{"payload_targets.pointer", err.Error()}
	}
	if len(c.Origins) == 0 {
		return &Mistake{"payload_targets.origins", "list the origins, such as https://hooks.example.com, that a body may name"}
	}
	for _, o := range c.Origins {
		clean, rest, ok := originOf(o)
		if !ok || rest != "" && rest != "/" {
			return &Mistake{"payload_targets.origins", "an origin is a scheme, a host and no more, such as https://hooks.example.com"}
		}
		c.origins = append(c.origins, clean)
	}
	return nil
}

// Event is what a request is mapped to.
type Event struct {
	ID   string // as the sender gave it
	Hash string // digest of ID
	Name string // such as issues.opened; empty: of a JSON body
	// Ignored says why the event makes no run; empty: it makes one.
	Ignored string
	// Challenge is what the sender wants to read back; nothing is mapped then.
	Challenge string
	// Fingerprint is that of the body: what tells a repeat from a reused id.
	Fingerprint string

	Key      string // of its session; empty: fixed or fresh
	Title    string
	Content  []byte // of the input: a JSON string, or any JSON value
	Metadata canonjson.Value
	Targets  []string // URLs of reply targets that the body names
}

// Alias is the alias of the session that events with this key have. A key is
// hashed: no text of a body can name a session of somebody else's making.
func (c *Connector) Alias(key string) string {
	sum := sha256.Sum256([]byte(key))
	return c.Name + "." + hex.EncodeToString(sum[:16])
}

// Map says what an event is mapped to. Whoever calls it has verified the sender.
// The error is a *problem.Error. With one there may be an event all the same:
// it has an id and a fingerprint, and does not map now.
func (c *Connector) Map(h http.Header, body []byte) (*Event, error) {
	if media, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, problem.New(problem.Invalid, CodeMedia, "an event must be sent with Content-Type: application/json")
	}
	n, err := c.parse(body)
	if err != nil {
		return nil, err
	}
	ev := &Event{}
	seen := mapped{vars: map[string]string{varConnector: c.Name}}
	switch c.Kind {
	case KindGitHub:
		err = c.github(ev, &seen, h, n)
	case KindSlack:
		n = without(n, "token") // a secret of Slack's, from before there were signatures
		err = c.slack(ev, &seen, n)
	}
	if err != nil {
		return nil, err
	}
	if ev.Challenge != "" {
		return ev, nil
	}
	canonical := n.Append(nil)
	sum := sha256.Sum256(canonical)
	ev.Fingerprint = "body-v1:" + hex.EncodeToString(sum[:])
	if ev.Ignored != "" {
		return ev, nil
	}
	if ev.ID, err = c.id(h, n, ev.Fingerprint); err != nil {
		return nil, err
	}
	idSum := sha256.Sum256([]byte(ev.ID))
	ev.Hash = hex.EncodeToString(idSum[:])
	seen.vars[varEvent], seen.vars[varEventID] = ev.Name, ev.ID
	return ev, c.fill(ev, &seen, n, canonical)
}

// mapped is what a ready mapping makes of a body.
type mapped struct {
	vars     map[string]string
	metadata []pair
}

// pair is a member of the metadata.
type pair struct{ name, value string }

// fill maps session, input, metadata and reply targets.
func (c *Connector) fill(ev *Event, seen *mapped, n canonjson.Node, canonical []byte) (err error) {
	if c.key != nil {
		if ev.Key, err = c.key.Render(n, seen.vars, maxKey); err != nil {
			return err
		}
		if ev.Key == "" {
			return unmapped("session.key", "is empty")
		}
	}
	if ev.Title, err = c.title.Render(n, seen.vars, MaxInput); err != nil {
		return err
	}
	if ev.Title == "" && ev.Key != "" {
		ev.Title = c.Name + ": " + ev.Key
	}
	ev.Title = canonjson.CutRunes(line(ev.Title), maxTitle)
	if ev.Content, err = c.content(seen, n, canonical); err != nil {
		return err
	}
	ev.Metadata = metadata(append([]pair{{"connector", c.Name}, {"event", ev.Name}, {"event_id", ev.ID}}, seen.metadata...))
	if c.targets != nil {
		ev.Targets, err = c.replyTargets(n)
	}
	return err
}

// content is the input as a JSON value.
func (c *Connector) content(seen *mapped, n canonjson.Node, canonical []byte) ([]byte, error) {
	out := canonical
	switch {
	case c.text != nil:
		text, err := c.text.Render(n, seen.vars, c.Input)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(text) == "" {
			return nil, unmapped("input.text", "gives an empty input")
		}
		return canonjson.AppendString(nil, text), nil
	case len(c.pointer) > 0:
		found, ok := c.pointer.Find(n)
		if !ok || found.Kind() == canonjson.Null {
			return nil, unmapped(c.pointer.Path(), "must be there")
		}
		if found.Kind() == canonjson.String && strings.TrimSpace(found.Text()) == "" {
			return nil, unmapped(c.pointer.Path(), "is empty")
		}
		out = found.Append(nil)
	case !c.Whole && seen.vars[varText] != "":
		out = canonjson.AppendString(nil, seen.vars[varText])
	}
	if len(out) > c.Input {
		return nil, problem.New(problem.TooLarge, "input_too_large", "what the body is mapped to holds more than %d bytes", c.Input)
	}
	return out, nil
}

// parse reads the body strictly.
func (c *Connector) parse(body []byte) (canonjson.Node, error) {
	n, err := canonjson.Parse(body, canonjson.Limits{Bytes: c.BodyBytes, Tokens: max(100_000, c.BodyBytes/4)})
	if err != nil {
		return n, problem.New(problem.Invalid, CodeBody, "the body is not one strict JSON value").Because(err)
	}
	if c.Kind != KindJSON && n.Kind() != canonjson.Object {
		return n, unmapped("$", "must be an object")
	}
	return n, nil
}

// id finds the event's id.
func (c *Connector) id(h http.Header, n canonjson.Node, fingerprint string) (string, error) {
	id, path := "", ""
	switch {
	case c.EventDigest:
		return fingerprint, nil
	case c.EventHeader != "":
		path = c.EventHeader
		if values := h.Values(c.EventHeader); len(values) == 1 {
			id = values[0]
		}
	default:
		path = c.eventID.Path()
		if found, ok := c.eventID.Find(n); ok {
			id = found.Text() // of a string or a number
		}
	}
	if id == "" || len(id) > maxEventID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", problem.New(problem.Invalid, CodeEventID, "the event has no id at %s, one value of 1 to %d bytes", path, maxEventID).
			With(problem.Issue{Path: path, Text: "must be the id of the event"})
	}
	return id, nil
}

// wanted says whether an event makes a run.
func (c *Connector) wanted(name string) bool {
	list := c.Handles()
	group, _, _ := strings.Cut(name, ".")
	return slices.Contains(list, name) || slices.Contains(list, group)
}

// Handles lists the events that make runs; nil: there is one kind.
func (c *Connector) Handles() []string {
	switch {
	case c.Events != nil:
		return c.Events
	case c.Kind == KindGitHub:
		return githubEvents
	case c.Kind == KindSlack:
		return slackEvents
	}
	return nil
}

// EventIDAt says where the id of an event is.
func (c *Connector) EventIDAt() string {
	switch {
	case c.EventDigest:
		return "digest of the body"
	case c.EventHeader != "":
		return "header " + c.EventHeader
	}
	return "body " + c.EventPointer
}

// pass ignores, or refuses, an event that makes no run.
func (c *Connector) pass(ev *Event) error {
	if c.Refuse {
		return problem.New(problem.Invalid, CodeUnhandled, "the connector takes no event %s", ev.Name)
	}
	ev.Ignored = "the connector does not take the event " + ev.Name
	return nil
}

// replyTargets reads the reply targets that the body names: a URL, or several.
// Only their addresses are taken, and only of origins that are configured.
func (c *Connector) replyTargets(n canonjson.Node) ([]string, error) {
	path := c.targets.Path()
	found, ok := c.targets.Find(n)
	if !ok || found.Kind() == canonjson.Null {
		return nil, nil
	}
	list := []canonjson.Node{found}
	if found.Kind() == canonjson.Array {
		list = list[:0]
		for i := range found.Len() {
			list = append(list, found.At(i))
		}
	}
	refused := func(text string) error {
		return problem.New(problem.Invalid, CodeTarget, "%s %s", path, text).With(problem.Issue{Path: path, Text: text})
	}
	if len(list) > maxTargets {
		return nil, refused("names too many reply targets")
	}
	var out []string
	for _, t := range list {
		if t.Kind() != canonjson.String || len(t.Text()) > maxURL {
			return nil, refused("must be a URL, or a list of URLs")
		}
		origin, _, ok := originOf(t.Text())
		if !ok || !slices.Contains(c.origins, origin) {
			return nil, refused("is of no origin that the connector allows")
		}
		out = append(out, t.Text())
	}
	return out, nil
}

// without is an object without a member.
func without(n canonjson.Node, name string) canonjson.Node {
	at, ok := n.Index(name)
	if !ok {
		return n
	}
	var rest []canonjson.Node
	for i := range n.Len() {
		if i != at {
			rest = append(rest, n.At(i))
		}
	}
	return n.With(rest)
}
