// Package replyto holds the rules of what a reply target may look like: which
// members a type has, and which forms they take. What the configuration knows
// (secrets, servers, folders, plugins) and whose a session is are checked by
// whoever knows it.
package replyto

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Bounds of a target.
const (
	MaxRecipients  = 16
	MaxMailAddress = 254 // bytes; RFC 5321, section 4.5.3.1.3
	MaxMailSubject = 200 // bytes
	MaxPath        = 255 // bytes
	MaxNATSSubject = 255 // bytes
)

// Types lists the types of targets.
func Types() []string { return slices.Sorted(maps.Keys(members)) }

// members are those that a type has beside its own name.
var members = map[string][]string{
	event.TargetWebhook: {"url", "url_secret", "secret", "headers", "format", "signing"},
	event.TargetFile:    {"folder", "path"},
	event.TargetStdout:  {},
	event.TargetMail:    {"server", "to", "subject"},
	event.TargetSession: {"session"},
	event.TargetNATS:    {"server", "subject"},
	event.TargetPlugin:  {"plugin"},
}

// given names the members of t that are set.
func given(t *event.ReplyTarget) []string {
	var out []string
	for _, m := range []struct {
		name string
		set  bool
	}{
		{"url", t.URL != ""}, {"url_secret", t.URLSecret != ""}, {"secret", t.Secret != ""}, {"headers", len(t.Headers) > 0},
		{"format", t.Format != ""}, {"signing", t.Signing != ""}, {"folder", t.Folder != ""}, {"path", t.Path != ""},
		{"server", t.Server != ""}, {"to", len(t.To) > 0}, {"subject", t.Subject != ""}, {"session", t.Session != ""}, {"plugin", t.Plugin != ""},
	} {
		if m.set {
			out = append(out, m.name)
		}
	}
	return out
}

// Of reads a target as a caller sends it. What only the daemon says of a target
// (origin, from, fallback) is passed over, so that what was read can be sent back.
func Of(t *api.ReplyTarget) event.ReplyTarget {
	return event.ReplyTarget{
		Type: t.Type, URL: t.URL, Secret: t.Secret, Headers: t.Headers, URLSecret: t.URLSecret, Format: t.Format, Signing: t.Signing,
		Folder: t.Folder, Path: t.Path, Server: t.Server, To: t.To, Subject: t.Subject, Session: event.SessionID(t.Session), Plugin: t.Plugin,
	}
}

// Show is a target as callers see it.
func Show(t *event.ReplyTarget) api.ReplyTarget {
	return api.ReplyTarget{
		Type: t.Type, URL: t.URL, Secret: t.Secret, Headers: t.Headers, URLSecret: t.URLSecret, Origin: t.Origin, Format: t.Format, Signing: t.Signing,
		Folder: t.Folder, Path: t.Path, Server: t.Server, To: t.To, From: t.From, Subject: t.Subject, Session: string(t.Session), Plugin: t.Plugin,
	}
}

func wrong(format string, args ...any) error {
	return problem.New(problem.Invalid, "invalid_reply_target", format, args...)
}

// Check holds the rules of a target's form. The error is a *problem.Error of kind
// invalid; it repeats no address.
func Check(t *event.ReplyTarget) error {
	known, ok := members[t.Type]
	if !ok {
		return wrong("the type of a reply target must be one of %s", strings.Join(Types(), ", "))
	}
	for _, name := range given(t) {
		if !slices.Contains(known, name) {
			return wrong("a target of type %s has no member %s; it has %s", t.Type, name, strings.Join(append([]string{"type"}, known...), ", "))
		}
	}
	for name, value := range map[string]string{"secret": t.Secret, "url_secret": t.URLSecret, "folder": t.Folder, "server": t.Server, "plugin": t.Plugin} {
		if value != "" && !nameForm.MatchString(value) {
			return wrong("%s must be a name of the configuration, [A-Za-z0-9_-]{1,64}", name)
		}
	}
	switch t.Type {
	case event.TargetWebhook:
		return checkWebhook(t)
	case event.TargetFile:
		return checkFile(t)
	case event.TargetMail:
		return checkMail(t)
	case event.TargetSession:
		if t.Session == "" {
			return wrong("a target of type session wants session: the id of a session, or its alias")
		}
		if len(t.Session) > 128 {
			return wrong("session is longer than an id can be")
		}
	case event.TargetNATS:
		if t.Server == "" || t.Subject == "" {
			return wrong("a target of type nats wants server and subject")
		}
		if why := faultOfSubject(t.Subject); why != "" {
			return wrong("the NATS subject %s", why)
		}
	case event.TargetPlugin:
		if t.Plugin == "" {
			return wrong("a target of type plugin wants plugin: a name of targets.plugins")
		}
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func checkWebhook(t *event.ReplyTarget) error {
	if (t.URL == "") == (t.URLSecret == "") {
		return wrong("a webhook wants url, or url_secret: the name of a secret that holds the URL; one of the two")
	}
	if t.URL != "" {
		if _, err := netguard.CheckURL(t.URL); err != nil {
			return err
		}
	}
	formats := []string{event.FormatStandard, event.FormatSlack, event.FormatCloudEvents, event.FormatCloudEventsBinary}
	if t.Format != "" && !slices.Contains(formats, t.Format) {
		return wrong("format must be one of %s", strings.Join(formats, ", "))
	}
	switch t.Signing {
	case "", event.SigningHMAC:
	case event.SigningEd25519:
		if t.Secret == "" {
			return wrong("signing with ed25519 wants secret: the name of one that holds a key of the form whsk_…; holdfast targets keygen makes one")
		}
	default:
		return wrong("signing must be hmac or ed25519")
	}
	if t.Format == event.FormatCloudEventsBinary {
		for name := range t.Headers {
			if strings.HasPrefix(strings.ToLower(name), "ce-") {
				return wrong("headers that begin with ce- are those of the event")
			}
		}
	}
	return nil
}

func checkFile(t *event.ReplyTarget) error {
	p := t.Path
	switch {
	case t.Folder == "" || p == "":
		return wrong("a target of type file wants folder, a name of targets.folders, and path within it")
	case len(p) > MaxPath:
		return wrong("path is longer than %d bytes", MaxPath)
	case !printable(p) || strings.ContainsAny(p, `\:`):
		return wrong(`path must be of printable characters, without \ and :`)
	case path.IsAbs(p) || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return wrong("path must be relative to its folder, without . and .. and empty elements")
	}
	return nil
}

// mailForm is an address that needs no quoting and no extension (RFC 5321).
var mailForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$")

// MailAddress says whether an address is a bare one, such as a@b.example, without
// a name, quotes or a byte that could end a line.
func MailAddress(a string) bool {
	local, _, _ := strings.Cut(a, "@")
	return len(a) <= MaxMailAddress && len(local) <= 64 && mailForm.MatchString(a)
}

func checkMail(t *event.ReplyTarget) error {
	if t.Server == "" || len(t.To) == 0 {
		return wrong("a target of type mail wants server, a name of targets.mail, and to: a list of addresses")
	}
	if len(t.To) > MaxRecipients {
		return wrong("a mail goes to %d addresses at most", MaxRecipients)
	}
	for i, a := range t.To {
		if !MailAddress(a) {
			return wrong("to[%d] is no bare mail address such as ann@example.com", i)
		}
		if slices.Contains(t.To[:i], a) {
			return wrong("to[%d] is named twice", i)
		}
	}
	if len(t.Subject) > MaxMailSubject || !printable(t.Subject) {
		return wrong("the subject of a mail is one line of printable characters, of at most %d bytes", MaxMailSubject)
	}
	return nil
}

// printable says whether s is one line of text without characters that act.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// faultOfSubject says why nothing may be published under a subject: it is not one,
// it is a pattern, or it is one by which a server or a client is steered.
func faultOfSubject(s string) string {
	if len(s) > MaxNATSSubject {
		return "is too long"
	}
	for _, token := range strings.Split(s, ".") {
		switch {
		case token == "":
			return "has an empty token"
		case token == "*" || token == ">":
			return "must hold no wildcard"
		}
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' || s[i] == '*' || s[i] == '>' {
			return "must be of visible ASCII characters without * and >"
		}
	}
	if s[0] == '$' || strings.HasPrefix(strings.ToUpper(s), "_INBOX") {
		return "is one of the server's own"
	}
	return ""
}

// Matches says whether a subject is within one of the patterns, in which * stands
// for one token and a > at the end for one or more.
func Matches(patterns []string, subject string) bool {
	tokens := strings.Split(subject, ".")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		want := strings.Split(pattern, ".")
		for i, w := range want {
			if w == ">" && i == len(want)-1 {
				return len(tokens) > i
			}
			if i >= len(tokens) || w != "*" && w != tokens[i] {
				return false
			}
		}
		return len(want) == len(tokens)
	})
}

// MayMail says whether a list of receivers allows an address: the address
// itself, *@domain, or *. Domains are the same in any case.
func MayMail(allowed []string, address string) bool {
	_, domain, _ := strings.Cut(address, "@")
	return slices.ContainsFunc(allowed, func(a string) bool {
		if d, ok := strings.CutPrefix(a, "*@"); ok {
			return strings.EqualFold(d, domain)
		}
		return a == "*" || strings.EqualFold(a, address)
	})
}

// Pattern says whether s is a pattern for Matches.
func Pattern(s string) bool {
	tokens := strings.Split(s, ".")
	for i, token := range tokens {
		if token == ">" && i == len(tokens)-1 || token == "*" {
			tokens[i] = "x"
		}
	}
	return faultOfSubject(strings.Join(tokens, ".")) == ""
}
