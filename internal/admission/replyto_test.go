package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func hook(url string) api.ReplyTarget { return api.ReplyTarget{Type: "webhook", URL: url} }

func addresses(list []event.ReplyTarget) string {
	var out []string
	for i := range list {
		out = append(out, list[i].Address())
	}
	return strings.Join(out, " ")
}

// I-08: what the run names, else the session's own, else the daemon's; captured,
// whatever the defaults become.
func TestOrderOfTargets(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	d.fallback = []event.ReplyTarget{{Type: "webhook", URL: "https://fallback.test"}}
	d.remake()
	bare := d.session(&api.CreateSession{})
	own := d.session(&api.CreateSession{ReplyTargets: []api.ReplyTarget{hook("https://own.test")}})
	naming := func(list ...api.ReplyTarget) *api.SubmitRun {
		req := text("go")
		req.ReplyTargets = &list
		return req
	}
	type submission struct {
		s    eventlog.SessionRow
		req  *api.SubmitRun
		want string
	}
	rows := []submission{
		{bare, text("go"), "https://fallback.test"}, {own, text("go"), "https://own.test"},
		{bare, naming(hook("https://a.test"), hook("https://b.test"), hook("https://a.test")), "https://a.test https://b.test"},
		{own, naming(), ""}, {bare, naming(), ""}, {own, naming(hook("https://a.test")), "https://a.test"},
	}
	var ids []event.RunID
	for _, r := range rows {
		id := d.submit(r.s, r.req, "", true)
		ids = append(ids, id)
		if got := addresses(d.created(r.s, id).ReplyTargets); got != r.want {
			t.Errorf("%q, want %q", got, r.want)
		}
	}
	d.fallback = nil
	d.remake()
	change, err := d.SetReplyTargets(&api.ReplyTargets{ReplyTargets: []api.ReplyTarget{hook("https://later.test")}})
	d.update(own.ID, change, err)
	for i, r := range rows {
		if got := addresses(d.created(r.s, ids[i]).ReplyTargets); got != r.want {
			t.Errorf("afterwards %q, want %q", got, r.want)
		}
	}
	if got := addresses(d.created(own, d.submit(d.row(own.ID), text("go"), "", true)).ReplyTargets); got != "https://later.test" {
		t.Errorf("a later run: %q", got)
	}
	// Explicit targets of an API caller never become the session's.
	row := d.row(own.ID)
	if set, err := row.Settings(); err != nil || addresses(set.ReplyTargets) != "https://later.test" {
		t.Errorf("the session has %+v, %v", set.ReplyTargets, err)
	}
}

// I-08: a connector's targets become the session's own at rest and only then, in
// the append that makes the run.
func TestSaveTargets(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	submit := func(key, url string) admission.Submitted {
		t.Helper()
		req := text("go")
		if url != "" {
			req.ReplyTargets = &[]api.ReplyTarget{hook(url)}
		}
		out, err := d.SubmitWork(t.Context(), admission.Caller{Actor: "connector"}, d.row(s.ID), &admission.Submission{Request: req, Key: key, Source: "connector:x", SaveTargets: true})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	saved := func() string {
		row := d.row(s.ID)
		set, err := row.Settings()
		if err != nil {
			t.Fatal(err)
		}
		return addresses(set.ReplyTargets)
	}
	first := submit("1", "https://a.test")
	if !first.Created || !first.TargetsSaved || first.NotSaved != "" || saved() != "https://a.test" {
		t.Errorf("at rest %+v, the session has %q", first, saved())
	}
	if c := d.created(s, first.ID); c.SettingsVersion != 2 || c.Source != "connector:x" || addresses(c.ReplyTargets) != "https://a.test" {
		t.Errorf("the run captured %+v", c)
	}
	if again := submit("1", "https://a.test"); again.ID != first.ID || again.TargetsSaved || again.NotSaved != admission.ReasonRepeated {
		t.Errorf("repeated %+v", again)
	}
	busy := submit("2", "https://b.test")
	if !busy.Created || busy.TargetsSaved || busy.NotSaved != admission.ReasonBusy || saved() != "https://a.test" {
		t.Errorf("busy %+v, the session has %q", busy, saved())
	}
	if got := addresses(d.created(s, busy.ID).ReplyTargets); got != "https://b.test" {
		t.Errorf("the run answers to %q", got)
	}
	if none := submit("3", ""); none.TargetsSaved || none.NotSaved != admission.ReasonNone {
		t.Errorf("none named %+v", none)
	}
	d.verify()
}

// A session as a target: of the same user, open, by id or alias.
func TestSessionTarget(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	from := d.session(&api.CreateSession{UserID: "ann"})
	to := d.session(&api.CreateSession{UserID: "ann", ID: "triage"})
	foreign := d.session(&api.CreateSession{UserID: "bob", ID: "of-bob"})
	shut := d.session(&api.CreateSession{UserID: "ann", ID: "shut"})
	if err := d.Close(t.Context(), admission.Caller{}, shut, ""); err != nil {
		t.Fatal(err)
	}
	naming := func(session string) *api.SubmitRun {
		req := text("go")
		req.ReplyTargets = &[]api.ReplyTarget{{Type: "session", Session: session}}
		return req
	}
	for _, name := range []string{"triage", string(to.ID)} {
		if got := d.created(from, d.submit(from, naming(name), "", true)).ReplyTargets; len(got) != 1 || got[0].Session != to.ID {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, code := range map[string]string{ // I-34
		"of-bob": "session_not_found", string(foreign.ID): "session_not_found", "none": "session_not_found", "shut": "session_closed",
	} {
		d.refused(code, from, naming(name), "")
	}
}

// An answer makes one run for each delivery, under the session's contract, and a
// loop of them ends.
func TestAnswer(t *testing.T) {
	d := newDesk(t, admission.Limits{Hops: 2})
	s := d.session(&api.CreateSession{UserID: "ann", InputContract: &api.InputContract{Schema: api.Raw(`{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}`)}})
	answer := func(user, delivery, text string, hops int) (event.RunID, error) {
		return d.Answer(t.Context(), user, s.ID, event.DeliveryID(delivery), text, hops)
	}
	id, err := answer("ann", "dlv_1", `{"n":1}`, 1)
	if err != nil {
		t.Fatal(err)
	}
	if c := d.created(s, id); c.Hops != 2 || c.Source != "session" || c.Actor != "dlv_1" {
		t.Errorf("%+v", c)
	}
	d.restart()
	if again, err := answer("ann", "dlv_1", `{"n":1}`, 1); err != nil || again != id { // I-07
		t.Errorf("again %s, %v", again, err)
	}
	before := d.everything()
	for name, row := range map[string]struct {
		user, delivery, text string
		hops                 int
		code                 string
	}{
		"contract":     {"ann", "dlv_2", `{"m":1}`, 0, admission.CodeInputContract},
		"loop":         {"ann", "dlv_3", `{"n":1}`, 2, admission.CodeHops},
		"another user": {"bob", "dlv_4", `{"n":1}`, 0, "session_not_found"},
		"another text": {"ann", "dlv_1", `{"n":2}`, 1, "idempotency_conflict"},
	} {
		if _, err := answer(row.user, row.delivery, row.text, row.hops); !problem.Is(err, row.code) {
			t.Errorf("%s: %v, want %s", name, err, row.code)
		}
	}
	if d.everything() != before {
		t.Error("a refusal left something")
	}
	d.verify()
}

// A test leaves two events in the target's stream, no run and nothing to deliver.
func TestTargetTest(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	var got []string
	d.try = func(_ context.Context, _ string, id event.DeliveryID, target event.ReplyTarget, body []byte) admission.Tried {
		got = append(got, fmt.Sprint(id, " ", target.URL, " ", strings.Contains(string(body), string(id)) && strings.Contains(string(body), `"output_kind":"test"`)))
		if strings.Contains(target.URL, "down") {
			return admission.Tried{Code: "http_503", Status: 503, Detail: "later", Excerpt: []byte("no")}
		}
		return admission.Tried{Delivered: true, Status: 200}
	}
	d.remake()
	ann := admission.Caller{Actor: "ann's token", UserID: "ann"}
	test := func(target api.ReplyTarget) (*api.TargetTest, error) {
		return d.TestTarget(t.Context(), ann, "", &target)
	}
	good, err := test(hook("https://up.test"))
	if err != nil || !good.Delivered || good.Status != 200 || good.Code != "" || got[0] != good.DeliveryID+" https://up.test true" {
		t.Fatalf("%+v, %v, sent %q", good, err, got)
	}
	bad, err := test(hook("https://down.test"))
	if err != nil || bad.Delivered || bad.Code != "http_503" || bad.Excerpt != "no" || bad.DeliveryID == good.DeliveryID {
		t.Errorf("%+v, %v", bad, err)
	}
	s := d.session(&api.CreateSession{UserID: "ann", ID: "triage"})
	to, err := test(api.ReplyTarget{Type: "session", Session: "triage"})
	if err != nil || to.Delivered || to.Code != "not_sent" || len(got) != 2 {
		t.Errorf("%+v, %v, sent %q", to, err, got)
	}
	var told []string
	for _, e := range d.feed() {
		if _, ok := e.Stream.Target(); !ok {
			continue
		}
		if e.UserID != "ann" || e.SessionID != "" || strings.Contains(string(e.Raw), ".test") {
			t.Errorf("%s: %+v", e.Type, e)
		}
		told = append(told, fmt.Sprintf("%s %s", e.Type, e.Stream))
	}
	var want []string
	for _, id := range []string{good.TargetID, bad.TargetID, to.TargetID} {
		want = append(want, "target.test.started target:"+id, "target.test.ended target:"+id)
	}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("told %q\nwant %q", told, want)
	}
	if n, err := d.store.Pending(t.Context(), s.ID, 10); err != nil || n != 0 {
		t.Errorf("%d runs, %v", n, err)
	}
	if _, err := test(api.ReplyTarget{Type: "webhook"}); !problem.Is(err, "invalid_reply_target") {
		t.Error(err)
	}
	if _, err := d.TestTarget(t.Context(), ann, "bob", &api.ReplyTarget{Type: "webhook", URL: "https://up.test"}); !problem.Is(err, "wrong_user") {
		t.Error(err)
	}
	d.verify()
}

// So many tests at once, and no more.
func TestTargetTestsAreFew(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	d.try = func(context.Context, string, event.DeliveryID, event.ReplyTarget, []byte) admission.Tried {
		entered <- struct{}{}
		<-release
		return admission.Tried{Delivered: true}
	}
	d.remake()
	target := hook("https://slow.test")
	results := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := d.TestTarget(t.Context(), admission.Caller{}, "", &target)
			results <- err
		}()
	}
	for range 4 {
		<-entered
	}
	if _, err := d.TestTarget(t.Context(), admission.Caller{}, "", &target); !problem.Is(err, "too_many_tests") {
		t.Error(err)
	}
	close(release)
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, err := d.TestTarget(t.Context(), admission.Caller{}, "", &target); err != nil {
		t.Error(err)
	}
}
