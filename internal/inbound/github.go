package inbound

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// githubEvents are those of GitHub that make runs unless the configuration
// chooses: what asks for an answer, and not what follows from one.
var githubEvents = []string{
	"issues.opened", "issues.reopened", "issue_comment.created",
	"pull_request.opened", "pull_request.reopened", "pull_request.ready_for_review", "pull_request.synchronize", "push",
}

// githubShape names a member that a body of an event has. The header that names
// the event is not signed: the body must agree with it.
var githubShape = map[string]string{"issues": "issue", "issue_comment": "comment", "pull_request": "pull_request", "push": "ref"}

const (
	maxText    = 64 << 10 // bytes of a text of a body, in a ready input
	maxCommits = 50       // of a push, that a ready input names
)

// github maps a webhook of GitHub.
func (c *Connector) github(ev *Event, seen *mapped, h http.Header, n canonjson.Node) error {
	kind, ok := single(h, "X-GitHub-Event")
	if !ok || !eventName(kind) || strings.Contains(kind, ".") {
		return unmapped("X-GitHub-Event", "must name the event")
	}
	ev.Name = kind
	if action := text(n, "action"); action != "" && eventName(action) && !strings.Contains(action, ".") {
		ev.Name += "." + action
	}
	if kind == "ping" {
		ev.Ignored = "a ping"
		return nil
	}
	if member := githubShape[kind]; member != "" {
		if _, ok := n.Get(member); !ok {
			return unmapped("$."+member, "must be there: the event is "+kind)
		}
	}
	if !c.wanted(ev.Name) {
		return c.pass(ev)
	}
	if text(n, "sender", "type") == "Bot" && !c.Bots {
		ev.Ignored = "it was sent for a bot"
		return nil
	}
	repo := line(text(n, "repository", "full_name"))
	number := text(n, "issue", "number")
	if kind == "pull_request" {
		number = text(n, "pull_request", "number")
	}
	thread := repo
	switch {
	case number != "":
		thread += "#" + number
	case kind == "push":
		thread += "@" + text(n, "ref")
	}
	seen.vars[varThread], seen.vars[varText] = thread, githubText(kind, ev.Name, repo, number, n)
	seen.metadata = []pair{
		{"repository", repo}, {"number", number}, {"sender", text(n, "sender", "login")}, {"ref", text(n, "ref")},
		{"url", text(n, "comment", "html_url")}, {"url", text(n, "pull_request", "html_url")}, {"url", text(n, "issue", "html_url")}, {"url", text(n, "compare")},
	}
	return nil
}

// githubText is the ready input of an event; empty where there is none.
func githubText(kind, name, repo, number string, n canonjson.Node) string {
	var b strings.Builder
	field := func(label, value string) {
		if value = line(value); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", label, canonjson.CutRunes(value, 1024))
		}
	}
	body := func(text string) {
		if text = strings.TrimSpace(text); text != "" {
			b.WriteString("\n" + cut(text) + "\n")
		}
	}
	field("GitHub event", name)
	field("Repository", repo)
	switch kind {
	case "issues", "issue_comment":
		label := "Issue"
		if _, pr := (Pointer{"issue", "pull_request"}).Find(n); pr {
			label = "Pull request"
		}
		field(label, "#"+number+" "+text(n, "issue", "title"))
		if kind == "issue_comment" {
			field("Comment by", text(n, "comment", "user", "login"))
			field("Link", text(n, "comment", "html_url"))
			body(text(n, "comment", "body"))
			break
		}
		field("By", text(n, "issue", "user", "login"))
		field("Link", text(n, "issue", "html_url"))
		body(text(n, "issue", "body"))
	case "pull_request":
		field("Pull request", "#"+number+" "+text(n, "pull_request", "title"))
		field("By", text(n, "pull_request", "user", "login"))
		field("Branches", text(n, "pull_request", "head", "label")+" into "+text(n, "pull_request", "base", "label"))
		field("Head", text(n, "pull_request", "head", "sha"))
		field("Link", text(n, "pull_request", "html_url"))
		body(text(n, "pull_request", "body"))
	case "push":
		githubPush(field, &b, n)
	default:
		return ""
	}
	return strings.TrimRight(b.String(), "\n")
}

func githubPush(field func(label, value string), b *strings.Builder, n canonjson.Node) {
	field("Ref", text(n, "ref"))
	field("By", text(n, "pusher", "name"))
	field("Before", text(n, "before"))
	field("After", text(n, "after"))
	field("Link", text(n, "compare"))
	for _, what := range []string{"created", "deleted", "forced"} {
		if v, ok := n.Get(what); ok && v.Bool() {
			field("Was", what)
		}
	}
	commits, _ := n.Get("commits")
	if commits.Kind() != canonjson.Array || commits.Len() == 0 {
		return
	}
	b.WriteString("\nCommits:\n")
	for i := range min(commits.Len(), maxCommits) {
		one := commits.At(i)
		first, _, _ := strings.Cut(text(one, "message"), "\n")
		fmt.Fprintf(b, "- %s %s (%s)\n", canonjson.CutRunes(line(text(one, "id")), 64), canonjson.CutRunes(line(first), 512), canonjson.CutRunes(line(text(one, "author", "name")), 128))
	}
	if more := commits.Len() - maxCommits; more > 0 {
		fmt.Fprintf(b, "and %d more\n", more)
	}
}

// cut bounds a text of a body.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return canonjson.CutRunes(text, maxText) + "…"
}
