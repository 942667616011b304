// Package connectors takes events from outside: it believes a sender or does not,
// and hands what an event maps to over to the intake, which makes a run of it.
package connectors

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Connector is a connector as the door serves it.
type Connector struct {
	Rules *inbound.Connector
	User  string
	// Secrets gives the secrets, any of which counts. Its error is logged, not shown.
	Secrets func(ctx context.Context) ([]string, error)
	// Template names the session template, and Session is it; nil: there is none.
	Template string
	Session  *api.CreateSession
	// Targets are the reply targets of its runs; nil: those of the session.
	Targets     *[]api.ReplyTarget
	Remember    bool
	Rate, Burst float64
}

// Set are the connectors of the daemon.
type Set struct {
	List []Connector // names are unique
	// Standard verifies the signature of Standard Webhooks. Nil: none is good.
	Standard inbound.Standard
	// Counted is told what became of each request, by one of the Outcome
	// constants. Nil: nobody is told.
	Counted func(connector, outcome string)
}

// Config says what takes events.
type Config struct {
	Set
	Admission *admission.Admission
	// MaxEvents are those whose bodies are read and which are taken at once, a quarter
	// of one peer; others wait.
	MaxEvents int
}

// Handlers answer to senders, and about connectors.
type Handlers struct {
	cfg      Config
	doorways map[string]*doorway // by the connector's name
	senders  *gate.Places        // one for each event from outside that comes in
}

// New makes them.
func New(cfg Config) *Handlers {
	return &Handlers{cfg: cfg, doorways: newDoorways(cfg.List), senders: gate.NewPlaces(cfg.MaxEvents)}
}

// Routes are the operations on connectors.
func (h *Handlers) Routes() []call.Route { return h.connectorRoutes() }

// Outcomes of requests to connectors, besides those of package api.
const (
	OutcomeUnauthenticated = "unauthenticated"
	OutcomeLimited         = "limited"
	OutcomeConflict        = "conflict"
	OutcomeFailed          = "failed" // the daemon could not
)

// Outcomes is the closed set of them.
func Outcomes() []string {
	return []string{api.InboundAccepted, api.InboundRepeated, api.InboundIgnored, api.InboundChallenge, api.InboundRefused,
		OutcomeUnauthenticated, OutcomeLimited, OutcomeConflict, OutcomeFailed}
}

// doorway is a connector with what it has taken of late.
type doorway struct {
	*Connector
	bucket inbound.Bucket
}

func newDoorways(list []Connector) map[string]*doorway {
	out := make(map[string]*doorway, len(list))
	for i := range list {
		c := &list[i]
		c.Rate, c.Burst = cmp.Or(c.Rate, inbound.DefaultRate), cmp.Or(c.Burst, inbound.DefaultBurst)
		out[c.Rules.Name] = &doorway{Connector: c, bucket: inbound.Bucket{Rate: c.Rate, Burst: c.Burst}}
	}
	return out
}

// slackPatience is less than the 3 s within which Slack wants an answer. An event
// that is not stored by then is sent again, under the same id.
const slackPatience = 2500 * time.Millisecond

func (h *Handlers) connectorRoutes() []call.Route {
	return []call.Route{
		call.Raw(h.receiveEvent, openapi.Operation{Method: "POST", Path: "/v1/connectors/{name}", ID: "receiveEvent", Summary: "Hand an event from outside to a connector",
			Notes: "For senders of events, such as GitHub or Slack. It wants no token of the daemon: each connector has its own authentication, over the raw bytes of the body, and who fails it is told no more than that. " +
				"The body is one JSON value. One event makes one run, by the event's id, however often it is sent; another body under the same id is a conflict (`event_conflict`). " +
				"What the body lacks is `mapping_failed`, and what breaks the session's input contract `input_contract_violated`, both with the path.",
			Answers: []openapi.Answer{openapi.Gives[api.Received](202, "A new run."), openapi.Gives[api.Received](200, "No new run: a repeat of an event, an event that makes none, or a challenge; `outcome` says which.")},
			Fails:   []int{401, 404, 408, 409, 413, 415, 422, 429, 503}}),
		call.Plain(h.listConnectors, openapi.Operation{Method: "GET", Path: "/v1/connectors", ID: "listConnectors", Role: gate.Reader, Summary: "List the configured connectors",
			Params:  []openapi.Param{call.Limit, call.Cursor, openapi.Query("type", "string", "Only connectors of this type.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Connector]](200, "A page, by name.")}}),
		call.Takes(h.testConnector, openapi.Operation{Method: "POST", Path: "/v1/connectors/{name}/test", ID: "testConnector", Role: gate.Operator, Summary: "See what a connector would make of an event",
			Notes:   "The answer says whether the sender would be believed, and to which session and input the body is mapped. Nothing is made.",
			Answers: []openapi.Answer{openapi.Gives[api.ConnectorTest](200, "What would be made of it.")}, Fails: []int{503}}),
	}
}

var errNoConnector = problem.New(problem.NotFound, "connector_not_found", "there is no such connector")

// receiveEvent takes an event. The order is: connector, sender, rate, mapping,
// admission; nothing is parsed before the sender is known.
func (h *Handlers) receiveEvent(c *call.Call) error {
	d := h.doorways[c.R.PathValue("name")]
	if d == nil {
		return errNoConnector
	}
	out, err := h.received(c, d)
	if err != nil {
		err = inboundStatus(err)
		status := exchange.ProblemOf(err).Status
		if d.Rules.Kind == inbound.KindSlack && status >= 400 && status < 500 && status != http.StatusTooManyRequests {
			c.W.Header().Set("X-Slack-No-Retry", "1")
		}
		h.counted(d, outcomeOf(status))
		return err
	}
	h.counted(d, out.Outcome)
	status := http.StatusOK
	if out.Outcome == api.InboundAccepted {
		status = http.StatusAccepted
	}
	return c.JSON(status, out)
}

func (h *Handlers) counted(d *doorway, outcome string) {
	if f := h.cfg.Counted; f != nil {
		f(d.Rules.Name, outcome)
	}
}

func outcomeOf(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return OutcomeUnauthenticated
	case status == http.StatusTooManyRequests:
		return OutcomeLimited
	case status == http.StatusConflict:
		return OutcomeConflict
	case status >= 500:
		return OutcomeFailed
	}
	return api.InboundRefused
}

// errSender is the one answer to who is not believed.
var errSender = problem.New(problem.Unauthenticated, "sender_unknown", "the request does not prove who sends it")

func (h *Handlers) received(c *call.Call, d *doorway) (*api.Received, error) {
	secrets, err := d.Secrets(c.Ctx())
	if err != nil {
		return nil, problem.New(problem.Unavailable, "connector_unavailable", "the connector cannot take events now").Because(err)
	}
	if !d.Rules.Auth.Sealed() {
		err = d.Rules.Auth.Verify(c.R.Header, nil, secrets, time.Now(), d.Rules.MaxAge, h.cfg.Standard)
	} else {
		err = d.Rules.Auth.Glance(c.R.Header, time.Now(), d.Rules.MaxAge)
	}
	if err != nil {
		return nil, unbelieved(c, d, err)
	}
	// Who sends may be a stranger yet: the bodies that are held at once are bounded.
	leave, err := h.enterSender(c)
	if err != nil {
		return nil, err
	}
	defer leave()
	body, err := c.Receive(int64(d.Rules.BodyBytes))
	if err != nil {
		return nil, err
	}
	if d.Rules.Auth.Sealed() {
		if err := d.Rules.Auth.Verify(c.R.Header, body, secrets, time.Now(), d.Rules.MaxAge, h.cfg.Standard); err != nil {
			return nil, unbelieved(c, d, err)
		}
	}
	if !d.bucket.Take(time.Now()) {
		return nil, problem.New(problem.Limited, "connector_busy", "the connector takes %g events a second; send it again later", d.Rate)
	}
	ev, err := d.Rules.Map(c.R.Header, body)
	if err != nil {
		return h.mapsNoMore(c, d, ev, err)
	}
	out := &api.Received{Outcome: api.InboundIgnored, Event: ev.Name, Reason: ev.Ignored}
	switch {
	case ev.Challenge != "":
		out.Outcome, out.Challenge = api.InboundChallenge, ev.Challenge
		return out, nil
	case ev.Ignored != "":
		return out, nil
	}
	ctx := c.Ctx()
	if d.Rules.Kind == inbound.KindSlack {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, slackPatience)
		defer cancel()
	}
	in := d.admit(ev)
	r, err := h.cfg.Admission.Receive(ctx, in)
	if err != nil {
		return nil, err
	}
	out.RunID, out.SessionID, out.SessionCreated = string(r.Run), string(r.Session), r.Made
	out.Outcome = api.InboundRepeated
	if r.Created {
		out.Outcome = api.InboundAccepted
		if in.Remember && in.Run.ReplyTargets != nil {
			out.TargetsRemembered, out.TargetsReason = &r.Remembered, r.NotRemembered
		}
	}
	return out, nil
}

// senderPatience is how long an event waits for a place.
const senderPatience = 5 * time.Second

// enterSender waits for a place among the events that come in.
func (h *Handlers) enterSender(c *call.Call) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(c.Ctx(), senderPatience)
	defer cancel()
	peer, _ := c.Peer()
	if leave, err = h.senders.Enter(ctx, gate.Household(peer)); err != nil && c.Ctx().Err() == nil {
		return nil, exchange.Later(senderPatience, problem.New(problem.Limited, "too_many_requests", "too many events come in at once (limits.events); send it again later"))
	}
	return leave, err
}

// mapsNoMore answers an event that does not map: one that was taken when it did is
// still the run that it made.
func (h *Handlers) mapsNoMore(c *call.Call, d *doorway, ev *inbound.Event, why error) (*api.Received, error) {
	if ev == nil || ev.Hash == "" {
		return nil, why
	}
	r, err := h.cfg.Admission.Received(c.Ctx(), d.admit(ev))
	if err != nil {
		return nil, err
	}
	if r.Run == "" {
		return nil, why
	}
	return &api.Received{Outcome: api.InboundRepeated, Event: ev.Name, RunID: string(r.Run), SessionID: string(r.Session)}, nil
}

// unbelieved is the answer to a sender that is not believed. Why not is for the
// log and the audit stream alone.
func unbelieved(c *call.Call, d *doorway, why error) error {
	c.Logger.LogAttrs(c.Ctx(), slog.LevelDebug, "sender not believed", slog.String("connector", d.Rules.Name), slog.String("reason", why.Error()))
	c.Why = d.Rules.Name + ": " + why.Error()
	return errSender.Because(why)
}

// admit is an event as admission takes it.
func (d *doorway) admit(ev *inbound.Event) *admission.Inbound {
	in := &admission.Inbound{
		Connector: d.Rules.Name, User: d.User, EventHash: ev.Hash, Fingerprint: ev.Fingerprint, Ref: d.Rules.Fixed, Remember: d.Remember,
		Run: api.SubmitRun{Content: ev.Content, Metadata: api.Raw(ev.Metadata), ReplyTargets: d.Targets},
	}
	if ev.Key != "" {
		in.Ref = d.Rules.Alias(ev.Key)
	}
	if d.Session != nil {
		s := *d.Session
		if ev.Title != "" && (s.Title == "" || d.Rules.Title != "") {
			s.Title = ev.Title
		}
		if s.Metadata == nil {
			s.Metadata = sessionMetadata(d.Rules.Name, ev.Key)
		}
		in.Session = &s
	}
	if ev.Targets != nil {
		list := make([]api.ReplyTarget, len(ev.Targets))
		for i, u := range ev.Targets {
			list[i] = api.ReplyTarget{Type: "webhook", URL: u}
		}
		in.Run.ReplyTargets = &list
	}
	return in
}

// sessionMetadata says which connector made a session, and for what.
func sessionMetadata(connector, key string) api.Raw {
	out := canonjson.AppendString([]byte(`{"connector":`), connector)
	if key != "" {
		out = canonjson.AppendString(append(out, `,"key":`...), key)
	}
	return append(out, '}')
}

// inboundStatus gives what a body can be at fault for the status 422: it was
// read, and does not fit.
func inboundStatus(err error) error {
	var p *problem.Error
	if exchange.HasStatus(err) || !errors.As(err, &p) {
		return err
	}
	if p.Kind == problem.Gone { // 410 would tell a sender to send nothing any more
		return problem.New(problem.Unavailable, "session_unavailable", "a session that the connector needs was erased").Because(err)
	}
	switch p.Code {
	case inbound.CodeMedia:
		return exchange.WithStatus(http.StatusUnsupportedMediaType, p)
	case inbound.CodeMapping, inbound.CodeEventID, inbound.CodeTarget, inbound.CodeUnhandled, admission.CodeInputContract, "invalid_input",
		"invalid_url", "target_not_allowed":
		return exchange.WithStatus(http.StatusUnprocessableEntity, p)
	}
	return err
}

func (h *Handlers) listConnectors(c *call.Call) error {
	kind, err := c.OneOf("type", string(inbound.KindJSON), string(inbound.KindGitHub), string(inbound.KindSlack))
	if err != nil {
		return err
	}
	var list []api.Connector
	for _, d := range h.doorways {
		if c.Who.Sees(d.User) && (kind == "" || string(d.Rules.Kind) == kind) {
			list = append(list, d.show())
		}
	}
	slices.SortFunc(list, func(a, b api.Connector) int { return strings.Compare(a.Name, b.Name) })
	out, err := call.Window(c, "connectors", list, func(k *api.Connector) string { return k.Name })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func (d *doorway) show() api.Connector {
	r := d.Rules
	out := api.Connector{
		Name: r.Name, Path: "/v1/connectors/" + r.Name, Type: string(r.Kind), Auth: string(r.Auth), UserID: d.User,
		SessionTemplate: d.Template, Events: r.Handles(), PayloadTargets: r.Targets != "", RememberTargets: d.Remember,
		BodyBytes: r.BodyBytes, Rate: d.Rate, Burst: int(d.Burst), EventID: r.EventIDAt(),
	}
	switch {
	case r.Fixed != "":
		out.Session, out.SessionID = "fixed", r.Fixed
	case r.Key != "":
		out.Session, out.SessionKey = "key", r.Key
	default:
		out.Session = "new"
	}
	return out
}

func (h *Handlers) testConnector(c *call.Call, req *api.TestConnector) error {
	d := h.doorways[c.R.PathValue("name")]
	if d == nil || !c.Who.Sees(d.User) {
		return errNoConnector
	}
	header := http.Header{"Content-Type": {"application/json"}}
	for name, value := range req.Headers {
		header.Set(name, value)
	}
	secrets, err := d.Secrets(c.Ctx())
	if err != nil {
		return problem.New(problem.Unavailable, "connector_unavailable", "a secret of the connector cannot be read").Because(err)
	}
	out := &api.ConnectorTest{Authentication: "ok"}
	if err := d.Rules.Auth.Verify(header, []byte(req.Body), secrets, time.Now(), d.Rules.MaxAge, h.cfg.Standard); err != nil {
		out.Authentication = err.Error()
	}
	if err := h.tested(c, d, header, req.Body, out); err != nil {
		if p := exchange.ProblemOf(inboundStatus(err)); p.Status < 500 {
			out.Outcome, out.Problem = api.InboundRefused, &p
		} else {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) tested(c *call.Call, d *doorway, header http.Header, body string, out *api.ConnectorTest) error {
	if len(body) > d.Rules.BodyBytes {
		return problem.New(problem.TooLarge, "body_too_large", "the body holds more than %d bytes", d.Rules.BodyBytes)
	}
	ev, err := d.Rules.Map(header, []byte(body))
	if err != nil {
		return err
	}
	out.Event, out.EventID, out.Outcome, out.Reason, out.Challenge = ev.Name, ev.ID, api.InboundIgnored, ev.Ignored, ev.Challenge
	switch {
	case ev.Challenge != "":
		out.Outcome = api.InboundChallenge
		return nil
	case ev.Ignored != "":
		return nil
	}
	in := d.admit(ev)
	in.Dry = true
	out.SessionAlias, out.Input, out.Metadata = in.Ref, ev.Content, api.Raw(ev.Metadata)
	if in.Session != nil {
		out.SessionTitle = in.Session.Title
	}
	if t := in.Run.ReplyTargets; t != nil {
		out.ReplyTargets = *t
	}
	r, err := h.cfg.Admission.Receive(c.Ctx(), in)
	if err != nil {
		return err
	}
	out.Outcome, out.RunID, out.SessionID, out.SessionCreated, out.TargetsReason = api.InboundAccepted, string(r.Run), string(r.Session), r.Made, r.NotRemembered
	if !r.Created {
		out.Outcome = api.InboundRepeated
	}
	return nil
}
