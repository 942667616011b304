package admission_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

const (
	png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	pdf = "%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
)

func TestSniff(t *testing.T) {
	for _, c := range []struct{ data, claim, want string }{
		{png, "text/plain", "image/png"}, {"\xff\xd8\xff\xe0", "", "image/jpeg"}, {"GIF89a;", "image/png", "image/gif"},
		{"RIFF\x10\x00\x00\x00WEBPVP8 ", "", "image/webp"}, {pdf, "image/png", "application/pdf"},
		{"hello", "", "text/plain"}, {"# hello", "text/markdown; charset=utf-8", "text/markdown"}, {"a,b\n", "text/csv", "text/csv"},
		{`{"a":1}`, "application/json", "application/json"}, {`{"a":`, "application/json", "text/plain"},
		{"<html><script>", "text/html", "text/plain"}, {"plain", "image/png", "text/plain"}, {"x", "no/;type", "text/plain"},
		{"", "text/plain", ""}, {"a\x00b", "text/plain", ""}, {"\xff\xfeh\x00", "text/plain", ""}, {"PK\x03\x04zip", "application/pdf", ""},
		{"\x7fELF", "text/plain", ""}, {"a\x1b[31m", "text/plain", ""},
	} {
		got, ok := admission.Sniff([]byte(c.data), c.claim)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%q as %q: %q %v, want %q", c.data, c.claim, got, ok, c.want)
		}
	}
}

func FuzzSniff(f *testing.F) {
	f.Add([]byte(png), "image/png")
	f.Add([]byte("text"), "application/json")
	f.Fuzz(func(t *testing.T, data []byte, claim string) {
		media, ok := admission.Sniff(data, claim)
		if ok != (media != "") {
			t.Fatalf("%q %v", media, ok)
		}
		if again, _ := admission.Sniff(data, media); ok && again != media {
			t.Fatalf("%q is %q when it is claimed", media, again)
		}
		if strings.HasPrefix(media, "text/") && !utf8.Valid(data) {
			t.Fatal("text that is no UTF-8")
		}
	})
}

func (d *desk) asset(user, name, data string) eventlog.AssetRow {
	d.t.Helper()
	row, _, err := d.PutAsset(d.t.Context(), admission.Caller{}, user, name, "", []byte(data))
	if err != nil {
		d.t.Fatal(err)
	}
	return row
}

func TestPutAsset(t *testing.T) {
	d := newDesk(t, admission.Limits{AssetBytes: 100, UserAssetBytes: 150})
	for name, want := range map[string]string{
		"a.txt": "a.txt", "/home/ann/secret/a.txt": "a.txt", `C:\Users\ann\a.txt`: "a.txt", "../../etc/passwd": "passwd", "..": "", "dir/": "",
		"a\x00b\r\n.txt": "ab.txt", "bad\xff.txt": "bad.txt", "gpj\u202e.exe": "gpj.exe", strings.Repeat("é", 300): strings.Repeat("é", 100),
	} {
		if row := d.asset(fmt.Sprintf("u%x", name)[:min(20, 1+2*len(name))], name, "text"); row.Name != want {
			t.Errorf("the name %q is kept as %q, want %q", name, row.Name, want)
		}
	}
	put := func(c admission.Caller, user, data string) error {
		_, _, err := d.PutAsset(t.Context(), c, user, "f", "", []byte(data))
		return err
	}
	for _, c := range []struct {
		caller     admission.Caller
		user, data string
		code       string
	}{
		{data: "", code: "empty_asset"}, {data: strings.Repeat("x", 101), code: "asset_too_large"}, {data: "\x00\x01", code: "unsupported_asset_type"},
		{caller: admission.Caller{UserID: "ann"}, user: "bob", data: "x", code: "wrong_user"},
	} {
		if err := put(c.caller, c.user, c.data); !problem.Is(err, c.code) {
			t.Errorf("%q: %v, want %s", c.data, err, c.code)
		}
	}
	if err := put(admission.Caller{}, "carol", strings.Repeat("x", 100)); err != nil {
		t.Fatal(err)
	}
	if err := put(admission.Caller{}, "carol", strings.Repeat("y", 100)); !problem.Is(err, "asset_quota") {
		t.Errorf("past the quota: %v", err)
	}
	if err := put(admission.Caller{}, "carol", strings.Repeat("x", 100)); err != nil {
		t.Errorf("what is there already costs nothing: %v", err)
	}
	row := d.asset("ann", "a", "of ann")
	for _, c := range []admission.Caller{{UserID: "bob"}} { // I-34
		if _, err := d.FindAsset(t.Context(), c, row.ID); !problem.Is(err, "asset_not_found") {
			t.Errorf("another user: %v", err)
		}
		if _, _, err := d.AssetBytes(t.Context(), c, row.ID); !problem.Is(err, "asset_not_found") {
			t.Errorf("another user: %v", err)
		}
	}
	d.verify()
}

func ref(id event.AssetID) api.InputItem {
	return api.InputItem{Type: "asset_reference", AssetID: string(id)}
}

func inline(data, name string) api.InputItem {
	return api.InputItem{Type: "inline_asset", Data: base64.StdEncoding.EncodeToString([]byte(data)), Name: name}
}

// told is the input of a run in short.
func told(d *event.RunCreated) string {
	var b strings.Builder
	for _, it := range d.Input {
		switch {
		case it.Asset != nil:
			fmt.Fprintf(&b, "<%s %s %d>", it.Asset.Name, it.Asset.MediaType, it.Asset.Bytes)
		case it.Value != nil:
			fmt.Fprintf(&b, "=%s", it.Value)
		default:
			b.WriteString(it.Content.Text)
		}
	}
	return b.String()
}

// Files keep their order among texts, with a contract and without one.
func TestAssetItems(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	d.takes = func(r event.Route, media string) bool { return true }
	d.remake()
	row := d.session(&api.CreateSession{})
	pic := d.asset("default", "/tmp/pic.png", png)
	req := &api.SubmitRun{
		InputItems:  []api.InputItem{{Type: "text", Text: "first"}, ref(pic.ID), {Type: "text", Text: "second"}, inline(pdf, "dir/doc.pdf"), inline(pdf, "")},
		Attachments: []string{string(pic.ID)},
	}
	id := d.submit(row, req, "k", true)
	want := fmt.Sprintf("first<pic.png image/png %d>second", len(png)) + strings.Repeat(fmt.Sprintf("<doc.pdf application/pdf %d>", len(pdf)), 2) +
		fmt.Sprintf("<pic.png image/png %d>", len(png))
	if got := told(d.created(row, id)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if again := d.submit(row, req, "k", false); again != id { // I-07
		t.Errorf("%s, then %s", id, again)
	}
	req.Attachments = nil
	d.refused("idempotency_conflict", row, req, "k")
	for _, e := range d.feed() {
		if strings.Contains(string(e.AppendWire(nil)), "/tmp") || strings.Contains(string(e.AppendWire(nil)), "dir/") {
			t.Errorf("the log holds a path: %s", e.AppendWire(nil))
		}
	}
	d.verify()

	closed := d.session(&api.CreateSession{InputContract: &api.InputContract{Schema: api.Raw(schemaQ)}})
	items := []api.InputItem{ref(pic.ID), {Type: "text", Text: `{"q":"x",`}, inline(pdf, "doc.pdf"), {Type: "text", Text: `"n":1}`}}
	id = d.submit(closed, &api.SubmitRun{InputItems: items}, "k", true)
	want = fmt.Sprintf(`<pic.png image/png %d>={"n":1,"q":"x"}<doc.pdf application/pdf %d>`, len(png), len(pdf))
	if got := told(d.created(closed, id)); got != want {
		t.Errorf("under a contract\ngot  %s\nwant %s", got, want)
	}
	items[1].Text = `{"q": "x" ,` // another form of the same value is the same request
	if again := d.submit(closed, &api.SubmitRun{InputItems: items}, "k", false); again != id {
		t.Errorf("%s, then %s", id, again)
	}
	items[0] = ref(d.asset("default", "", png+"2").ID)
	d.refused("idempotency_conflict", closed, &api.SubmitRun{InputItems: items}, "k")
	d.refused(admission.CodeInputContract, closed, &api.SubmitRun{Attachments: []string{string(pic.ID)}}, "") // files alone meet no contract
	d.verify()
}

// What cannot be taken is refused before there is a run.
func TestAssetItemsRefused(t *testing.T) {
	d := newDesk(t, admission.Limits{InputBytes: 40, AssetBytes: 30 << 20})
	d.takes = func(r event.Route, media string) bool { return r.Name == "side" || media != "image/png" }
	d.remake()
	row := d.session(&api.CreateSession{})
	pic, theirs := d.asset("default", "pic", png), d.asset("bob", "pic", png)
	long := d.asset("default", "", strings.Repeat("x", 41))
	for _, c := range []struct {
		code, says string
		item       api.InputItem
	}{
		{"asset_not_supported", "item 1: the model m of route main does not take image/png", ref(pic.ID)},
		{"asset_not_supported", "image/png", inline(png, "")},
		{"asset_not_found", "input_items[1]", ref(theirs.ID)}, // I-34
		{"asset_not_found", "input_items[1]", ref("ast_0")},
		{"invalid_input", "input_items[1]", api.InputItem{Type: "asset_reference"}},
		{"invalid_input", "input_items[1]", api.InputItem{Type: "asset_reference", AssetID: string(pic.ID), Data: "aGk="}},
		{"invalid_input", "input_items[1]", api.InputItem{Type: "inline_asset"}},
		{"invalid_input", "base64", api.InputItem{Type: "inline_asset", Data: "a b"}},
		{"invalid_input", "input_items[1]", api.InputItem{Type: "text", AssetID: string(pic.ID)}},
		{"invalid_input", "input_items[1]", api.InputItem{Type: "file", AssetID: string(pic.ID)}},
		{"unsupported_asset_type", "input_items[1]", inline("\x00\x01\x02", "")},
		{"input_too_large", "input_items[1]", ref(long.ID)},
		{"input_too_large", "the files", inline(pdf+strings.Repeat(" ", 25<<20), "")},
	} {
		e := d.refused(c.code, row, &api.SubmitRun{InputItems: []api.InputItem{{Type: "text", Text: "see"}, c.item}}, "")
		if !strings.Contains(e.Detail, c.says) {
			t.Errorf("%s says %q", c.code, e.Detail)
		}
	}
	e := d.refused("asset_not_found", row, &api.SubmitRun{Content: api.Text("see"), Attachments: []string{"ast_0"}}, "")
	if !strings.Contains(e.Detail, "attachments[0]") {
		t.Errorf("says %q", e.Detail)
	}
	d.submit(row, &api.SubmitRun{Route: "side", Attachments: []string{string(pic.ID)}}, "", true)
	d.verify()
}
