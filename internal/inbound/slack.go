package inbound

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// slackEvents are those of Slack that make runs unless the configuration
// chooses: what is said to the app. A message in a channel that mentions it
// comes as an app_mention, and to who has subscribed to both as a message too.
var slackEvents = []string{"app_mention", "message.im"}

// slackSaid are the subtypes of messages that somebody wrote.
var slackSaid = map[string]bool{"": true, "file_share": true, "thread_broadcast": true, "me_message": true}

// maxChallenge bounds what Slack wants to read back, in bytes.
const maxChallenge = 1024

// slack maps a request of Slack's Events API.
func (c *Connector) slack(ev *Event, seen *mapped, n canonjson.Node) error {
	switch kind := text(n, "type"); kind {
	case "url_verification":
		ev.Name, ev.Challenge = kind, text(n, "challenge")
		if ev.Challenge == "" || len(ev.Challenge) > maxChallenge {
			return unmapped("$.challenge", "must be there, and short")
		}
		return nil
	case "event_callback":
	case "app_rate_limited":
		ev.Name, ev.Ignored = kind, "Slack holds events back: there are too many"
		return nil
	default:
		return unmapped("$.type", "must be url_verification or event_callback")
	}
	said, ok := n.Get("event")
	if !ok || said.Kind() != canonjson.Object {
		return unmapped("$.event", "must be an object")
	}
	kind := text(said, "type")
	if !eventName(kind) {
		return unmapped("$.event.type", "must name the event")
	}
	ev.Name = kind
	if channel := text(said, "channel_type"); kind == "message" && eventName(channel) && !strings.Contains(channel, ".") {
		ev.Name += "." + channel
	}
	if !c.wanted(ev.Name) {
		return c.pass(ev)
	}
	if ev.Ignored = c.slackPasses(n, said, kind); ev.Ignored != "" {
		return nil
	}
	team, channel, user := text(n, "team_id"), text(said, "channel"), text(said, "user")
	at, thread := text(said, "ts"), text(said, "thread_ts")
	if thread == "" {
		thread = at
	}
	seen.vars[varThread] = strings.Join([]string{team, channel, thread}, "/")
	if words := strings.TrimSpace(text(said, "text")); words != "" {
		seen.vars[varText] = fmt.Sprintf("Slack event: %s\nFrom: %s\nChannel: %s\n\n%s", ev.Name, line(user), line(channel), cut(words))
	}
	seen.metadata = []pair{{"team", team}, {"channel", channel}, {"user", user}, {"ts", at}, {"thread_ts", thread}}
	return nil
}

// slackPasses says why an event that is wanted makes no run all the same. What
// bots say, this app among them, would be answered for ever.
func (c *Connector) slackPasses(n, said canonjson.Node, kind string) string {
	bot := text(said, "bot_id") != "" || text(said, "subtype") == "bot_message"
	if _, profile := said.Get("bot_profile"); profile {
		bot = true
	}
	user := text(said, "user")
	if list, ok := n.Get("authorizations"); ok && list.Kind() == canonjson.Array {
		for i := range min(list.Len(), 16) {
			one := list.At(i)
			itself, _ := one.Get("is_bot")
			if user != "" && itself.Bool() && text(one, "user_id") == user {
				return "the app said it itself"
			}
		}
	}
	switch sub := text(said, "subtype"); {
	case bot && !c.Bots:
		return "a bot said it"
	case kind != "message" && kind != "app_mention":
		return ""
	case sub == "bot_message" && c.Bots:
	case !slackSaid[sub]:
		return "a message of the subtype " + canonjson.CutRunes(line(sub), 64) + " is nothing that somebody said"
	}
	if strings.TrimSpace(text(said, "text")) == "" {
		return "the message has no text"
	}
	return ""
}
