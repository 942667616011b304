package event_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"pgregory.net/rapid"
)

const (
	session = event.SessionID("ses_1")
	user    = "ann"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

func dice(seed byte) *rand.ChaCha8 { return rand.NewChaCha8([32]byte{seed}) }

func draft(d event.Data) event.Event { return event.Event{SessionID: session, UserID: user, Data: d} }

func seal(t testing.TB, drafts ...event.Event) *event.Sealed {
	t.Helper()
	s, err := event.Seal(session.Stream(), drafts, dice(1))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// jsonFields walks the types below a struct and reports each one once.
func jsonFields(typ reflect.Type, seen map[reflect.Type]bool, visit func(reflect.Type, []string)) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice && typ != valueType {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || seen[typ] {
		return
	}
	seen[typ] = true
	var names []string
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
		jsonFields(typ.Field(i).Type, seen, visit)
	}
	visit(typ, names)
}

func TestFieldsAreSortedByName(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for _, typ := range event.Types() {
		d, _, _ := event.New(typ)
		jsonFields(reflect.TypeOf(d), seen, func(typ reflect.Type, names []string) {
			if slices.Contains(names, "") {
				t.Errorf("%s has a field without a JSON name", typ)
			}
			if !slices.IsSortedFunc(names, canonjson.CompareNames) {
				t.Errorf("%s: fields are not in canonical order: %q", typ, names)
			}
		})
	}
}

func TestCatalogueNamesItself(t *testing.T) {
	for _, typ := range event.Types() {
		d, version, ok := event.New(typ)
		if !ok || version < 1 || d.EventType() != typ || !event.Known(typ) {
			t.Errorf("%s: data %T of type %s, version %d, known %v", typ, d, d.EventType(), version, event.Known(typ))
		}
	}
	if _, _, ok := event.New("run.invented"); ok || event.Known("run.invented") {
		t.Error("the catalogue is closed")
	}
}

// Whatever is in an event, what is stored is canonical, and reads back as it
// was (decision 6 of the architecture).
func TestEveryTypeIsCanonicalAndReadsBack(t *testing.T) {
	for _, typ := range event.Types() {
		t.Run(string(typ), rapid.MakeCheck(func(t *rapid.T) {
			want := filled(typ, random{t})
			s, err := event.Seal(session.Stream(), []event.Event{draft(want)}, dice(1))
			if err != nil {
				t.Fatal(err)
			}
			raw := s.Events[0].Raw
			canonical, err := canonjson.Canonicalize(raw, canonjson.Limits{})
			if err != nil || !canonical.Equal(raw) {
				t.Fatalf("not canonical (%v):\n raw  %s\n want %s", err, raw, canonical)
			}
			row := s.Stamp(0, 1, event.Digest{}, noon)
			got, err := row.Events()
			if err != nil {
				t.Fatal(err)
			}
			if err := got[0].Decode(); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got[0].Data, want) {
				t.Fatalf("read back\n %#v\nwrote\n %#v", got[0].Data, want)
			}
		}))
	}
}

// A draft and the same event read from its row are the same event.
func TestStampedIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drafts := randomDrafts(t)
		s, err := event.Seal(session.Stream(), drafts, dice(1))
		if err != nil {
			t.Fatal(err)
		}
		// Nanoseconds and the zone of the writer are not stored.
		at := noon.Add(789).In(time.FixedZone("there", 3600))
		row := s.Stamp(41, 3, event.Digest{7}, at)
		if row.Time, err = event.ParseTime(event.FormatTime(row.Time)); err != nil {
			t.Fatal(err)
		}
		got, err := row.Events()
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if err := got[i].Decode(); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got[i], s.Events[i]) {
				t.Fatalf("read %#v\nwrote %#v", got[i], s.Events[i])
			}
			if want := int64(42 + i); got[i].Seq != want {
				t.Fatalf("event %d has sequence %d, want %d", i, got[i].Seq, want) // I-01
			}
		}
		if row.Last() != got[len(got)-1].Seq || row.Hash != got[len(got)-1].Hash {
			t.Fatal("the row does not end with its last event")
		}
	})
}

func randomDrafts(t *rapid.T) []event.Event {
	word := rapid.SampledFrom([]string{"", "a", "b", "é\x01"})
	var drafts []event.Event
	for range rapid.IntRange(1, 5).Draw(t, "events") {
		e := draft(filled(rapid.SampledFrom(event.Types()).Draw(t, "type"), random{t}))
		e.RunID = event.RunID(word.Draw(t, "run"))
		e.StepID = event.StepID(word.Draw(t, "step"))
		e.CallID = event.CallID(word.Draw(t, "call"))
		e.FSMState, e.AgentID, e.CausedBy = word.Draw(t, "state"), word.Draw(t, "agent"), word.Draw(t, "cause")
		e.Turn = rapid.IntRange(0, 2).Draw(t, "turn")
		drafts = append(drafts, e)
	}
	return drafts
}

// I-04: whatever byte of a stored row is changed, added or taken, Check finds it.
func TestEveryChangedByteIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := event.Seal(session.Stream(), randomDrafts(t), dice(1))
		if err != nil {
			t.Fatal(err)
		}
		prev := event.Digest{1}
		row := s.Stamp(7, 2, prev, noon)
		if err := row.Check(prev); err != nil {
			t.Fatal(err)
		}
		erase := rapid.Bool().Draw(t, "erase")
		if erase {
			if err := row.Erase(); err != nil {
				t.Fatal(err)
			}
			if err := row.Check(prev); err != nil {
				t.Fatal("the chain broke with the erasure:", err)
			}
		}
		bad := row
		part := rapid.SampledFrom([]string{"meta", "data", "salt", "digests", "prev", "hash", "field"}).Draw(t, "part")
		switch part {
		case "meta":
			bad.Meta = tampered(t, row.Meta)
		case "data", "salt":
			if erase {
				return
			}
			if part == "data" {
				bad.Data = tampered(t, row.Data)
			} else {
				bad.Salt = tampered(t, row.Salt)
			}
		case "digests":
			if !erase {
				return
			}
			bad.Digests = tampered(t, row.Digests)
		case "prev":
			bad.Prev[rapid.IntRange(0, 31).Draw(t, "at")]++
		case "hash":
			bad.Hash[rapid.IntRange(0, 31).Draw(t, "at")]++
		case "field":
			switch rapid.IntRange(0, 6).Draw(t, "which") {
			case 0:
				bad.Stream += "x"
			case 1:
				bad.First++
			case 2:
				bad.Count++
			case 3:
				bad.Epoch++
			case 4:
				bad.Time = bad.Time.Add(time.Microsecond)
			case 5:
				bad.SessionID += "x"
			case 6:
				bad.UserID += "x"
			}
		}
		if err := bad.Check(prev); err == nil {
			t.Fatalf("a change of %s was not found:\n%s\n%s", part, bad.Meta, bad.Data)
		}
		// Also a forger who gives the changed row's own predecessor is found.
		if err := bad.Check(bad.Prev); err == nil {
			t.Fatalf("a change of %s was not found against its own predecessor", part)
		}
	})
}

// tampered changes, adds or takes one byte; white space and JSON's own
// characters are drawn more often, since a parser may overlook them.
func tampered(t *rapid.T, b []byte) []byte {
	b = bytes.Clone(b)
	at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
	by := rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte(" \t\n,:[]{}\"\\0aAfnt"))).Draw(t, "by")
	switch rapid.SampledFrom([]string{"change", "add", "take"}).Draw(t, "how") {
	case "change":
		if b[at] == by {
			by ^= 0x20
		}
		b[at] = by
	case "add":
		b = slices.Insert(b, at, by)
	case "take":
		b = slices.Delete(b, at, at+1)
	}
	return b
}

// What a parser would read the same is a change all the same (I-04).
func TestOtherSpellingsAreFound(t *testing.T) {
	e := draft(&event.RunQueued{})
	e.RunID = "run_a"
	row := seal(t, e, draft(&event.RunQueued{})).Stamp(0, 1, event.Digest{}, noon)
	for name, change := range map[string]func(*event.Row){
		"white space between data":      func(r *event.Row) { r.Data = bytes.Replace(r.Data, []byte("},{"), []byte("}, {"), 1) },
		"white space around data":       func(r *event.Row) { r.Data = append(r.Data, '\n') },
		"white space between envelopes": func(r *event.Row) { r.Meta = bytes.Replace(r.Meta, []byte("},{"), []byte("}, {"), 1) },
		"another member in an envelope": func(r *event.Row) { r.Meta = bytes.Replace(r.Meta, []byte(`{"r"`), []byte(`{"z":1,"r"`), 1) },
		"an escaped character":          func(r *event.Row) { r.Meta = bytes.Replace(r.Meta, []byte("run_a"), []byte(`run\u005fa`), 1) },
		"a member that says nothing":    func(r *event.Row) { r.Meta = bytes.Replace(r.Meta, []byte(`{"r"`), []byte(`{"a":"","r"`), 1) },
	} {
		bad := row
		bad.Meta, bad.Data = bytes.Clone(row.Meta), bytes.Clone(row.Data)
		change(&bad)
		if bytes.Equal(bad.Meta, row.Meta) && bytes.Equal(bad.Data, row.Data) {
			t.Fatalf("%s: nothing was changed in %s %s", name, row.Meta, row.Data)
		}
		if bad.Check(event.Digest{}) == nil {
			t.Errorf("%s was not found", name)
		}
		// What another version may have meant is not passed over on reading either.
		if _, err := bad.Events(); err == nil && name == "another member in an envelope" {
			t.Errorf("%s was read", name)
		}
	}
}

func TestEraseKeepsDigestsAndHidesContent(t *testing.T) {
	row := seal(t, draft(&event.SessionClosed{Reason: "secret"}), draft(&event.RunQueued{})).Stamp(0, 1, event.Digest{}, noon)
	before, err := row.Events()
	if err != nil {
		t.Fatal(err)
	}
	if err := row.Erase(); err != nil {
		t.Fatal(err)
	}
	if err := row.Erase(); err != nil {
		t.Fatal("a second erasure:", err)
	}
	if row.Data != nil || row.Salt != nil {
		t.Fatal("data or salt is left")
	}
	after, err := row.Events()
	if err != nil {
		t.Fatal(err)
	}
	for i := range after {
		if !after[i].Erased() || before[i].Erased() {
			t.Errorf("event %d: erased %v, before %v", i, after[i].Erased(), before[i].Erased())
		}
		if after[i].DataDigest != before[i].DataDigest || after[i].Hash != before[i].Hash {
			t.Errorf("event %d: digest or hash changed with the erasure", i)
		}
		if err := after[i].Decode(); err != nil || after[i].Data != nil {
			t.Errorf("event %d decodes to %v, %v", i, after[i].Data, err)
		}
		if wire := string(after[i].AppendWire(nil)); !strings.Contains(wire, `"data":null,`) {
			t.Errorf("event %d on the wire: %s", i, wire)
		}
	}
}

// The digest of data is salted and bound to its place: equal data does not
// show as equal.
func TestDigestsAreSalted(t *testing.T) {
	a := seal(t, draft(&event.RunQueued{}), draft(&event.RunQueued{}))
	b, err := event.Seal(session.Stream(), []event.Event{draft(&event.RunQueued{})}, dice(2))
	if err != nil {
		t.Fatal(err)
	}
	if a.Events[0].DataDigest == a.Events[1].DataDigest || a.Events[0].DataDigest == b.Events[0].DataDigest {
		t.Error("equal data has equal digests")
	}
	if a.Events[0].DataDigest == sha256.Sum256([]byte("{}")) {
		t.Error("the digest can be guessed from the data")
	}
}

func TestSealRefuses(t *testing.T) {
	if _, err := event.Seal(session.Stream(), []event.Event{draft(&event.SessionClosed{Reason: "\xff"})}, dice(1)); err == nil {
		t.Error("text that is not UTF-8 was sealed")
	}
	if _, err := event.Seal(session.Stream(), []event.Event{draft(&event.RunQueued{})}, bytes.NewReader(nil)); err == nil {
		t.Error("sealed without a salt")
	}
}

func TestWireForm(t *testing.T) {
	bare := draft(&event.RunQueued{})
	full := draft(filled(event.TypeToolRequested, &plain{}))
	full.RunID, full.Turn, full.StepID, full.CallID = "run_1", 2, "step_1_2", "call_1_2_1_0"
	full.AgentID, full.FSMState, full.CausedBy = "agt_1", "ActionSelected", "evt_0"
	s := seal(t, bare, full)
	row := s.Stamp(0, 3, event.Digest{}, noon)
	if err := row.Erase(); err != nil {
		t.Fatal(err)
	}
	erased, err := row.Events()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, e := range append(s.Events, erased[0]) {
		wire := e.AppendWire(nil)
		canonical, err := canonjson.Canonicalize(wire, canonjson.Limits{})
		if err != nil || !canonical.Equal(wire) {
			t.Errorf("the wire form is not canonical (%v): %s", err, wire)
		}
		if err := json.Indent(&out, wire, "", "  "); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "testdata/wire.txt", out.Bytes())
}

// An older binary must not act on what a newer one wrote.
func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, e := range map[string]event.Event{
		"type":    {Type: "run.invented", Version: 1, Raw: canonjson.Value(`{}`)},
		"version": {Type: event.TypeRunQueued, Version: 9, Raw: canonjson.Value(`{}`)},
		"old":     {Type: event.TypeStepEnded, Version: 1, Raw: canonjson.Value(`{}`)},
		"member":  {Type: event.TypeRunQueued, Version: 1, Raw: canonjson.Value(`{"new":1}`)},
		"kind":    {Type: event.TypeStepStarted, Version: 1, Raw: canonjson.Value(`{"number":"1"}`)},
	} {
		if err := e.Decode(); err == nil || e.Data != nil {
			t.Errorf("%s: decoded to %#v, %v", name, e.Data, err)
		}
	}
}

func TestExternalizeAtTheLimit(t *testing.T) {
	at, past := strings.Repeat("a", event.InlineLimit), strings.Repeat("é", event.InlineLimit/2)+"x"
	out := &event.ToolCompleted{Output: event.TextContent(past)}
	in := &event.RunCreated{Input: []event.InputItem{{Content: event.TextContent(at)}, {Content: event.TextContent(past)}}}
	drafts := []event.Event{draft(&event.RunQueued{}), draft(in), draft(out)}
	blobs := event.Externalize(session, drafts)
	if len(blobs) != 2 {
		t.Fatalf("%d blobs, want 2", len(blobs))
	}
	if in.Input[0].Content.Text != at || in.Input[0].Content.Ref != "" {
		t.Error("a text of exactly the limit moved out")
	}
	for i, c := range []event.Content{in.Input[1].Content, out.Output} {
		if c.Text != "" || c.Ref != event.RefOf([]byte(past)) || c.Bytes != len(past) || c.Size() != len(past) || c.Empty() {
			t.Errorf("content %d: %#v", i, c)
		}
		if b := blobs[i]; b.Owner != string(session) || b.Kind != event.BlobContent || b.Ref != c.Ref || string(b.Bytes) != past {
			t.Errorf("blob %d: %s %s %s, %d bytes", i, b.Owner, b.Kind, b.Ref, len(b.Bytes))
		}
	}
	if again := event.Externalize(session, drafts); len(again) != 0 {
		t.Error("what is out moved out again")
	}
}

// Every Content below a type's data can move out: none is forgotten.
func TestEveryContentCanMoveOut(t *testing.T) {
	big := strings.Repeat("b", event.InlineLimit+1)
	for _, typ := range event.Types() {
		d := filled(typ, &plain{})
		n := setContents(reflect.ValueOf(d).Elem(), big)
		drafts := []event.Event{draft(d)}
		if blobs := event.Externalize(session, drafts); len(blobs) != n {
			t.Errorf("%s has %d texts, %d moved out", typ, n, len(blobs))
		}
	}
}

func setContents(v reflect.Value, text string) int {
	if c, ok := v.Addr().Interface().(*event.Content); ok {
		*c = event.Content{Text: text}
		return 1
	}
	n := 0
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			n += setContents(v.Field(i), text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += setContents(v.Index(i), text)
		}
	case reflect.Pointer:
		n += setContents(v.Elem(), text)
	}
	return n
}

func TestTextContentReplacesWhatIsNoText(t *testing.T) {
	if c := event.TextContent("a\xffb"); c.Text != "a\uFFFDb" || !c.Replaced {
		t.Errorf("%#v", c)
	}
	if c := event.TextContent("a\uFFFDb"); c.Replaced {
		t.Errorf("%#v", c)
	}
}

func TestIDs(t *testing.T) {
	ses, err := event.NewSessionID(dice(1))
	if err != nil || !strings.HasPrefix(string(ses), "ses_") || len(ses) != 4+32 || ses[4+12] != '7' {
		t.Errorf("session id %q, %v", ses, err) // RFC 9562, section 5.7: version 7
	}
	run, err := event.NewRunID(dice(1))
	if err != nil || !strings.HasPrefix(string(run), "run_") || len(run) != 4+32 {
		t.Errorf("run id %q, %v", run, err)
	}
	if _, err := event.NewRunID(bytes.NewReader(nil)); err == nil {
		t.Error("an id without randomness")
	}
	for range 2 { // nothing that was before counts: a history is the same whenever it is played
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(1500 * time.Microsecond)
			id, err := event.NewSessionID(bytes.NewReader(make([]byte, 8)))
			if want := "ses_00dc6acfac017800" + "8000000000000000"; err != nil || string(id) != want {
				t.Errorf("session id %s, %v, want %s", id, err, want)
			}
		})
	}
	target := event.TargetIDFor("ann", "webhook", "https://a")
	others := []event.TargetID{
		event.TargetIDFor("annw", "ebhook", "https://a"), event.TargetIDFor("bob", "webhook", "https://a"),
		event.TargetIDFor("ann", "webhook", "https://b"), event.TargetIDFor("ann", "webhookh", "ttps://a"),
	}
	if slices.Contains(others, target) || target != event.TargetIDFor("ann", "webhook", "https://a") {
		t.Error("a target's id is of user, type and address")
	}
	if event.DeliveryIDFor(run, target, 0) == event.DeliveryIDFor(run, target, 1) {
		t.Error("two outputs of a run have one delivery")
	}
	if id, ok := ses.Stream().Session(); !ok || id != ses {
		t.Errorf("session of its stream: %q, %v", id, ok)
	}
	if id, ok := target.Stream().Target(); !ok || id != target {
		t.Errorf("target of its stream: %q, %v", id, ok)
	}
	if _, ok := ses.Stream().Target(); ok {
		t.Error("a session's stream is a target's")
	}
	if event.IDOf("session:a", 11) == event.IDOf("session:a1", 1) || !strings.HasPrefix(event.IDOf("session:a", 1), "evt_") {
		t.Error("event ids of two streams meet")
	}
}

// Stored times have a fixed width and compare as text.
func TestTimesCompareAsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micros := rapid.Int64Range(0, 250_000_000_000_000_000) // 1970 to 9892
		a, b := time.UnixMicro(micros.Draw(t, "a")), time.UnixMicro(micros.Draw(t, "b"))
		x, y := event.FormatTime(a), event.FormatTime(b.In(time.FixedZone("z", -7200)))
		if len(x) != len("2006-01-02T15:04:05.000000Z") || strings.Compare(x, y) != a.Compare(b) {
			t.Fatalf("%s and %s", x, y)
		}
		if back, err := event.ParseTime(x); err != nil || !back.Equal(a) {
			t.Fatalf("%s reads back as %s, %v", x, back, err)
		}
	})
}

// A settings change takes exactly the members it names.
func TestSettingsTakeEveryMember(t *testing.T) {
	var all []string
	typ := reflect.TypeFor[event.Settings]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		all = append(all, name)
		want := filled(event.TypeSessionUpdated, &plain{}).(*event.SessionUpdated)
		want.Changed = []string{name}
		var got event.Settings
		got.Take(want)
		for j := range typ.NumField() {
			value, given := reflect.ValueOf(got).Field(j), reflect.ValueOf(want.Settings).Field(j)
			if i == j && !reflect.DeepEqual(value.Interface(), given.Interface()) {
				t.Errorf("%s was named and not taken", name)
			}
			if i != j && !value.IsZero() {
				t.Errorf("%s changed with %s", typ.Field(j).Name, name)
			}
		}
	}
	full := filled(event.TypeSessionUpdated, &plain{}).(*event.SessionUpdated).Settings
	full.Take(&event.SessionUpdated{Changed: append(all, "unheard_of")})
	if !reflect.ValueOf(full).IsZero() {
		t.Errorf("named without a value and not cleared: %#v", full)
	}
}

// Hostile rows never panic; those that pass Check are what Seal could have written.
func FuzzRowEvents(f *testing.F) {
	row := func(s *event.Sealed) event.Row { return s.Stamp(0, 1, event.Digest{}, noon) }
	good := row(seal(f, draft(&event.SessionClosed{Reason: "x"}), draft(&event.RunQueued{})))
	f.Add(good.Meta, good.Data, good.Salt, []byte(nil), good.Count, good.Hash[:])
	f.Add([]byte(`null`), []byte(`null`), []byte(nil), []byte(nil), 0, []byte(nil))
	f.Add([]byte(`[{"t":"run.queued","v":-1,"n":null}]`), []byte(nil), []byte(nil), make([]byte, 32), 1, []byte(nil))
	f.Fuzz(func(t *testing.T, meta, data, salt, digests []byte, count int, hash []byte) {
		r := event.Row{Stream: session.Stream(), First: 1, Count: count, Meta: meta, Data: data, Salt: salt, Digests: digests, Time: noon}
		copy(r.Hash[:], hash)
		_ = r.Check(event.Digest{})
		events, err := r.Events()
		if err != nil {
			return
		}
		if len(events) != count {
			t.Fatalf("%d events, %d counted", len(events), count)
		}
		for i := range events {
			_ = events[i].Decode()
			events[i].AppendWire(nil)
		}
		if err := r.Erase(); err != nil {
			t.Fatal(err)
		}
	})
}
