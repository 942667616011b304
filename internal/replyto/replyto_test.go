package replyto_test

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/replyto"
)

func TestCheck(t *testing.T) {
	long := strings.Repeat("a", 300)
	hook := event.ReplyTarget{Type: "webhook", URL: "https://hook.test/a"}
	with := func(t event.ReplyTarget, f func(*event.ReplyTarget)) event.ReplyTarget { f(&t); return t }
	mail := event.ReplyTarget{Type: "mail", Server: "office", To: []string{"ann@example.com"}}
	file := event.ReplyTarget{Type: "file", Folder: "out", Path: "a.jsonl"}
	bus := event.ReplyTarget{Type: "nats", Server: "main", Subject: "answers.a"}
	for name, row := range map[string]struct {
		t    event.ReplyTarget
		says string // of the error; empty: it is good
	}{
		"webhook":               {hook, ""},
		"webhook by secret":     {event.ReplyTarget{Type: "webhook", URLSecret: "slack", Format: "slack"}, ""},
		"both":                  {with(hook, func(t *event.ReplyTarget) { t.URLSecret = "slack" }), "one of the two"},
		"neither":               {event.ReplyTarget{Type: "webhook"}, "one of the two"},
		"a value for a name":    {event.ReplyTarget{Type: "webhook", URLSecret: "https://hooks.slack.test/T0/B0/hunter2"}, "name of the configuration"},
		"format":                {with(hook, func(t *event.ReplyTarget) { t.Format = "teams" }), "cloudevents_binary"},
		"signing":               {with(hook, func(t *event.ReplyTarget) { t.Signing = "rsa" }), "hmac or ed25519"},
		"ed25519":               {with(hook, func(t *event.ReplyTarget) { t.Signing, t.Secret = "ed25519", "key" }), ""},
		"ed25519 without a key": {with(hook, func(t *event.ReplyTarget) { t.Signing = "ed25519" }), "keygen"},
		"binary":                {with(hook, func(t *event.ReplyTarget) { t.Format = "cloudevents_binary" }), ""},
		"binary with own header": {with(hook, func(t *event.ReplyTarget) {
			t.Format, t.Headers = "cloudevents_binary", map[string]string{"Ce-Id": "x"}
		}), "ce-"},
		"user information":       {with(hook, func(t *event.ReplyTarget) { t.URL = "https://ann:hunter2@hook.test" }), "must not hold"},
		"no type":                {event.ReplyTarget{URL: "https://hook.test"}, "file, mail, nats, plugin, session, stdout, webhook"},
		"member of another type": {with(file, func(t *event.ReplyTarget) { t.URL = "https://hook.test" }), "a target of type file has no member url; it has type, folder, path"},
		"stdout":                 {event.ReplyTarget{Type: "stdout"}, ""},
		"stdout with a path":     {event.ReplyTarget{Type: "stdout", Path: "x"}, "no member path"},
		"file":                   {file, ""},
		"file below":             {with(file, func(t *event.ReplyTarget) { t.Path = "2027/march ä.jsonl" }), ""},
		"file without folder":    {with(file, func(t *event.ReplyTarget) { t.Folder = "" }), "targets.folders"},
		"file above":             {with(file, func(t *event.ReplyTarget) { t.Path = "../a" }), "relative"},
		"file through":           {with(file, func(t *event.ReplyTarget) { t.Path = "a/../../b" }), "relative"},
		"file absolute":          {with(file, func(t *event.ReplyTarget) { t.Path = "/etc/passwd" }), "relative"},
		"file dot":               {with(file, func(t *event.ReplyTarget) { t.Path = "." }), "relative"},
		"file backslash":         {with(file, func(t *event.ReplyTarget) { t.Path = `a\b` }), "printable"},
		"file line":              {with(file, func(t *event.ReplyTarget) { t.Path = "a\nb" }), "printable"},
		"file long":              {with(file, func(t *event.ReplyTarget) { t.Path = long }), "longer"},
		"mail":                   {mail, ""},
		"mail to nobody":         {with(mail, func(t *event.ReplyTarget) { t.To = nil }), "list of addresses"},
		"mail with a name":       {with(mail, func(t *event.ReplyTarget) { t.To = []string{"Ann <ann@example.com>"} }), "to[0]"},
		"mail line":              {with(mail, func(t *event.ReplyTarget) { t.To = []string{"a@b.c", "ann@example.com\r\nRCPT TO:<x@y.z>"} }), "to[1]"},
		"mail twice":             {with(mail, func(t *event.ReplyTarget) { t.To = []string{"a@b.c", "a@b.c"} }), "twice"},
		"mail to many":           {with(mail, func(t *event.ReplyTarget) { t.To = make([]string, replyto.MaxRecipients+1) }), "16"},
		"mail subject":           {with(mail, func(t *event.ReplyTarget) { t.Subject = "Größe 👍" }), ""},
		"mail subject line":      {with(mail, func(t *event.ReplyTarget) { t.Subject = "a\r\nBcc: x@y.z" }), "one line"},
		"mail subject long":      {with(mail, func(t *event.ReplyTarget) { t.Subject = long }), "one line"},
		"session":                {event.ReplyTarget{Type: "session", Session: "triage"}, ""},
		"session without one":    {event.ReplyTarget{Type: "session"}, "alias"},
		"session long":           {event.ReplyTarget{Type: "session", Session: event.SessionID(long)}, "longer"},
		"nats":                   {bus, ""},
		"nats without a server":  {with(bus, func(t *event.ReplyTarget) { t.Server = "" }), "server and subject"},
		"nats wildcard":          {with(bus, func(t *event.ReplyTarget) { t.Subject = "answers.>" }), "wildcard"},
		"nats star":              {with(bus, func(t *event.ReplyTarget) { t.Subject = "a.b*" }), "without * and >"},
		"nats empty token":       {with(bus, func(t *event.ReplyTarget) { t.Subject = "a..b" }), "empty token"},
		"nats system":            {with(bus, func(t *event.ReplyTarget) { t.Subject = "$JS.API.STREAM.DELETE.A" }), "the server's own"},
		"nats inbox":             {with(bus, func(t *event.ReplyTarget) { t.Subject = "_INBOX.a" }), "the server's own"},
		"nats line":              {with(bus, func(t *event.ReplyTarget) { t.Subject = "a\r\nPUB b 0" }), "visible ASCII"},
		"nats long":              {with(bus, func(t *event.ReplyTarget) { t.Subject = long }), "too long"},
		"plugin":                 {event.ReplyTarget{Type: "plugin", Plugin: "pager"}, ""},
		"plugin path":            {event.ReplyTarget{Type: "plugin", Plugin: "/bin/sh"}, "name of the configuration"},
		"plugin without one":     {event.ReplyTarget{Type: "plugin"}, "targets.plugins"},
	} {
		err := replyto.Check(&row.t)
		var p *problem.Error
		switch {
		case row.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.says != "" && (!errors.As(err, &p) || p.Kind != problem.Invalid || !strings.Contains(p.Detail, row.says)):
			t.Errorf("%s: %v, want one that says %q", name, err, row.says)
		case strings.Contains(strings.ToLower(errText(err)), "hunter2"): // I-33
			t.Errorf("%s: the error repeats a secret: %v", name, err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Every member of a target is read, shown, and belongs to some type; what only
// the daemon says is not taken from a caller.
func TestEveryMember(t *testing.T) {
	var in api.ReplyTarget
	v := reflect.ValueOf(&in).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x" + v.Type().Field(i).Name)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"a"}))
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		default:
			t.Fatalf("a member of kind %s", f.Kind())
		}
	}
	got := replyto.Of(&in)
	if got.Origin != "" || got.From != "" {
		t.Errorf("a caller says origin %q and from %q", got.Origin, got.From)
	}
	got.Origin, got.From = in.Origin, in.From
	if back := replyto.Show(&got); !reflect.DeepEqual(back, in) {
		t.Errorf("shown %+v, want %+v", back, in)
	}
	got.Type = "stdout" // has no member: the first that is set is told
	for range v.NumField() {
		err := replyto.Check(&got)
		if err == nil {
			break
		}
		_, rest, _ := strings.Cut(err.Error(), "has no member ")
		name, _, _ := strings.Cut(rest, ";")
		for i := range v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
				reflect.ValueOf(&got).Elem().FieldByName(v.Type().Field(i).Name).SetZero()
			}
		}
	}
	got.Origin, got.From = "", ""
	if left := (event.ReplyTarget{Type: "stdout"}); !reflect.DeepEqual(got, left) {
		t.Errorf("members that no check knows: %+v", got)
	}
}

// docs/reference/targets.md names every type with its members.
func TestReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/targets.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range replyto.Types() {
		if !strings.Contains(string(page), "### `"+name+"`") {
			t.Errorf("the page has no section on %s", name)
		}
	}
	for i, typ := 0, reflect.TypeFor[api.ReplyTarget](); i < typ.NumField(); i++ {
		if tag, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); !strings.Contains(string(page), "`"+tag+"`") {
			t.Errorf("the page does not name %s", tag)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, row := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.b.c", false}, {"a.b", "a", false}, {"a.*", "a.b", true}, {"a.*", "a.b.c", false}, {"*.b", "a.b", true},
		{"a.>", "a.b.c", true}, {"a.>", "a", false}, {">", "a", true}, {"*", "a.b", false}, {"A.b", "a.b", false},
	} {
		if got := replyto.Matches([]string{"none", row.pattern}, row.subject); got != row.want {
			t.Errorf("%s of %s: %v", row.subject, row.pattern, got)
		}
		if !replyto.Pattern(row.pattern) {
			t.Errorf("%s is no pattern", row.pattern)
		}
	}
	for _, bad := range []string{"", "a..b", "a.>.b", "a b", "$SYS.>", "a*", "_INBOX.>"} {
		if replyto.Pattern(bad) {
			t.Errorf("%q is a pattern", bad)
		}
	}
}

func TestMayMail(t *testing.T) {
	allowed := []string{"ann@Example.com", "*@team.test"}
	for address, want := range map[string]bool{
		"ann@example.com": true, "bob@example.com": false, "bob@team.test": true, "bob@TEAM.test": true, "bob@evil.team.test": false,
		"bob@team.test.evil": false, "x@evilteam.test": false,
	} {
		if got := replyto.MayMail(allowed, address); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	if !replyto.MayMail([]string{"*"}, "a@b.c") || replyto.MayMail(nil, "a@b.c") {
		t.Error("everybody and nobody")
	}
}

// What is accepted can end no line, of whatever protocol it goes into.
func FuzzCheck(f *testing.F) {
	f.Add("ann@example.com", "a.jsonl", "answers.a", "subject")
	f.Add("a@b\r\nDATA", "../x", "a.>", "a\r\nBcc: b")
	f.Fuzz(func(t *testing.T, address, path, subject, title string) {
		for _, target := range []event.ReplyTarget{
			{Type: "mail", Server: "m", To: []string{address}, Subject: title}, {Type: "file", Folder: "f", Path: path}, {Type: "nats", Server: "n", Subject: subject},
		} {
			if replyto.Check(&target) != nil {
				continue
			}
			text := strings.Join(target.To, "") + target.Path + target.Subject
			if strings.ContainsFunc(text, unicode.IsControl) || strings.ContainsAny(text, "\u2028\u2029") {
				t.Errorf("accepted %+v", target)
			}
			if slices.Contains(strings.Split(target.Path, "/"), "..") || strings.HasPrefix(target.Path, "/") {
				t.Errorf("accepted the path %q", target.Path)
			}
		}
	})
}
