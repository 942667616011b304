package httpapi

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/slots"
)

// slotsOf is a room of secrets whose key is the same in every telling.
func slotsOf(t testing.TB, store eventlog.Secrets) *slots.Room {
	t.Helper()
	k, err := seal.ParseKey(strings.Repeat("A", 43))
	if err != nil {
		t.Fatal(err)
	}
	return slots.New(slots.Config{Store: store, Ring: seal.NewRing(k), DefaultUser: admission.DefaultUser, PerOwner: 3,
		Named:    map[string]slots.Named{"configured": {}},
		Generate: func() (string, error) { return "whsec_" + rand.Text(), nil }})
}

// I-33: a value goes in, and no answer of any request holds it again.
func TestSecretsAreWriteOnly(t *testing.T) {
	w := newWorld(t)
	const value = "the-canary-of-this-test"
	var all strings.Builder
	do := func(method, path, token string, body any, want int, code ...string) *reply {
		t.Helper()
		r := w.do(method, path, token, body)
		r.want(want, code...)
		all.Write(r.body)
		return r
	}
	s := into[api.Secret](do("PUT", "/v1/secrets/key", w.admin, api.PutSecret{Value: value, Hosts: []string{"API.example.com", "b.test:8443"}}, 201))
	if s.Version != 1 || s.UserID != "" || strings.Join(s.Hosts, " ") != "api.example.com b.test:8443" || s.KeyID == "" || s.CreatedBy == "" || s.FormerUntil != nil {
		t.Errorf("%+v", s)
	}
	if s := into[api.Secret](do("PUT", "/v1/secrets/key", w.admin, api.PutSecret{Value: value, Hosts: []string{"b.test:8443", "api.example.com"}}, 200)); s.Version != 1 {
		t.Errorf("a repeated request made version %d", s.Version)
	}
	s = into[api.Secret](do("PUT", "/v1/secrets/key", w.admin, api.PutSecret{Value: value + "-2"}, 200))
	if s.Version != 2 || len(s.Hosts) != 2 || len(s.Former) != 1 || s.Former[0].Version != 1 || s.FormerUntil == nil || !s.FormerUntil.Equal(s.Former[0].Until) {
		t.Errorf("%+v", s)
	}
	leak := "0s"
	if s = into[api.Secret](do("PUT", "/v1/secrets/key", w.admin, api.PutSecret{Value: value + "-3", FormerFor: &leak, Hosts: []string{}}, 200)); len(s.Hosts) != 0 || s.Former != nil || s.FormerUntil != nil {
		t.Errorf("%+v", s)
	}
	do("GET", "/v1/secrets/key", w.admin, nil, 200)
	do("GET", "/v1/secrets", w.admin, nil, 200)
	for body, code := range map[string]string{
		`{}`: "invalid_secret", `{"value":"short"}`: "invalid_secret", `{"value":"` + value + `","generate":true}`: "invalid_secret",
		`{"value":"` + value + `","hosts":["http://x"]}`: "invalid_hosts", `{"value":"` + value + `","former_for":"soon"}`: "invalid_former_for",
		`{"value":"` + value + `","former_for":"-1s"}`: "invalid_former_for", `{"value":"` + value + `","former_for":"169h"}`: "invalid_former_for",
		`{"value":{"` + value + `":1}}`: "invalid_body", `{"` + value + `":1,"value":"` + value + `"}`: "invalid_body", `{"value":"` + value: "invalid_json",
		`{"value":"` + value + `"} ` + value: "invalid_json",
	} {
		r := do("PUT", "/v1/secrets/other", w.admin, body, 400, code)
		if !strings.Contains(body, `{"`+value) && strings.Contains(string(r.body), value) { // the name of a member is named in its path
			t.Errorf("%s: the answer holds the value: %s", body, r.body)
		}
	}
	big := api.PutSecret{Value: strings.Repeat(value, 65536/len(value)+1)}
	do("PUT", "/v1/secrets/other", w.admin, big, 413, "secret_too_large")
	do("PUT", "/v1/secrets/a.b", w.admin, api.PutSecret{Value: value}, 400, "invalid_secret_name")
	do("PUT", "/v1/secrets/configured", w.admin, api.PutSecret{Value: value}, 409, "secret_in_configuration")
	do("GET", "/v1/secrets/other", w.admin, nil, 404, "secret_not_found")

	drawn := into[api.Secret](w.do("PUT", "/v1/secrets/hook", w.admin, `{"generate":true}`).want(201))
	if !strings.HasPrefix(drawn.Value, "whsec_") {
		t.Errorf("%+v", drawn)
	}
	if r := do("GET", "/v1/secrets/hook", w.admin, nil, 200); strings.Contains(string(r.body), drawn.Value) {
		t.Error("what was drawn is shown twice")
	}
	do("PUT", "/v1/secrets/third", w.admin, api.PutSecret{Value: value}, 201)
	do("PUT", "/v1/secrets/fourth", w.admin, api.PutSecret{Value: value}, 429, "too_many_secrets")
	if got := strings.ReplaceAll(all.String(), `$[\"`+value, ""); strings.Contains(strings.ReplaceAll(got, `$."`+value, ""), `"`+value) {
		t.Errorf("an answer holds the value: %s", got)
	}
}

// The daemon's own slots want an unbound administrator, those of a user what is that user's (I-34).
func TestSecretsHaveOwners(t *testing.T) {
	w := newWorld(t)
	body := api.PutSecret{Value: "some-secret-value"}
	operator, ann, annAdmin := w.token("operator", ""), w.token("operator", "ann"), w.token("admin", "ann")
	w.do("PUT", "/v1/secrets/key", operator, body).want(403, "role_required")
	w.do("PUT", "/v1/secrets/key?user_id=ann", operator, body).want(201)
	w.do("PUT", "/v1/secrets/key", w.admin, body).want(201)
	w.do("DELETE", "/v1/secrets/key", operator, nil).want(403, "role_required")
	w.do("PUT", "/v1/secrets/own", ann, body).want(201)
	w.do("PUT", "/v1/secrets/own?user_id=bob", ann, body).want(403, "wrong_user")
	w.do("GET", "/v1/secrets/own", w.token("reader", "ann"), nil).want(403, "role_required")
	if list := into[api.List[api.Secret]](w.do("GET", "/v1/secrets", ann, nil).want(200)); len(list.Items) != 2 || list.Items[0].UserID != "ann" {
		t.Errorf("%+v", list)
	}
	if list := into[api.List[api.Secret]](w.do("GET", "/v1/secrets", w.admin, nil).want(200)); len(list.Items) != 3 || list.Items[0].UserID != "" {
		t.Errorf("%+v", list)
	}
	w.do("POST", "/v1/rekey-secrets", annAdmin, nil).want(403, "unbound_token_required")
	w.do("POST", "/v1/rekey-secrets", w.admin, nil).want(200)
	w.do("DELETE", "/v1/secrets/key", annAdmin, nil).want(204)
	w.do("GET", "/v1/secrets/key", annAdmin, nil).want(404)
	w.do("GET", "/v1/secrets/key", w.admin, nil).want(200)
}

// Who changes a slot or a target stands in the audit stream, and no value does (I-33).
func TestAuditOfChanges(t *testing.T) {
	w := newWorld(t)
	p := w.property("ann")
	w.do("PUT", "/v1/secrets/audited", w.admin, `{"value":"hunter2hunter2","hosts":["a.test"]}`).want(201)
	w.do("PUT", "/v1/secrets/audited", w.admin, `{"value":"hunter3hunter3","hosts":["a.test"]}`).want(200)
	// What is refused, or changes nothing, is no change.
	w.do("PUT", "/v1/secrets/audited", w.admin, `{"value":"hunter3hunter3"}`).want(200)
	w.do("PUT", "/v1/secrets/audited", w.admin, `{"value":"short"}`).want(400, "invalid_secret")
	w.do("PUT", "/v1/secrets/never", w.admin, `{"value":"hunter4hunter4","hosts":["http://a.test"]}`).want(400, "invalid_hosts")
	w.do("PUT", "/v1/secrets/a.b", w.admin, `{"value":"hunter4hunter4"}`).want(400, "invalid_secret_name")
	w.do("PUT", "/v1/secrets/configured", w.admin, `{"value":"hunter4hunter4"}`).want(409, "secret_in_configuration")
	w.do("DELETE", "/v1/secrets/audited", w.admin, nil).want(204)
	for _, act := range []string{"pause", "resume", "reset"} {
		w.do("POST", "/v1/targets/"+p.target+"/"+act, w.admin, `{"reason":"why not"}`).want(200)
	}
	body := w.do("GET", "/v1/audit?type=audit.secret.changed,audit.target.changed", w.admin, nil).want(200).body
	at := -1
	for _, word := range []string{`"change":"created","hosts":"a.test","name":"audited"`, `"change":"rotated"`, `"change":"deleted"`, `"change":"paused"`, `"change":"resumed"`, `"change":"reset"`} {
		next := strings.Index(string(body), word)
		if next <= at {
			t.Errorf("%s is not told, or out of order: %s", word, body)
		}
		at = next
	}
	if n := strings.Count(string(body), `"change":"`); n != 7 { // and the one of property
		t.Errorf("%d changes are told, and 7 were made: %s", n, body)
	}
	if strings.Contains(string(body), "hunter") {
		t.Errorf("a value stands in %s", body)
	}
}
