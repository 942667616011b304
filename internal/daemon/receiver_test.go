package daemon_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// A delivery and its target say who receives, by address; of a URL that is a secret by
// its origin and the secret's name. It goes with the session. // I-33
func TestReceiversAreNamed(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	defer receiver.Close()
	h := newHouse(t, func(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: "done"} })
	ctx := t.Context()
	if _, err := h.c.SetSecret(ctx, "hidden", &api.PutSecret{Value: receiver.URL + "/hidden-path", Hosts: []string{"127.0.0.1"}}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		to   api.ReplyTarget
		want string
	}{
		{api.ReplyTarget{Type: "webhook", URL: receiver.URL + "/plain"}, receiver.URL + "/plain"},
		{api.ReplyTarget{Type: "webhook", URLSecret: "hidden"}, receiver.URL + " (secret hidden)"},
	} {
		s := h.session(&api.CreateSession{ReplyTargets: []api.ReplyTarget{v.to}})
		r := h.submit(s, &api.SubmitRun{Content: api.Text("go")})
		d := h.delivered(r.Deliveries[0].ID)
		shown := func() [3]string {
			t.Helper()
			one, err := h.c.Delivery(ctx, d.ID)
			if err != nil {
				t.Fatal(err)
			}
			to, err := h.c.Target(ctx, d.TargetID)
			if err != nil {
				t.Fatal(err)
			}
			list, err := h.c.Targets(ctx, client.TargetsQuery{}, client.Page{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				if list.Items[i].ID == d.TargetID {
					return [3]string{one.Receiver, to.Receiver, list.Items[i].Receiver}
				}
			}
			return [3]string{one.Receiver, to.Receiver, "not listed"}
		}
		if got := shown(); got != [3]string{v.want, v.want, v.want} {
			t.Errorf("%+v: %q", v.to, got)
		}
		if err := h.c.EraseSession(ctx, s); err != nil {
			t.Fatal(err)
		}
		if got := shown(); got != [3]string{} {
			t.Errorf("%+v: of an erased session: %q", v.to, got)
		}
	}
}
