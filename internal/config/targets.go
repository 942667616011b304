package config

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/replyto"
)

// ReplyTarget is a reply target as the API takes it.
type ReplyTarget struct {
	// Type is webhook, file, stdout, mail, nats or plugin.
	Type string `yaml:"type"`
	// URL of a webhook.
	URL string `yaml:"url"`
	// URLSecret names, in place of url, the secret that holds it.
	URLSecret string `yaml:"url_secret"`
	// Secret names the secret that signs a webhook. Default: signing_secret.
	Secret string `yaml:"secret"`
	// Headers of a webhook, no secrets.
	Headers map[string]string `yaml:"headers"`
	// Format of a webhook: standard, slack, cloudevents or cloudevents_binary. Default standard.
	Format string `yaml:"format"`
	// Signing of a webhook: hmac or ed25519. Default hmac.
	Signing string `yaml:"signing"`
	// Folder of a file: a name of targets.folders.
	Folder string `yaml:"folder"`
	// Path of a file, within its folder.
	Path string `yaml:"path"`
	// Server of a mail or nats: a name of targets.mail or targets.nats.
	Server string `yaml:"server"`
	// To are the addresses of a mail.
	To []string `yaml:"to"`
	// Subject of a mail, or the NATS subject.
	Subject string `yaml:"subject"`
	// Plugin is a name of targets.plugins.
	Plugin string `yaml:"plugin"`
}

// Target is the target as events know it.
func (t *ReplyTarget) Target() event.ReplyTarget {
	return event.ReplyTarget{
		Type: t.Type, URL: t.URL, URLSecret: t.URLSecret, Secret: t.Secret, Headers: t.Headers, Format: t.Format, Signing: t.Signing,
		Folder: t.Folder, Path: t.Path, Server: t.Server, To: t.To, Subject: t.Subject, Plugin: t.Plugin,
	}
}

// MailServer is an SMTP server.
type MailServer struct {
	// Address is host:port, such as smtp.example.com:587. Required.
	Address string `yaml:"address"`
	// TLS is starttls, implicit (TLS from the first byte, as on port 465) or none.
	// With starttls nothing is sent to a server that does not offer it. Default starttls.
	TLS string `yaml:"tls"`
	// From is the address of the sender. Required.
	From string `yaml:"from"`
	// Recipients lists to whom mail may go: addresses, *@domain, or * for everybody. Required.
	Recipients []string `yaml:"recipients"`
	// Username at the server. Default: the server wants none.
	Username string `yaml:"username"`
	// Password is a reference.
	Password *Ref `yaml:"password"`
}

// NATSServer is a NATS server, or a cluster of them.
type NATSServer struct {
	// URL as in bus_url: one with a user, password or token is a reference. Required.
	URL Address `yaml:"url"`
	// Subjects lists the patterns under which may be published, such as
	// answers.>; * stands for one token and > at the end for one or more. Required.
	Subjects []string `yaml:"subjects"`
	// JetStream waits until a stream has stored the message. Without it a message
	// counts as delivered when the server has it, whoever listens or not. Default false.
	JetStream bool `yaml:"jetstream"`
}

// Plugin is an executable that is handed one delivery, see targets.md.
type Plugin struct {
	// Command is the executable and its arguments; no shell reads them. A path
	// begins at the folder of this file. Required.
	Command []string `yaml:"command"`
	// Secrets are references whose values are handed over on standard input, by name.
	Secrets map[string]Ref `yaml:"secrets"`
	// Timeout of one delivery; the whole process group is ended then. At most
	// delivery.timeout. Default 10s.
	Timeout Duration `yaml:"timeout"`
}

// DefaultPluginTimeout is how long a plugin may take.
const DefaultPluginTimeout = 10 * time.Second

// maxHops bounds targets.max_hops.
const maxHops = 100

// checkTargets holds the rules of the ways out.
func (c *Config) checkTargets() *Error {
	t := &c.Targets
	for _, name := range sorted(t.Folders) {
		if err := checkName("targets.folders", name); err != nil {
			return err
		}
		if t.Folders[name] == "" {
			return mistake("targets.folders."+name, "want the path of a folder")
		}
	}
	for _, name := range sorted(t.Mail) {
		if err := c.checkMail(name, t.Mail[name]); err != nil {
			return err
		}
	}
	for _, name := range sorted(t.NATS) {
		if err := c.checkNATS(name, t.NATS[name]); err != nil {
			return err
		}
	}
	for _, name := range sorted(t.Plugins) {
		if err := c.checkPlugin(name, t.Plugins[name]); err != nil {
			return err
		}
	}
	if t.MaxHops > maxHops {
		return mistake("targets.max_hops", "must be at most %d", maxHops)
	}
	for i := range t.Fallback {
		path := fmt.Sprintf("targets.fallback[%d]", i)
		if t.Fallback[i].Type == event.TargetSession {
			return mistake(path+".type", "a session is one user's: it cannot be the fallback of everybody")
		}
		target := t.Fallback[i].Target()
		if err := replyto.Check(&target); err != nil {
			return mistake(path, "%s", problem.Of(err).Detail)
		}
	}
	return nil
}

func checkName(path, name string) *Error {
	if !nameForm.MatchString(name) {
		return mistake(path+"."+name, "a name is [A-Za-z0-9_-]{1,64}")
	}
	return nil
}

func (c *Config) checkMail(name string, m MailServer) *Error {
	path := "targets.mail." + name
	if err := checkName("targets.mail", name); err != nil {
		return err
	}
	if m.Address == "" || m.From == "" || len(m.Recipients) == 0 {
		return mistake(path, "a mail server wants address, from and recipients")
	}
	if host, port, err := net.SplitHostPort(m.Address); err != nil || host == "" || !portForm(port) {
		return mistake(path+".address", "want host:port, such as smtp.example.com:587")
	}
	switch m.TLS {
	case "", "starttls", "implicit":
	case "none":
		if m.Password != nil {
			return mistake(path+".tls", "with a password it must be starttls or implicit")
		}
	default:
		return mistake(path+".tls", "must be starttls, implicit or none")
	}
	if !replyto.MailAddress(m.From) {
		return mistake(path+".from", "want a bare mail address such as holdfast@example.com")
	}
	for i, r := range m.Recipients {
		if domain, ok := strings.CutPrefix(r, "*@"); r != "*" && !replyto.MailAddress(r) && !(ok && replyto.MailAddress("a@"+domain)) {
			return mistake(fmt.Sprintf("%s.recipients[%d]", path, i), "want an address, *@domain, or *")
		}
	}
	if (m.Username == "") != (m.Password == nil) {
		return mistake(path, "username and password go together")
	}
	if m.Password != nil {
		return c.checkRef(path+".password", *m.Password, true)
	}
	return nil
}

func portForm(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

func (c *Config) checkNATS(name string, n NATSServer) *Error {
	path := "targets.nats." + name
	if err := checkName("targets.nats", name); err != nil {
		return err
	}
	switch {
	case !n.URL.Set() || len(n.Subjects) == 0:
		return mistake(path, "a NATS server wants url and subjects")
	case n.URL.Text == "":
		if err := c.checkRef(path+".url", n.URL.Ref, true); err != nil {
			return err
		}
	default:
		if why := checkBus(n.URL.Text); why != "" {
			return mistake(path+".url", "%s", why)
		}
		if strings.Contains(n.URL.Text, "@") {
			return mistake(path+".url", "a URL with a user, password or token is a secret: put it into a variable or a file, and write {env: NAME} or {file: PATH}")
		}
	}
	for i, s := range n.Subjects {
		if !replyto.Pattern(s) {
			return mistake(fmt.Sprintf("%s.subjects[%d]", path, i), "want a pattern of subjects such as answers.>")
		}
	}
	return nil
}

func (c *Config) checkPlugin(name string, p Plugin) *Error {
	path := "targets.plugins." + name
	if err := checkName("targets.plugins", name); err != nil {
		return err
	}
	if len(p.Command) == 0 || p.Command[0] == "" {
		return mistake(path, "a plugin wants command: the executable and its arguments")
	}
	for _, s := range sorted(p.Secrets) {
		if err := c.checkRef(path+".secrets."+s, p.Secrets[s], true); err != nil {
			return err
		}
	}
	if most := c.Delivery.Timeout.Or(15 * time.Second); p.Timeout.Or(0) > most {
		return mistake(path+".timeout", "must be at most delivery.timeout, %s", most)
	}
	return nil
}

// targetReferences lists the references of the ways out.
func (c *Config) targetReferences() []Reference {
	var out []Reference
	for name, m := range c.Targets.Mail {
		if m.Password != nil {
			out = append(out, Reference{"targets.mail." + name + ".password", *m.Password})
		}
	}
	for name, n := range c.Targets.NATS {
		if n.URL.Ref != (Ref{}) {
			out = append(out, Reference{"targets.nats." + name + ".url", n.URL.Ref})
		}
	}
	for name, p := range c.Targets.Plugins {
		for s, r := range p.Secrets {
			out = append(out, Reference{"targets.plugins." + name + ".secrets." + s, r})
		}
	}
	return out
}

// NATS reads the URL of a NATS server, at the moment it is needed. The error
// holds no secret.
func (c *Config) NATS(name string) (string, error) {
	a := c.Targets.NATS[name].URL
	text, err := c.address("targets.nats."+name+".url", &a)
	if err != nil {
		return "", err
	}
	if why := checkBus(text); why != "" {
		return "", fmt.Errorf("what %s holds cannot be used: %s", a.Ref, why)
	}
	return text, c.busMayGo(Reference{"targets.nats." + name + ".url", a.Ref}, text)
}

// busMayGo says whether a URL of NATS servers that stands in a secret may go where it
// leads: only now that is known.
func (c *Config) busMayGo(at Reference, text string) error {
	if at.Ref.Secret == "" {
		return nil
	}
	for one := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil { // checkBus has parsed it
			return fmt.Errorf("what %s holds cannot be used", at.Ref)
		}
		if _, err := c.UseFor(context.Background(), at, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))); err != nil {
			return err
		}
	}
	return nil
}
