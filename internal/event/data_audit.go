package event

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// AuditStream holds what an administrator wants to know afterwards: who was
// turned away, and who changed what. It belongs to no session, no user and no
// node: every entry is a command.
const AuditStream Stream = "audit:daemon"

// The types of the audit stream. They hold names, ids, codes and addresses of
// peers, never a secret, and no text that is longer than MaxAuditText.
const (
	TypeAuditStarted          Type = "audit.started"
	TypeAuditRefused          Type = "audit.refused"
	TypeAuditTokenCreated     Type = "audit.token.created"
	TypeAuditTokenRevoked     Type = "audit.token.revoked"
	TypeAuditTargetChanged    Type = "audit.target.changed"
	TypeAuditSecretChanged    Type = "audit.secret.changed"
	TypeAuditDeliveryReplayed Type = "audit.delivery.replayed"
)

// Audit is the data of an event of the audit stream.
type Audit interface {
	Data
	// clip bounds the texts.
	clip()
}

// AuditStarted says that a daemon began to work, and with what.
type AuditStarted struct {
	Config  string `json:"config,omitzero"` // SHA-256 of the configuration file
	Listen  string `json:"listen"`          // where it listens
	Node    string `json:"node,omitzero"`   // one process life of a node
	TLS     string `json:"tls,omitzero"`    // `files`, `acme` or `proxy`; absent: loopback or a socket
	Version string `json:"version"`         // of the daemon
}

// AuditRefused counts requests that were turned away for one reason from one
// peer within a minute. What differs between them is told of the first.
type AuditRefused struct {
	Actor  string `json:"actor,omitzero"`  // the token, where it is known: its name and id
	Count  int64  `json:"count"`           // how many
	Detail string `json:"detail,omitzero"` // the host or origin that was named
	Method string `json:"method,omitzero"` // of the request
	Path   string `json:"path,omitzero"`   // of the request, without its query
	Peer   string `json:"peer,omitzero"`   // address it came from; absent: from more peers than are counted apart
	Reason string `json:"reason"`          // the problem's code
	Since  string `json:"since"`           // time of the first
}

// AuditTokenCreated says that somebody is about to make a token.
type AuditTokenCreated struct {
	Actor     string `json:"actor,omitzero"`
	ExpiresAt string `json:"expires_at,omitzero"` // absent: it does not expire
	Name      string `json:"name,omitzero"`       // for people
	Peer      string `json:"peer,omitzero"`       // address that it was asked from
	Role      string `json:"role"`                // `reader`, `operator` or `admin`
	TokenID   string `json:"token_id"`            // `tok_…`
	UserID    string `json:"user_id,omitzero"`    // the user that it is bound to
}

// AuditTokenRevoked says that somebody is about to revoke a token.
type AuditTokenRevoked struct {
	Actor   string `json:"actor,omitzero"`
	Peer    string `json:"peer,omitzero"` // address that it was asked from
	TokenID string `json:"token_id"`      // `tok_…`
}

// AuditTargetChanged says that somebody pauses, resumes or resets a receiver.
type AuditTargetChanged struct {
	Actor    string   `json:"actor,omitzero"`
	Change   string   `json:"change"`        // `paused`, `resumed` or `reset`
	Peer     string   `json:"peer,omitzero"` // address that it was asked from
	Reason   string   `json:"reason,omitzero"`
	TargetID TargetID `json:"target_id"`
}

// AuditSecretChanged says that somebody changes a secret slot. It never holds a value.
type AuditSecretChanged struct {
	Actor   string `json:"actor,omitzero"`
	Change  string `json:"change"`           // `created`, `rotated`, `hosts`, `deleted` or `reencrypted`
	Hosts   string `json:"hosts,omitzero"`   // where it may be sent from now on, with commas between
	Name    string `json:"name,omitzero"`    // of the slot
	Owner   string `json:"owner,omitzero"`   // user whose slot it is
	Peer    string `json:"peer,omitzero"`    // address that it was asked from
	Version int64  `json:"version,omitzero"` // of the value
}

// AuditDeliveryReplayed says that somebody sends deliveries again: one by
// force, or many.
type AuditDeliveryReplayed struct {
	Actor      string     `json:"actor,omitzero"`
	Count      int64      `json:"count,omitzero"`       // of a bulk replay: how many
	DeliveryID DeliveryID `json:"delivery_id,omitzero"` // of one
	Forced     bool       `json:"forced,omitzero"`      // although it was replayed, resolved or delivered
	Job        string     `json:"job,omitzero"`         // of a bulk replay
	Peer       string     `json:"peer,omitzero"`        // address that it was asked from
	Reason     string     `json:"reason,omitzero"`
}

func (*AuditStarted) EventType() Type          { return TypeAuditStarted }
func (*AuditRefused) EventType() Type          { return TypeAuditRefused }
func (*AuditTokenCreated) EventType() Type     { return TypeAuditTokenCreated }
func (*AuditTokenRevoked) EventType() Type     { return TypeAuditTokenRevoked }
func (*AuditTargetChanged) EventType() Type    { return TypeAuditTargetChanged }
func (*AuditSecretChanged) EventType() Type    { return TypeAuditSecretChanged }
func (*AuditDeliveryReplayed) EventType() Type { return TypeAuditDeliveryReplayed }

func (d *AuditStarted) clip() { clip(&d.Config, &d.Listen, &d.Node, &d.TLS, &d.Version) }
func (d *AuditRefused) clip() {
	clip(&d.Actor, &d.Detail, &d.Method, &d.Path, &d.Peer, &d.Reason, &d.Since)
}
func (d *AuditTokenCreated) clip() {
	clip(&d.Actor, &d.ExpiresAt, &d.Name, &d.Peer, &d.Role, &d.TokenID, &d.UserID)
}
func (d *AuditTokenRevoked) clip()  { clip(&d.Actor, &d.Peer, &d.TokenID) }
func (d *AuditTargetChanged) clip() { clip(&d.Actor, &d.Change, &d.Peer, &d.Reason) }
func (d *AuditSecretChanged) clip() {
	clip(&d.Actor, &d.Change, &d.Hosts, &d.Name, &d.Owner, &d.Peer)
}
func (d *AuditDeliveryReplayed) clip() { clip(&d.Actor, &d.Job, &d.Peer, &d.Reason) }

// MaxAuditText bounds a text of the audit stream, in bytes.
const MaxAuditText = 256

// Clip bounds the texts of a record and makes them such that they can be shown
// on a terminal: what a stranger sends stands in them.
func Clip(d Audit) { d.clip() }

func clip(texts ...*string) {
	for _, t := range texts {
		*t = clipped(*t)
	}
}

func clipped(s string) string {
	if len(s) > MaxAuditText {
		n := MaxAuditText
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
