package admission_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// What shapes a run is captured: later changes do not touch it (I-08).
func TestCapture(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{
		MaxTurns: 7, RoutePolicy: &api.RoutePolicy{Route: "side", Model: "big"}, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "http://a.test/"}},
		Tools: &[]string{"look"}, OnDoubt: "continue",
	})
	id := d.submit(s, text("go"), "", true)
	before := *d.created(s, id)
	want := event.Route{Name: "side", Provider: "q", Model: "big"}
	if before.Route != want || before.MaxTurns != 7 || len(before.ReplyTargets) != 1 || len(before.Tools) != 1 || before.OnDoubt != event.DoubtContinue || before.Actor != "tester" {
		t.Fatalf("captured %+v", before)
	}
	route, err := d.SetRoutePolicy(nil)
	d.update(s.ID, route, err)
	targets, err := d.SetReplyTargets(&api.ReplyTargets{})
	d.update(s.ID, targets, err)
	turns := 9
	patch, err := d.Patch(&api.UpdateSession{MaxTurns: &turns, Tools: api.Raw("null")})
	d.update(s.ID, patch, err)
	d.tools = []tool.Tool{toolNamed("look", "looks elsewhere")}
	d.routes[""] = event.Route{Name: "main", Provider: "p2", Model: "m2"}
	d.remake()
	if after := *d.created(s, id); !reflect.DeepEqual(before, after) {
		t.Errorf("the run changed: %+v", after)
	}
	s = d.row(s.ID)
	next := d.created(s, d.submit(s, text("go"), "", true))
	if next.Route.Provider != "p2" || next.MaxTurns != 9 || len(next.ReplyTargets) != 0 || next.Tools[0].Digest == before.Tools[0].Digest || next.SettingsVersion != 4 {
		t.Errorf("the next run captured %+v", next)
	}
	blob, kind, err := d.store.Blob(t.Context(), s.ID, before.Toolset)
	if err != nil || kind != event.BlobToolset || !strings.Contains(string(blob), "looks") || strings.Contains(string(blob), "elsewhere") {
		t.Errorf("toolset %s %s (%v)", kind, blob, err)
	}
	// What the submission says counts before the session.
	req := text("go")
	req.Route, req.Model, req.MaxTurns, req.ReplyTargets = "side", "own", 3, &[]api.ReplyTarget{{Type: "webhook", URL: "http://b.test/"}, {Type: "webhook", URL: "http://b.test/"}}
	own := d.created(s, d.submit(s, req, "", true))
	if own.Route.Model != "own" || own.MaxTurns != 3 || len(own.ReplyTargets) != 1 {
		t.Errorf("captured %+v", own)
	}
}

// A session that names a tool which is not configured any more takes no work.
func TestToolGone(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{Tools: &[]string{"look", "note"}})
	d.tools = d.tools[:1]
	d.remake()
	d.refused("unknown_tool", s, text("go"), "")
	none := d.session(&api.CreateSession{Tools: &[]string{}})
	if c := d.created(none, d.submit(none, text("go"), "", true)); len(c.Tools) != 0 || c.Toolset != "" {
		t.Errorf("an empty list means no tools: %+v", c)
	}
}

// A settings change in between makes the submission be decided anew.
func TestSettingsMoveUnderASubmission(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	ch, err := d.SetInputContract(&api.InputContract{Schema: api.Raw(schemaQ)})
	d.update(s.ID, ch, err)
	d.refused(admission.CodeInputContract, s, text("plain"), "") // s is the row from before
	id := d.submit(s, text(`{"n":1}`), "", true)
	if c := d.created(s, id); c.InputContract == "" || c.SettingsVersion != 2 {
		t.Errorf("captured %+v", c)
	}
}

// I-34: one user's things are not there for another.
func TestUsersAreApart(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	ann, bob, all := admission.Caller{UserID: "ann"}, admission.Caller{UserID: "bob"}, admission.Caller{}
	create := func(c admission.Caller, req api.CreateSession) (event.SessionID, error) {
		return d.CreateSession(t.Context(), c, &req)
	}
	must := func(id event.SessionID, err error) event.SessionID {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	a := must(create(ann, api.CreateSession{ID: "box"}))
	b := must(create(bob, api.CreateSession{ID: "box"}))
	def := must(create(all, api.CreateSession{ID: "box"}))
	if _, err := create(all, api.CreateSession{ID: "box", UserID: "ann"}); !problem.Is(err, "session_exists") {
		t.Errorf("a second box of ann: %v", err)
	}
	if _, err := create(ann, api.CreateSession{UserID: "bob"}); !problem.Is(err, "wrong_user") {
		t.Errorf("ann for bob: %v", err)
	}
	for _, row := range []struct {
		c         admission.Caller
		ref, user string
		want      event.SessionID
		code      string
	}{
		{ann, "box", "", a, ""}, {bob, "box", "", b, ""}, {all, "box", "", def, ""}, {all, "box", "bob", b, ""}, {all, string(a), "", a, ""},
		{ann, string(a), "", a, ""}, {bob, string(a), "", "", "session_not_found"}, {ann, "box", "bob", "", "wrong_user"},
		{ann, "ses_unheard", "", "", "session_not_found"}, {all, "box", "carl", "", "session_not_found"},
	} {
		got, err := d.Find(t.Context(), row.c, row.ref, row.user)
		if row.code == "" && (err != nil || got.ID != row.want) || row.code != "" && !problem.Is(err, row.code) {
			t.Errorf("%+v: %s, %v", row, got.ID, err)
		}
	}
	run := d.submit(d.row(a), text("go"), "", true)
	if _, err := d.FindRun(t.Context(), bob, run); !problem.Is(err, "run_not_found") {
		t.Errorf("bob finds ann's run: %v", err)
	}
	if row, err := d.FindRun(t.Context(), ann, run); err != nil || row.ID != run {
		t.Errorf("ann's own run: %v", err)
	}
	if err := d.Update(t.Context(), bob, a, admission.Change{Names: []string{"title"}}); !problem.Is(err, "session_not_found") {
		t.Errorf("bob changes ann's session: %v", err)
	}
	for _, id := range []string{"a b", "ä", strings.Repeat("x", 129), "ses_mine", "a/b"} {
		if _, err := create(ann, api.CreateSession{ID: id}); !problem.Is(err, "invalid_session_id") {
			t.Errorf("the id %q: %v", id, err)
		}
	}
	for _, user := range []string{" x", "x ", "ä", strings.Repeat("u", 129), "a\nb"} {
		if _, err := create(all, api.CreateSession{UserID: user}); !problem.Is(err, "invalid_user_id") {
			t.Errorf("the user %q: %v", user, err)
		}
	}
}

// Each bound, with one step past it.
func TestLimits(t *testing.T) {
	d := newDesk(t, admission.Limits{InputBytes: 10, InputItems: 2, InstructionsBytes: 10, MetadataBytes: 20, MaxTurns: 5, HistoryLimit: 6, ReplyTargets: 1})
	s := d.session(&api.CreateSession{
		MaxTurns: 5, HistoryLimit: 6, Instructions: strings.Repeat("x", 10), Title: strings.Repeat("t", 512), ThreadID: strings.Repeat("t", 256),
		Metadata: api.Raw(`{"a":"` + strings.Repeat("m", 12) + `"}`), ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "http://a.test/"}},
	})
	d.submit(s, text(strings.Repeat("x", 10)), "", true)
	item := api.InputItem{Type: "text", Text: "x"}
	two := []api.ReplyTarget{{Type: "webhook", URL: "http://a.test/"}, {Type: "webhook", URL: "http://b.test/"}}
	for _, row := range []struct {
		code string
		req  api.SubmitRun
	}{
		{"input_too_large", *text(strings.Repeat("x", 11))}, {"input_too_large", api.SubmitRun{InputItems: []api.InputItem{item, item, item}}},
		{"invalid_input", api.SubmitRun{}}, {"invalid_input", api.SubmitRun{Content: api.Raw("null")}}, {"invalid_input", *text("")},
		{"invalid_input", api.SubmitRun{Content: api.Text("x"), InputItems: []api.InputItem{item}}},
		{"invalid_input", api.SubmitRun{InputItems: []api.InputItem{{Type: "image", Text: "x"}}}},
		{"invalid_max_turns", api.SubmitRun{Content: api.Text("x"), MaxTurns: 6}}, {"invalid_max_turns", api.SubmitRun{Content: api.Text("x"), MaxTurns: -1}},
		{"invalid_metadata", api.SubmitRun{Content: api.Text("x"), Metadata: api.Raw(`[1]`)}},
		{"invalid_metadata", api.SubmitRun{Content: api.Text("x"), Metadata: api.Raw(`{"a":1,"a":2}`)}},
		{"invalid_metadata", api.SubmitRun{Content: api.Text("x"), Metadata: api.Raw(`{"a":"` + strings.Repeat("m", 20) + `"}`)}},
		{"too_many_reply_targets", api.SubmitRun{Content: api.Text("x"), ReplyTargets: &two}},
		{"invalid_reply_target", api.SubmitRun{Content: api.Text("x"), ReplyTargets: &[]api.ReplyTarget{{Type: "pigeon"}}}},
		{"unknown_route", api.SubmitRun{Content: api.Text("x"), Route: "nowhere"}},
	} {
		d.refused(row.code, s, &row.req, "")
		d.refused(row.code, s, &row.req, "k")
	}
	for _, row := range []struct {
		code string
		req  api.CreateSession
	}{
		{"invalid_max_turns", api.CreateSession{MaxTurns: 6}}, {"invalid_max_turns", api.CreateSession{MaxTurns: -1}},
		{"invalid_history_limit", api.CreateSession{HistoryLimit: 7}}, {"instructions_too_large", api.CreateSession{Instructions: strings.Repeat("x", 11)}},
		{"title_too_large", api.CreateSession{Title: strings.Repeat("t", 513)}}, {"thread_id_too_large", api.CreateSession{ThreadID: strings.Repeat("t", 257)}},
		{"invalid_metadata", api.CreateSession{Metadata: api.Raw(`"x"`)}}, {"invalid_on_doubt", api.CreateSession{OnDoubt: "guess"}},
		{"unknown_tool", api.CreateSession{Tools: &[]string{"look", "fly"}}}, {"unknown_route", api.CreateSession{RoutePolicy: &api.RoutePolicy{Route: "nowhere"}}},
		{"too_many_reply_targets", api.CreateSession{ReplyTargets: two}},
	} {
		before := d.everything()
		if _, err := d.CreateSession(t.Context(), admission.Caller{}, &row.req); !problem.Is(err, row.code) || d.everything() != before {
			t.Errorf("%+v: %v, want %s", row.req, err, row.code)
		}
	}
}

// C10: every issue is told in one reply, and the contract in force stays.
func TestRefusedContract(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(withInput())
	bad := api.Raw(`{"type":"object","properties":{"a":{"type":["string","null"]},"b":{"type":"string","pattern":"x"},"c":{"$ref":"#"},` +
		`"d":{"type":"object","properties":{}},"e":{"type":"number","minimum":1},"f":{"enum":[1]}},"required":["zz"],"additionalProperties":false}`)
	before := d.everything()
	for name, set := range map[string]func() (admission.Change, error){
		"input_contract_schema_unsupported":  func() (admission.Change, error) { return d.SetInputContract(&api.InputContract{Schema: bad}) },
		"output_contract_schema_unsupported": func() (admission.Change, error) { return d.SetOutputContract(&api.OutputContract{Schema: bad}) },
	} {
		_, err := set()
		if !problem.Is(err, name) || len(problem.Of(err).Issues) < 7 {
			t.Errorf("%v with %+v", err, problem.Of(err).Issues)
		}
	}
	less := -1
	if _, err := d.SetOutputContract(&api.OutputContract{Schema: api.Raw(schemaQ), MaxRepairAttempts: &less}); !problem.Is(err, "output_contract_schema_unsupported") {
		t.Errorf("a negative budget: %v", err)
	}
	if d.everything() != before || d.row(s.ID).InputContract != s.InputContract {
		t.Error("a refused contract left something")
	}
	d.refused(admission.CodeInputContract, s, text("{}"), "")
}

// Changes at once are all taken, each on what was there before it.
func TestUpdateConflicts(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{Title: "first", Instructions: "be brief"})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			title := "second"
			ch, err := d.Patch(&api.UpdateSession{Title: &title})
			if err = errors.Join(err, d.Update(t.Context(), admission.Caller{}, s.ID, ch)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if row := d.row(s.ID); row.SettingsVersion != 5 || row.Title != "second" || !strings.Contains(row.Instructions, "be brief") {
		t.Errorf("the row is %+v", row)
	}
	turns := -1
	ch, err := d.Patch(&api.UpdateSession{MaxTurns: &turns})
	if err = errors.Join(err, d.Update(t.Context(), admission.Caller{}, s.ID, ch)); !problem.Is(err, "invalid_max_turns") {
		t.Errorf("a bad change: %v", err)
	}
	if _, err := d.Patch(&api.UpdateSession{}); !problem.Is(err, "nothing_to_change") {
		t.Errorf("no change: %v", err)
	}
	if err := d.Close(t.Context(), admission.Caller{}, s, ""); err != nil {
		t.Fatal(err)
	}
	if err := d.Update(t.Context(), admission.Caller{}, s.ID, admission.Change{Names: []string{"title"}}); !problem.Is(err, "session_closed") {
		t.Errorf("a change of a closed session: %v", err)
	}
	d.verify()
}

// The reasons that people give are bounded wherever they go into the log.
func TestReasonsAreBounded(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	long := strings.Repeat("why \xff ", 50_000)
	run := d.submit(s, text("go"), "", true)
	row, err := d.FindRun(t.Context(), admission.Caller{}, run)
	if err = errors.Join(err, d.Cancel(t.Context(), admission.Caller{}, row, long), d.Close(t.Context(), admission.Caller{}, s, long)); err != nil {
		t.Fatal(err)
	}
	events, err := d.store.Read(t.Context(), s.ID.Stream(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if len(e.Raw) > 2000 {
			t.Errorf("%s holds %d bytes", e.Type, len(e.Raw))
		}
	}
}

// An erased session is gone, its chain whole; what is not finished forbids it.
func TestErase(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{ID: "box", Instructions: "private words"})
	run := d.submit(s, text("private words"), "private-key", true)
	before := d.everything()
	if err := d.Erase(t.Context(), admission.Caller{}, s); !problem.Is(err, "session_active") || d.everything() != before {
		t.Fatalf("erase with a queued run: %v", err)
	}
	if _, err := d.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: s.ID.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: s.ID, UserID: s.UserID, RunID: run, Data: &event.RunCancelled{}}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Erase(t.Context(), admission.Caller{Actor: "tester"}, s); err != nil {
		t.Fatal(err)
	}
	if text := d.everything(); strings.Contains(text, "private") {
		t.Errorf("the content is still there: %s", text)
	}
	if _, err := d.Find(t.Context(), admission.Caller{}, string(s.ID), ""); !problem.Is(err, "session_erased") {
		t.Errorf("find: %v", err)
	}
	if _, err := d.Find(t.Context(), admission.Caller{}, "box", ""); !problem.Is(err, "session_not_found") {
		t.Errorf("find by its alias: %v", err)
	}
	if err := d.Erase(t.Context(), admission.Caller{}, s); !problem.Is(err, "session_erased") {
		t.Errorf("erase again: %v", err)
	}
	_, _, err := d.Submit(t.Context(), admission.Caller{}, s, text("more"), "")
	if !problem.Is(err, "session_erased") {
		t.Errorf("submit with the row from before: %v", err)
	}
	events, err := d.store.Read(t.Context(), s.ID.Stream(), 0, 100)
	if err != nil || !slices.ContainsFunc(events, func(e event.Event) bool { return e.Type == event.TypeSessionErased }) {
		t.Errorf("events %v (%v)", events, err)
	}
	d.session(&api.CreateSession{ID: "box"}) // the name is free again
	d.verify()
}
