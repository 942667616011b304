package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/inbound"
)

// Connector takes events from outside, at POST /v1/connectors/NAME, and makes
// a run of each.
type Connector struct {
	// Type is what it speaks: json (default; any JSON body), github (GitHub's
	// webhooks) or slack (Slack's Events API). The last two know the events of
	// theirs and what of them to show the model.
	Type string `yaml:"type"`
	// Auth is how a sender proves who it is.
	Auth ConnectorAuth `yaml:"auth"`
	// Unauthenticated: everybody who reaches the daemon may send events, and so
	// make runs. Only where something in front of the daemon knows the sender.
	Unauthenticated bool `yaml:"unauthenticated"`
	// UserID is the user in whose sessions it works. Default: default.
	UserID string `yaml:"user_id"`
	// EventID says what tells one event from another: the same event makes one
	// run, however often it is sent. Default: X-GitHub-Delivery (github), event_id
	// of the body (slack), webhook-id (standard_webhooks); else it must be named.
	EventID ConnectorEventID `yaml:"event_id"`
	// Session says where runs go.
	Session ConnectorSession `yaml:"session"`
	// Input says what of the body a run is given. Default: a ready text (github,
	// slack), else the whole body.
	Input ConnectorInput `yaml:"input"`
	// Events lists the events of GitHub or Slack that make runs, such as issues
	// (all its actions), issues.opened, app_mention, message.channel. Default, of
	// github: issues.opened, issues.reopened, issue_comment.created,
	// pull_request.opened, pull_request.reopened, pull_request.ready_for_review,
	// pull_request.synchronize, push; of slack: app_mention, message.im.
	Events []string `yaml:"events"`
	// OtherEvents is ignore (default: answered with 200 and why) or refuse (422).
	OtherEvents string `yaml:"other_events"`
	// Bots: what bots do makes runs too. What the app of this connector says in
	// Slack itself never does.
	Bots bool `yaml:"bots"`
	// ReplyTargets are where its runs answer, as in POST /v1/sessions/{s}/runs.
	// Default: those of the session.
	ReplyTargets []any `yaml:"reply_targets"`
	// RememberTargets makes the targets of a run (reply_targets or
	// payload_targets) those of its session, if no run is under way there; the
	// answer says whether that was done.
	RememberTargets bool `yaml:"remember_targets"`
	// AllowPayloadTargets lets a body name reply targets, at payload_targets. Off:
	// nothing that a sender writes decides where an answer goes.
	AllowPayloadTargets bool `yaml:"allow_payload_targets"`
	// PayloadTargets says where in a body they are, and which are allowed.
	PayloadTargets PayloadTargets `yaml:"payload_targets"`
	// Limits bound what is taken.
	Limits ConnectorLimits `yaml:"limits"`
}

// ConnectorAuth is how a sender proves who it is.
type ConnectorAuth struct {
	// Type is bearer (Authorization: Bearer and the secret), standard_webhooks,
	// github (X-Hub-Signature-256), slack (X-Slack-Signature) or none, which wants
	// unauthenticated. Default: that of a github or slack connector.
	Type string `yaml:"type"`
	// Secrets are references, any one of which counts: more than one while a secret is changed.
	Secrets []Ref `yaml:"secrets"`
	// MaxAge is how far the time in a signature of standard_webhooks or slack may
	// be from this machine's clock, from 1s to 1h. Default 5m.
	MaxAge Duration `yaml:"max_age"`
}

// ConnectorEventID says where the id of an event is: one of its members.
type ConnectorEventID struct {
	// Header names a header.
	Header string `yaml:"header"`
	// Pointer is a JSON pointer into the body.
	Pointer string `yaml:"pointer"`
	// Digest: the body itself is the id, so that equal bodies are one event. It is
	// the one id that a signature of github covers.
	Digest bool `yaml:"digest"`
}

// ConnectorSession says where runs go: fixed, key, or template alone.
type ConnectorSession struct {
	// Fixed is the id or alias of one session. With template it is made at first use.
	Fixed string `yaml:"fixed"`
	// Key is a text with placeholders (connectors.md); each value of it has a
	// session of its own, made from template at first use, such as {{thread}} or {{/channel}}.
	Key string `yaml:"key"`
	// Template names one of session_templates. Without fixed and key each event
	// has a new session.
	Template string `yaml:"template"`
	// Title of a session that is made, a text with placeholders. Default: the template's, or the key.
	Title string `yaml:"title"`
}

// ConnectorInput says what of the body a run is given: at most one of text,
// pointer and body.
type ConnectorInput struct {
	// Text is a text with placeholders.
	Text string `yaml:"text"`
	// Pointer is a JSON pointer to what is given: a string as text, else as JSON.
	Pointer string `yaml:"pointer"`
	// Body: the whole body, as JSON, also where there is a ready text.
	Body bool `yaml:"body"`
	// MaxBytes of the input; more is refused. At most 1 MiB. Default 256 KiB.
	MaxBytes int `yaml:"max_bytes"`
}

// PayloadTargets are reply targets that a body names.
type PayloadTargets struct {
	// Pointer is a JSON pointer to a URL, or to a list of URLs.
	Pointer string `yaml:"pointer"`
	// Origins lists what may be named, such as https://hooks.example.com.
	Origins []string `yaml:"origins"`
}

// ConnectorLimits bound what a connector takes.
type ConnectorLimits struct {
	// BodyBytes of one event. At most 25 MiB. Default 1 MiB.
	BodyBytes int `yaml:"body_bytes"`
	// Rate is how many events a second it takes, on each node; the others are
	// answered with 429. Default 20.
	Rate float64 `yaml:"rate"`
	// Burst is how many it takes at once. Default 100.
	Burst int `yaml:"burst"`
}

// SessionTemplate is how a session is made for an event.
type SessionTemplate struct {
	// Title of the session.
	Title string `yaml:"title"`
	// Instructions of the session. They have no placeholders: nothing of a body
	// ever stands in instructions.
	Instructions string `yaml:"instructions"`
	// Tools are the names of the tools it may use. Default: every configured tool;
	// [] is none.
	Tools []string `yaml:"tools"`
	// Route of its runs. Default: default_route.
	Route string `yaml:"route"`
	// Model of its runs. Default: the route's.
	Model string `yaml:"model"`
	// InputContract is the schema that inputs must meet.
	InputContract any `yaml:"input_contract"`
	// OutputContract is the schema that answers must meet.
	OutputContract any `yaml:"output_contract"`
	// MaxRepairAttempts of an answer that does not. Default 3, at most 5.
	MaxRepairAttempts *int `yaml:"max_repair_attempts"`
	// ReplyTargets are where its runs answer, as in POST /v1/sessions.
	ReplyTargets []any `yaml:"reply_targets"`
	// OnDoubt is ask (default) or continue.
	OnDoubt string `yaml:"on_doubt"`
	// MaxTurns of a run. Default 50.
	MaxTurns int `yaml:"max_turns"`
	// HistoryLimit is how many events of context are kept. Default: by the model's window.
	HistoryLimit int `yaml:"history_limit"`
}

// aliasForm is the form of a session's alias.
var aliasForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// maxConnectors bounds the connectors of a file.
const maxConnectors = 256

func (c *Config) checkConnectors() *Error {
	for _, name := range sorted(c.SessionTemplates) {
		if _, err := c.Template(name); err != nil {
			return err
		}
	}
	if len(c.Connectors) > maxConnectors {
		return mistake("connectors", "more than %d connectors", maxConnectors)
	}
	for _, name := range sorted(c.Connectors) {
		if _, err := c.Connector(name); err != nil {
			return err
		}
		if _, err := c.ReplyTargets(name); err != nil {
			return err
		}
	}
	return nil
}

// Connector compiles a connector.
func (c *Config) Connector(name string) (*inbound.Connector, *Error) {
	k, path := c.Connectors[name], "connectors."+name
	if !nameForm.MatchString(name) || strings.HasPrefix(name, "ses_") {
		return nil, mistake(path, "a connector's name is [A-Za-z0-9_-]{1,64}, and does not begin with ses_")
	}
	if err := c.checkConnector(path, &k); err != nil {
		return nil, err
	}
	spec := inbound.Spec{
		Name: name, Kind: inbound.Kind(k.Type), Auth: inbound.Auth(k.Auth.Type), Open: k.Unauthenticated, MaxAge: k.Auth.MaxAge.Or(0), BodyBytes: k.Limits.BodyBytes,
		EventHeader: k.EventID.Header, EventPointer: k.EventID.Pointer, EventDigest: k.EventID.Digest,
		Fixed: k.Session.Fixed, Key: k.Session.Key, Fresh: k.Session.Fixed == "" && k.Session.Key == "" && k.Session.Template != "", Title: k.Session.Title,
		Pointer: k.Input.Pointer, Text: k.Input.Text, Whole: k.Input.Body, Input: k.Input.MaxBytes,
		Events: k.Events, Refuse: k.OtherEvents == "refuse", Bots: k.Bots, Targets: k.PayloadTargets.Pointer, Origins: k.PayloadTargets.Origins,
	}
	if spec.Kind == "" {
		spec.Kind = inbound.KindJSON
	}
	if spec.Auth == "" {
		switch {
		case k.Unauthenticated:
			spec.Auth = inbound.AuthNone
		case spec.Kind == inbound.KindGitHub:
			spec.Auth = inbound.AuthGitHub
		case spec.Kind == inbound.KindSlack:
			spec.Auth = inbound.AuthSlack
		default:
			spec.Auth = inbound.AuthNone // and refused
		}
	}
	rules, err := inbound.Compile(spec)
	var m *inbound.Mistake
	if errors.As(err, &m) {
		return nil, mistake(path+"."+m.Key, "%s", m.Text)
	}
	if spec.Auth != inbound.AuthNone && len(k.Auth.Secrets) == 0 {
		return nil, mistake(path+".auth", "name the secrets, as references: secrets: [{env: NAME}]")
	}
	return rules, nil
}

// checkConnector holds the rules of what is not the mapping's.
func (c *Config) checkConnector(path string, k *Connector) *Error {
	if len(k.Auth.Secrets) > maxConnectorSecrets {
		return mistake(path+".auth.secrets", "more than %d secrets", maxConnectorSecrets)
	}
	for i, r := range k.Auth.Secrets {
		if err := c.checkRef(fmt.Sprintf("%s.auth.secrets[%d]", path, i), r, true); err != nil {
			return err
		}
	}
	if u := k.UserID; u != "" && !userForm.MatchString(u) {
		return mistake(path+".user_id", "must be 1 to 128 printable ASCII characters")
	}
	switch f := k.Session.Fixed; {
	case f == "":
	case !aliasForm.MatchString(f) || strings.Trim(f, ".") == "":
		return mistake(path+".session.fixed", "is no id or alias of a session")
	case strings.HasPrefix(f, "ses_") && k.Session.Template != "":
		return mistake(path+".session", "a session with a ses_… id is there already: it wants no template")
	}
	if t := k.Session.Template; t != "" {
		if _, ok := c.SessionTemplates[t]; !ok {
			return mistake(path+".session.template", "session_templates names no %q", t)
		}
	} else if k.Session.Key != "" {
		return mistake(path+".session", "key wants template, from which sessions are made")
	}
	switch k.OtherEvents {
	case "", "ignore", "refuse":
	default:
		return mistake(path+".other_events", "must be ignore or refuse")
	}
	if k.AllowPayloadTargets != (k.PayloadTargets.Pointer != "") {
		return mistake(path, "reply targets of a body want both allow_payload_targets: true and payload_targets.pointer")
	}
	if k.Limits.Rate < 0 || k.Limits.Rate > 10_000 {
		return mistake(path+".limits.rate", "must be a number of events a second, up to 10000")
	}
	if k.Limits.Burst < 0 || k.Limits.Burst > 100_000 {
		return mistake(path+".limits.burst", "must be a number of events, up to 100000")
	}
	return nil
}

const maxConnectorSecrets = 8

// userForm bounds user ids, as admission does.
var userForm = regexp.MustCompile(`^[!-~]([ -~]{0,126}[!-~])?$`)

// ReplyTargets gives the targets of a connector; nil: those of the session.
func (c *Config) ReplyTargets(name string) (*[]api.ReplyTarget, *Error) {
	k := c.Connectors[name]
	if k.ReplyTargets == nil {
		return nil, nil
	}
	list, err := targetsOf("connectors."+name+".reply_targets", k.ReplyTargets)
	return &list, err
}

// Template gives a template as the body that makes such a session.
func (c *Config) Template(name string) (*api.CreateSession, *Error) {
	t, path := c.SessionTemplates[name], "session_templates."+name
	if !nameForm.MatchString(name) {
		return nil, mistake(path, "a template's name is [A-Za-z0-9_-]{1,64}")
	}
	out := &api.CreateSession{Title: t.Title, Instructions: t.Instructions, OnDoubt: t.OnDoubt, MaxTurns: t.MaxTurns, HistoryLimit: t.HistoryLimit}
	if t.Tools != nil {
		out.Tools = &t.Tools
	}
	if t.Route != "" {
		if _, ok := c.Routes[t.Route]; !ok {
			return nil, mistake(path+".route", "no route is named %q", t.Route)
		}
	}
	if t.Route != "" || t.Model != "" {
		out.RoutePolicy = &api.RoutePolicy{Route: t.Route, Model: t.Model}
	}
	var err *Error
	if t.InputContract != nil {
		raw, err := schemaText(path+".input_contract", t.InputContract)
		if err != nil {
			return nil, err
		}
		if _, list := contract.ParseSchema(raw); len(list) > 0 {
			return nil, mistake(path+".input_contract", "cannot be a contract: %s", list[0])
		}
		out.InputContract = &api.InputContract{Schema: raw}
	}
	if t.OutputContract != nil {
		raw, err := schemaText(path+".output_contract", t.OutputContract)
		if err != nil {
			return nil, err
		}
		if _, list := contract.ParseOutput(raw, t.MaxRepairAttempts); len(list) > 0 {
			return nil, mistake(path+".output_contract", "cannot be a contract: %s", list[0])
		}
		out.OutputContract = &api.OutputContract{Schema: raw, MaxRepairAttempts: t.MaxRepairAttempts}
	} else if t.MaxRepairAttempts != nil {
		return nil, mistake(path+".max_repair_attempts", "wants output_contract")
	}
	out.ReplyTargets, err = targetsOf(path+".reply_targets", t.ReplyTargets)
	return out, err
}

func schemaText(path string, v any) (api.Raw, *Error) {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, mistake(path, "is no JSON Schema: %v", err)
	}
	return raw, nil
}

// targetsOf reads reply targets in the form of the API.
func targetsOf(path string, list []any) ([]api.ReplyTarget, *Error) {
	var out []api.ReplyTarget
	for i, v := range list {
		var t api.ReplyTarget
		raw, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(raw, &t, json.RejectUnknownMembers(true))
		}
		if err != nil || t.Type == "" {
			return nil, mistake(fmt.Sprintf("%s[%d]", path, i), "is no reply target such as {type: webhook, url: \"https://hooks.example.com/a\"}")
		}
		out = append(out, t)
	}
	return out, nil
}
