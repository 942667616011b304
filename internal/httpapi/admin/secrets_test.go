package admin_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// I-33: a value goes in, and no answer of any request holds it again.
func TestSecretsAreWriteOnly(t *testing.T) {
	w := apitest.New(t)
	const value = "the-canary-of-this-test"
	var all strings.Builder
	do := func(method, path, token string, body any, want int, code ...string) *apitest.Reply {
		t.Helper()
		r := w.Do(method, path, token, body)
		r.Want(want, code...)
		all.Write(r.Body)
		return r
	}
	s := apitest.Into[api.Secret](do("PUT", "/v1/secrets/key", w.Admin, api.PutSecret{Value: value, Hosts: []string{"API.example.com", "b.test:8443"}}, 201))
	if s.Version != 1 || s.UserID != "" || strings.Join(s.Hosts, " ") != "api.example.com b.test:8443" || s.KeyID == "" || s.CreatedBy == "" || s.FormerUntil != nil {
		t.Errorf("%+v", s)
	}
	if s := apitest.Into[api.Secret](do("PUT", "/v1/secrets/key", w.Admin, api.PutSecret{Value: value, Hosts: []string{"b.test:8443", "api.example.com"}}, 200)); s.Version != 1 {
		t.Errorf("a repeated request made version %d", s.Version)
	}
	s = apitest.Into[api.Secret](do("PUT", "/v1/secrets/key", w.Admin, api.PutSecret{Value: value + "-2"}, 200))
	if s.Version != 2 || len(s.Hosts) != 2 || len(s.Former) != 1 || s.Former[0].Version != 1 || s.FormerUntil == nil || !s.FormerUntil.Equal(s.Former[0].Until) {
		t.Errorf("%+v", s)
	}
	leak := "0s"
	if s = apitest.Into[api.Secret](do("PUT", "/v1/secrets/key", w.Admin, api.PutSecret{Value: value + "-3", FormerFor: &leak, Hosts: []string{}}, 200)); len(s.Hosts) != 0 || s.Former != nil || s.FormerUntil != nil {
		t.Errorf("%+v", s)
	}
	do("GET", "/v1/secrets/key", w.Admin, nil, 200)
	do("GET", "/v1/secrets", w.Admin, nil, 200)
	for body, code := range map[string]string{
		`{}`: "invalid_secret", `{"value":"short"}`: "invalid_secret", `{"value":"` + value + `","generate":true}`: "invalid_secret",
		`{"value":"` + value + `","hosts":["http://x"]}`: "invalid_hosts", `{"value":"` + value + `","former_for":"soon"}`: "invalid_former_for",
		`{"value":"` + value + `","former_for":"-1s"}`: "invalid_former_for", `{"value":"` + value + `","former_for":"169h"}`: "invalid_former_for",
		`{"value":{"` + value + `":1}}`: "invalid_body", `{"` + value + `":1,"value":"` + value + `"}`: "invalid_body", `{"value":"` + value: "invalid_json",
		`{"value":"` + value + `"} ` + value: "invalid_json",
	} {
		r := do("PUT", "/v1/secrets/other", w.Admin, body, 400, code)
		if !strings.Contains(body, `{"`+value) && strings.Contains(string(r.Body), value) { // the name of a member is named in its path
			t.Errorf("%s: the answer holds the value: %s", body, r.Body)
		}
	}
	big := api.PutSecret{Value: strings.Repeat(value, 65536/len(value)+1)}
	do("PUT", "/v1/secrets/other", w.Admin, big, 413, "secret_too_large")
	do("PUT", "/v1/secrets/a.b", w.Admin, api.PutSecret{Value: value}, 400, "invalid_secret_name")
	do("PUT", "/v1/secrets/configured", w.Admin, api.PutSecret{Value: value}, 409, "secret_in_configuration")
	do("GET", "/v1/secrets/other", w.Admin, nil, 404, "secret_not_found")

	drawn := apitest.Into[api.Secret](w.Do("PUT", "/v1/secrets/hook", w.Admin, `{"generate":true}`).Want(201))
	if !strings.HasPrefix(drawn.Value, "whsec_") {
		t.Errorf("%+v", drawn)
	}
	if r := do("GET", "/v1/secrets/hook", w.Admin, nil, 200); strings.Contains(string(r.Body), drawn.Value) {
		t.Error("what was drawn is shown twice")
	}
	do("PUT", "/v1/secrets/third", w.Admin, api.PutSecret{Value: value}, 201)
	do("PUT", "/v1/secrets/fourth", w.Admin, api.PutSecret{Value: value}, 429, "too_many_secrets")
	if got := strings.ReplaceAll(all.String(), `$[\"`+value, ""); strings.Contains(strings.ReplaceAll(got, `$."`+value, ""), `"`+value) {
		t.Errorf("an answer holds the value: %s", got)
	}
}

// The daemon's own slots want an unbound administrator, those of a user what is that user's (I-34).
func TestSecretsHaveOwners(t *testing.T) {
	w := apitest.New(t)
	body := api.PutSecret{Value: "some-secret-value"}
	operator, ann, annAdmin := w.Token("operator", ""), w.Token("operator", "ann"), w.Token("admin", "ann")
	w.Do("PUT", "/v1/secrets/key", operator, body).Want(403, "role_required")
	w.Do("PUT", "/v1/secrets/key?user_id=ann", operator, body).Want(201)
	w.Do("PUT", "/v1/secrets/key", w.Admin, body).Want(201)
	w.Do("DELETE", "/v1/secrets/key", operator, nil).Want(403, "role_required")
	w.Do("PUT", "/v1/secrets/own", ann, body).Want(201)
	w.Do("PUT", "/v1/secrets/own?user_id=bob", ann, body).Want(403, "wrong_user")
	w.Do("GET", "/v1/secrets/own", w.Token("reader", "ann"), nil).Want(403, "role_required")
	if list := apitest.Into[api.List[api.Secret]](w.Do("GET", "/v1/secrets", ann, nil).Want(200)); len(list.Items) != 2 || list.Items[0].UserID != "ann" {
		t.Errorf("%+v", list)
	}
	if list := apitest.Into[api.List[api.Secret]](w.Do("GET", "/v1/secrets", w.Admin, nil).Want(200)); len(list.Items) != 3 || list.Items[0].UserID != "" {
		t.Errorf("%+v", list)
	}
	w.Do("POST", "/v1/rekey-secrets", annAdmin, nil).Want(403, "unbound_token_required")
	w.Do("POST", "/v1/rekey-secrets", w.Admin, nil).Want(200)
	w.Do("DELETE", "/v1/secrets/key", annAdmin, nil).Want(204)
	w.Do("GET", "/v1/secrets/key", annAdmin, nil).Want(404)
	w.Do("GET", "/v1/secrets/key", w.Admin, nil).Want(200)
}

// Who changes a slot or a target stands in the audit stream, and no value does (I-33).
func TestAuditOfChanges(t *testing.T) {
	w := apitest.New(t)
	p := w.Property("ann")
	w.Do("PUT", "/v1/secrets/audited", w.Admin, `{"value":"hunter2hunter2","hosts":["a.test"]}`).Want(201)
	w.Do("PUT", "/v1/secrets/audited", w.Admin, `{"value":"hunter3hunter3","hosts":["a.test"]}`).Want(200)
	// What is refused, or changes nothing, is no change.
	w.Do("PUT", "/v1/secrets/audited", w.Admin, `{"value":"hunter3hunter3"}`).Want(200)
	w.Do("PUT", "/v1/secrets/audited", w.Admin, `{"value":"short"}`).Want(400, "invalid_secret")
	w.Do("PUT", "/v1/secrets/never", w.Admin, `{"value":"hunter4hunter4","hosts":["http://a.test"]}`).Want(400, "invalid_hosts")
	w.Do("PUT", "/v1/secrets/a.b", w.Admin, `{"value":"hunter4hunter4"}`).Want(400, "invalid_secret_name")
	w.Do("PUT", "/v1/secrets/configured", w.Admin, `{"value":"hunter4hunter4"}`).Want(409, "secret_in_configuration")
	w.Do("DELETE", "/v1/secrets/audited", w.Admin, nil).Want(204)
	for _, act := range []string{"pause", "resume", "reset"} {
		w.Do("POST", "/v1/targets/"+p.Target+"/"+act, w.Admin, `{"reason":"why not"}`).Want(200)
	}
	body := w.Do("GET", "/v1/audit?type=audit.secret.changed,audit.target.changed", w.Admin, nil).Want(200).Body
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
