package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/fileout"
	"github.com/holdfast-dev/holdfast/internal/mail"
	"github.com/holdfast-dev/holdfast/internal/natsout"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/plugin"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/replyto"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/webhook"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// resolve gives the values of a secret that a user may name: the current one
// first, then those before it that still count after a rotation. host is where it
// is about to be sent, as host:port; empty: it is not sent, it signs.
type resolve func(ctx context.Context, user, name, host string) ([]string, error)

// ways are the ways out, by type of target: what checks a target, and what sends
// to it.
type ways struct {
	cfg     *config.Config
	guard   *netguard.Guard
	secrets resolve
	store   Store
	made    string // signing secret that the daemon made; empty: there is none
	hooks   *webhook.Sender
	files   *fileout.Sender
	mails   *mail.Sender
	nats    *natsout.Sender
	plugins map[string]plugin.Plugin
	mu      sync.Mutex
	// fallbacks are the targets of the configuration, as they are pinned; nil: one
	// that waits for its secret.
	fallbacks []*event.ReplyTarget
	answer    func(ctx context.Context, user string, id event.SessionID, delivery event.DeliveryID, text string, hops int) (event.RunID, error)
}

// newWays makes the ways out of the configuration. The error is a *config.Error
// where the configuration is at fault.
func newWays(cfg *config.Config, guard *netguard.Guard, store Store, secrets resolve, opt *Options) (*ways, error) {
	w := &ways{cfg: cfg, guard: guard, secrets: secrets, store: store, plugins: map[string]plugin.Plugin{}, fallbacks: make([]*event.ReplyTarget, len(cfg.Targets.Fallback))}
	if cfg.Targets.SigningSecret == "" && !cfg.DatabaseURL.Set() {
		var err error
		if w.made, err = madeSecret(SigningSecretPath(cfg), opt.Random); err != nil {
			return nil, err
		}
		cfg.Known.Keep(w.made)
	}
	if err := errors.Join(checkWays(cfg)...); err != nil {
		return nil, err
	}
	folders := map[string]string{}
	for name, path := range cfg.Targets.Folders {
		folders[name] = cfg.Path(path)
	}
	out := opt.Stdout
	if out == nil {
		out = os.Stdout
	}
	if !cfg.Targets.Stdout {
		out = nil
	}
	w.files = fileout.New(folders, out)
	for name, p := range cfg.Targets.Plugins {
		command := append([]string{cfg.Path(p.Command[0])}, p.Command[1:]...)
		w.plugins[name] = plugin.Plugin{
			Command: command, Timeout: p.Timeout.Or(config.DefaultPluginTimeout), Secrets: pluginSecrets(cfg, name, p),
		}
	}
	w.hooks = webhook.NewSender(senderConfig(cfg), guard)
	w.mails = mail.New(mail.Config{Dial: opt.Dial, Roots: opt.Roots})
	servers := map[string]natsout.Server{}
	for name, n := range cfg.Targets.NATS {
		servers[name] = natsout.Server{URL: func() (string, error) { return cfg.NATS(name) }, JetStream: n.JetStream}
	}
	w.nats = natsout.New(natsout.Config{Servers: servers, Dial: opt.Dial})
	return w, nil
}

// checkWays looks at what the ways out need of this machine.
func checkWays(cfg *config.Config) (mistakes []error) {
	for _, name := range slices.Sorted(maps.Keys(cfg.Targets.Folders)) {
		path := cfg.Path(cfg.Targets.Folders[name])
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			mistakes = append(mistakes, cfg.Mistake("targets.folders."+name, "there is no folder at %s: make it, or name another", path))
		} else if workspace.CheckRoot(path, forbidden(cfg)) != nil { // callers name the files in it, which may be there already
			mistakes = append(mistakes, cfg.Mistake("targets.folders."+name, "%s holds, or lies in, what callers must not write to: the configuration, the data directory, files of secrets or programs that the daemon runs; name a folder of its own", path))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Targets.Plugins)) {
		if err := plugin.Check(cfg.Path(cfg.Targets.Plugins[name].Command[0])); err != nil {
			mistakes = append(mistakes, cfg.Mistake("targets.plugins."+name+".command", "%v", err))
		}
	}
	return mistakes
}

func pluginSecrets(cfg *config.Config, name string, p config.Plugin) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		out := map[string]string{}
		for s, ref := range p.Secrets {
			v, err := cfg.Use(config.Reference{Key: "targets.plugins." + name + ".secrets." + s, Ref: ref})
			if err != nil {
				return nil, err
			}
			out[s] = v
		}
		return out, nil
	}
}

func (w *ways) close() {
	w.hooks.Close()
	w.nats.Close()
}

// fallback are the targets of the configuration, once all of them are pinned.
func (w *ways) fallback(ctx context.Context) ([]event.ReplyTarget, error) {
	waiting, err := w.pinFallback(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(waiting) > 0:
		return nil, problem.New(problem.Conflict, "secret_unavailable", "%s waits for its secret: %s; runs that name reply targets, or an empty list, need none", waiting[0].key, waiting[0].why)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []event.ReplyTarget
	for _, t := range w.fallbacks {
		out = append(out, *t)
	}
	return out, nil
}

// waits is a target of the configuration whose secret is a slot that does not serve
// yet: slots are set over a running daemon only.
type waits struct{ key, slot, why string }

// pinFallback pins the targets of the configuration that are not pinned yet, checked
// like those of a caller, and gives those that wait for a slot.
func (w *ways) pinFallback(ctx context.Context) (waiting []waits, err error) {
	for i := range w.cfg.Targets.Fallback {
		w.mu.Lock()
		done := w.fallbacks[i] != nil
		w.mu.Unlock()
		if done {
			continue
		}
		key := fmt.Sprintf("targets.fallback[%d]", i)
		t, err := w.check(ctx, slots.Daemon, w.cfg.Targets.Fallback[i].Target())
		if err != nil {
			detail := problem.Of(err).Detail
			slot := w.slotOf(ctx, &t)
			if slot == "" {
				return nil, w.cfg.Mistake(key, "%s", detail)
			}
			waiting = append(waiting, waits{key, slot, fmt.Sprintf("%s; it is set with holdfast secrets set %s", detail, slot)})
			continue
		}
		// Whose secrets they are stays with what is pinned, whatever the configuration
		// says later.
		t.Fallback = t.Secret != "" || t.URLSecret != ""
		w.mu.Lock()
		w.fallbacks[i] = &t
		w.mu.Unlock()
	}
	return waiting, nil
}

// slotOf gives the slot that a target of the configuration names, of two the one
// that is not set; empty: it names none.
func (w *ways) slotOf(ctx context.Context, t *event.ReplyTarget) (slot string) {
	for _, name := range []string{t.Secret, t.URLSecret} {
		if !w.cfg.Slotted(config.Ref{Secret: name}) {
			continue
		}
		slot = name
		if _, err := w.secrets(ctx, slots.Daemon, name, ""); err != nil {
			return name
		}
	}
	return slot
}

// owner says whose secrets a target names: those of the user of its session,
// and of a fallback the daemon's. One that an older version pinned does not say
// that it was one: it is known by what the configuration has now.
func (w *ways) owner(user string, t *event.ReplyTarget) string {
	if t.Fallback {
		return slots.Daemon
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.fallbacks {
		if f == nil {
			continue
		}
		old := *f
		old.Fallback = false
		if reflect.DeepEqual(*t, old) {
			return slots.Daemon
		}
	}
	return user
}

func notConfigured(format string, args ...any) error {
	return problem.New(problem.Invalid, "target_not_configured", format, args...)
}

func notAllowed(format string, args ...any) error {
	return problem.New(problem.Invalid, "target_not_allowed", format, args...)
}

// usable is check for a target of a user's run, which may be a fallback.
func (w *ways) usable(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error) {
	return w.check(ctx, w.owner(user, &t), t)
}

// check says whether a target of good form may be used, and pins what a delivery
// keeps of it whatever comes later (I-08).
func (w *ways) check(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error) {
	targets := &w.cfg.Targets
	switch t.Type {
	case event.TargetWebhook:
		return w.checkWebhook(ctx, user, t)
	case event.TargetFile:
		if _, ok := targets.Folders[t.Folder]; !ok {
			return t, notConfigured("no folder is named %.64q; the operator names those that may be written to in targets.folders", t.Folder)
		}
	case event.TargetStdout:
		if !targets.Stdout {
			return t, notConfigured("the standard output is closed; the operator opens it with targets.stdout")
		}
	case event.TargetMail:
		m, ok := targets.Mail[t.Server]
		if !ok {
			return t, notConfigured("no mail server is named %.64q in targets.mail", t.Server)
		}
		for i, to := range t.To {
			if !replyto.MayMail(m.Recipients, to) {
				return t, notAllowed("to[%d] is not within targets.mail.%s.recipients", i, t.Server)
			}
		}
		t.From = m.From
	case event.TargetNATS:
		n, ok := targets.NATS[t.Server]
		if !ok {
			return t, notConfigured("no NATS server is named %.64q in targets.nats", t.Server)
		}
		if !replyto.Matches(n.Subjects, t.Subject) {
			return t, notAllowed("the subject is not within targets.nats.%s.subjects", t.Server)
		}
	case event.TargetPlugin:
		if _, ok := targets.Plugins[t.Plugin]; !ok {
			return t, notConfigured("no plugin is named %.64q in targets.plugins", t.Plugin)
		}
	}
	return t, nil
}

// checkWebhook refuses at once an address that names no public host; a name is
// looked up at each attempt.
func (w *ways) checkWebhook(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error) {
	u, err := w.address(ctx, user, &t)
	if err != nil {
		return t, err
	}
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil && w.guard.CheckAddr(ip) != nil {
		return t, notAllowed("%s is no public address; the operator can allow its network in targets.allow_private", u.Hostname())
	}
	if t.URLSecret != "" {
		t.Origin = u.Scheme + "://" + u.Host
	}
	if err := webhook.CheckHeaders(t.Headers); err != nil {
		return t, err
	}
	if t.Secret == "" {
		if w.cfg.DatabaseURL.Set() && w.cfg.Targets.SigningSecret == "" {
			return t, problem.New(problem.Invalid, "signing_secret_required", "this daemon has no secret to sign webhooks with; several nodes share one: the operator names it in targets.signing_secret")
		}
		return t, nil
	}
	// One that cannot be read now may be there at the attempt; one that nobody
	// knows is a mistake.
	values, err := w.secrets(ctx, user, t.Secret, "")
	if problem.Is(err, "unknown_secret") {
		return t, err
	}
	if err == nil && t.Signing == event.SigningEd25519 {
		if key, err := webhook.ParseKey(values[0]); err != nil || !key.Asymmetric() {
			return t, problem.New(problem.Invalid, "invalid_reply_target", "the secret %.64q holds no ed25519 key of the form whsk_…; holdfast targets keygen makes one", t.Secret)
		}
	}
	return t, nil
}

// address gives where a webhook goes now: its URL, or what the secret holds. The
// error repeats nothing of a secret.
func (w *ways) address(ctx context.Context, user string, t *event.ReplyTarget) (*url.URL, error) {
	if t.URLSecret == "" {
		return netguard.CheckURL(t.URL)
	}
	values, err := w.secrets(ctx, user, t.URLSecret, "")
	if err != nil {
		return nil, unreadable(t.URLSecret, err)
	}
	u, err := netguard.CheckURL(values[0])
	if err != nil {
		return nil, problem.New(problem.Invalid, "invalid_url", "the secret %.64q holds no URL that can be used: %s", t.URLSecret, problem.Of(err).Detail)
	}
	// Only now it is known where it goes, and whether it may.
	if _, err := w.secrets(ctx, user, t.URLSecret, secret.HostOf(u)); err != nil {
		return nil, unreadable(t.URLSecret, err)
	}
	return u, nil
}

func unreadable(name string, err error) error {
	var p *problem.Error
	if errors.As(err, &p) {
		return err
	}
	return problem.New(problem.Conflict, "secret_unavailable", "the secret %.64q cannot be read now", name).Because(err)
}

// send makes one attempt. What others say to it is held against every secret that
// is in use, besides those of the attempt itself, which its way out knows.
func (w *ways) send(ctx context.Context, m delivery.Message) delivery.Result {
	r := w.attempt(ctx, m)
	if !r.Delivered && w.cfg.Known != nil {
		r.Detail = w.cfg.Known.Scrub(r.Detail)
		r.Excerpt = w.cfg.Known.Excerpt(r.Excerpt, cmp.Or(w.cfg.Delivery.ExcerptBytes, delivery.DefaultMaxExcerpt))
	}
	return r
}

// attempt makes one attempt, by the type of the target. Secrets are resolved at each
// attempt, so that a changed one counts at once.
func (w *ways) attempt(ctx context.Context, m delivery.Message) delivery.Result {
	t := &m.Target
	switch t.Type {
	case event.TargetWebhook:
		return w.post(ctx, m)
	case event.TargetFile:
		return w.files.File(ctx, t.Folder, t.Path, m.Body)
	case event.TargetStdout:
		return w.files.Stdout(ctx, m.Body)
	case event.TargetMail:
		return w.mail(ctx, m)
	case event.TargetNATS:
		return w.nats.Send(ctx, t.Server, natsout.Message{ID: string(m.ID), Subject: t.Subject, Body: m.Body})
	case event.TargetPlugin:
		p, ok := w.plugins[t.Plugin]
		if !ok {
			return delivery.Result{Code: "server_not_configured", Detail: "targets.plugins names no such plugin any more"}
		}
		return plugin.Send(ctx, p, string(m.ID), m.Body)
	case event.TargetSession:
		return w.submit(ctx, m)
	}
	return delivery.Result{Code: "invalid", Permanent: true, Detail: "this version knows no such type of target"}
}

func (w *ways) mail(ctx context.Context, m delivery.Message) delivery.Result {
	s, ok := w.cfg.Targets.Mail[m.Target.Server]
	if !ok {
		return delivery.Result{Code: "server_not_configured", Detail: "targets.mail names no such server any more"}
	}
	server := mail.Server{Address: s.Address, TLS: s.TLS, Username: s.Username, Password: func() (string, error) {
		return useFor(w.cfg, config.Reference{Key: "targets.mail." + m.Target.Server + ".password", Ref: *s.Password}, s.Address)
	}}
	return w.mails.Send(ctx, server, mail.Envelope{From: m.Target.From, To: m.Target.To, Message: m.Body})
}

// submit hands an answer to another session. What the session refuses for good is
// a dead letter: its contract, its end, a loop that is too long.
func (w *ways) submit(ctx context.Context, m delivery.Message) delivery.Result {
	text, hops, err := outbox.SessionBody(m.Body)
	if err != nil {
		return delivery.Result{Code: "invalid", Permanent: true, Detail: "the body has no form that can be submitted"}
	}
	run, err := w.answer(ctx, m.UserID, m.Target.Session, m.ID, text, hops)
	if err == nil {
		return delivery.Result{Delivered: true, Excerpt: []byte(`{"run_id":"` + string(run) + `"}`)}
	}
	return refusedBy(problem.Of(err))
}

// refusedBy judges a submission that was not taken, by what kind of trouble it is.
func refusedBy(p *problem.Error) delivery.Result {
	r := delivery.Result{Code: "server_" + p.Code, Detail: "the session did not take the answer: " + p.Code}
	switch {
	case p.Code == admission.CodeInputContract:
		// The first mismatch names a place in the answer and may repeat a word of it:
		// it is the session's, like the answer.
		r.Code, r.Permanent, r.Excerpt = "contract_violated", true, []byte(p.Detail)
	case p.Code == admission.CodeHops:
		r.Code, r.Permanent = "refused_hop_limit", true
	case p.Kind == problem.Limited, p.Code == "session_busy":
		r.Code = "throttled_" + p.Code
	case p.Kind == problem.Unavailable, p.Kind == problem.Internal, p.Code == "secret_unavailable":
	default:
		r.Code, r.Permanent = "refused_"+p.Code, true
	}
	return r
}

// try makes one attempt to deliver a test.
func (w *ways) try(ctx context.Context, user string, id event.DeliveryID, t event.ReplyTarget, body []byte) admission.Tried {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Delivery.Timeout.Or(webhook.DefaultTimeout))
	defer cancel()
	r := w.send(ctx, delivery.Message{ID: id, UserID: user, Target: t, Body: body, At: time.Now()})
	return admission.Tried{Delivered: r.Delivered, Code: r.Code, Status: r.Status, Detail: r.Detail, Excerpt: []byte(canonjson.CutRunes(string(r.Excerpt), maxExcerpt))}
}

// maxExcerpt bounds what is shown of an answer to a test, in bytes.
const maxExcerpt = 8 << 10

// keys are those that sign a webhook: the current one of the kind that the target
// wants, and during a rotation the one before.
func (w *ways) keys(ctx context.Context, user string, t *event.ReplyTarget) ([]webhook.Key, delivery.Result) {
	name := t.Secret
	if name == "" { // the default one signs for all
		user, name = slots.Daemon, w.cfg.Targets.SigningSecret
	}
	values := []string{w.made}
	if name != "" {
		var err error
		if values, err = w.secrets(ctx, user, name, ""); err != nil {
			return nil, delivery.Result{Code: "secret_unavailable", Detail: err.Error()}
		}
	} else if w.made == "" {
		return nil, delivery.Result{Code: "secret_unavailable", Detail: "targets.signing_secret is not set"}
	}
	keys := make([]webhook.Key, 0, len(values))
	for i, text := range values {
		key, err := webhook.ParseKey(text)
		if err != nil && i > 0 {
			continue // the one before was no key; the present one signs
		}
		if err != nil || i == 0 && key.Asymmetric() != (t.Signing == event.SigningEd25519) {
			return nil, delivery.Result{Code: "secret_invalid", Detail: "the signing secret has no form that can sign as the target wants"}
		}
		keys = append(keys, key)
	}
	return keys, delivery.Result{}
}

// post sends a webhook.
func (w *ways) post(ctx context.Context, m delivery.Message) delivery.Result {
	t := &m.Target
	user := w.owner(m.UserID, t)
	keys, trouble := w.keys(ctx, user, t)
	if trouble.Code != "" {
		return trouble
	}
	r := webhook.Request{URL: t.URL, Headers: t.Headers, Body: m.Body, ID: string(m.ID), Keys: keys, Timestamp: m.At}
	if t.URLSecret != "" {
		u, err := w.address(ctx, user, t)
		if err != nil {
			code := "secret_unavailable"
			if problem.Is(err, "invalid_url") {
				code = "secret_invalid"
			}
			return delivery.Result{Code: code, Detail: problem.Of(err).Detail}
		}
		r.URL = u.String()
	}
	switch t.Format {
	case event.FormatCloudEvents:
		r.Media = "application/cloudevents+json; charset=utf-8"
	case event.FormatCloudEventsBinary:
		c, err := outbox.CloudEventOf(m.Body)
		if err != nil {
			return delivery.Result{Code: "invalid", Permanent: true, Detail: "the body has no form that this format can send"}
		}
		r.Fixed = map[string]string{"ce-specversion": "1.0", "ce-id": c.ID, "ce-source": c.Source, "ce-type": c.Type}
		if c.Subject != "" {
			r.Fixed["ce-subject"] = c.Subject
		}
	}
	out := w.hooks.Send(ctx, r)
	if out.Delivered() {
		return delivery.Result{Delivered: true, Status: out.Status}
	}
	f := out.Failed
	return delivery.Result{Code: f.Code, Status: out.Status, RetryAfter: f.RetryAfter, Permanent: f.Permanent, Gone: f.Gone, Detail: f.Detail, Excerpt: f.Excerpt}
}

// signingKey gives the public halves of a secret that signs with ed25519.
func (w *ways) signingKey(ctx context.Context, user, name string) ([]string, error) {
	missing := problem.New(problem.NotFound, "signing_key_not_found", "no secret of this name holds an ed25519 key")
	values, err := w.secrets(ctx, user, name, "")
	switch {
	case problem.Is(err, "unknown_secret"):
		return nil, missing.Because(err)
	case err != nil:
		return nil, unreadable(name, err)
	}
	var out []string
	for _, text := range values {
		if key, err := webhook.ParseKey(text); err == nil && key.Asymmetric() {
			out = append(out, key.Public())
		}
	}
	if out == nil {
		return nil, missing
	}
	return out, nil
}
