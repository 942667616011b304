package daemon_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// stormRules are the rules of a group of receivers, as the configuration says
// them: the storm holds the daemon to these numbers.
type stormRules struct {
	group    string // beginning of the path
	attempts int
	backoff  time.Duration // doubles, up to stormMaxBackoff
	timeout  time.Duration
	age      time.Duration
	loose    bool  // in no order, stormInFlight at once
	again    []int // statuses that are tried again though they are refusals
}

// The numbers of all groups. They are short, so that the whole table of retries
// is walked in seconds.
const (
	stormMaxBackoff  = 20 * time.Millisecond
	stormRetryAfter  = 80 * time.Millisecond // the longest that a receiver may ask for
	stormThreshold   = 5
	stormCooldown    = 20 * time.Millisecond // doubles, up to:
	stormMaxCooldown = 80 * time.Millisecond
	stormInFlight    = 4
	stormPayload     = 64 << 10
	stormAge         = time.Hour
	stormTimeout     = 15 * time.Second
	stormShort       = 250 * time.Millisecond
)

var stormGroups = []stormRules{
	{group: "plain", attempts: 4, backoff: 4 * time.Millisecond, timeout: stormTimeout, age: stormAge}, // those of all
	{group: "slow", attempts: 2, backoff: 4 * time.Millisecond, timeout: stormShort, age: stormAge},
	{group: "mend", attempts: 40, backoff: 4 * time.Millisecond, timeout: stormTimeout, age: stormAge},
	{group: "mendslow", attempts: 40, backoff: 4 * time.Millisecond, timeout: stormShort, age: stormAge},
	{group: "aged", attempts: 900, backoff: 10 * time.Millisecond, timeout: stormTimeout, age: 150 * time.Millisecond},
	{group: "stubborn", attempts: 4, backoff: 4 * time.Millisecond, timeout: stormTimeout, age: stormAge, again: []int{http.StatusNotFound}},
	{group: "loose", attempts: 4, backoff: 4 * time.Millisecond, timeout: stormTimeout, age: stormAge, loose: true},
}

func rulesOfGroup(name string) *stormRules {
	i := slices.IndexFunc(stormGroups, func(r stormRules) bool { return r.group == name })
	return &stormGroups[i] // the table of ways names only these
}

// deed is what a receiver does with one request.
type deed struct {
	status int    // that it answers with; 0: no answer that anybody can read
	after  string // Retry-After; "-": none
	takes  bool   // it does what the message is for, whatever it answers
	silent bool   // it answers when the sender has gone
	unread bool   // the body is not read
	does   func(x *exchange)
}

// way is a way in which a receiver behaves. Each is one target.
type way struct {
	name  string
	group string
	// does says what becomes of request n of one delivery, of all, the at-th of
	// the target; both from 1.
	does func(n, at int) deed
	// delivered says how each of its deliveries ends.
	delivered bool
	code      string   // of the dead letter, if not
	once      bool     // the dead letter comes with the first answer
	fails     []string // codes of failed attempts besides code
	held      bool     // each failure asks to be left alone, for longer than may be asked
	heldOnce  bool     // one of them does
	address   string   // where it is, when it is not the receiver's plain address: tls, tls-plain, dns, closed, mute, mute-tls
}

func (w *way) rules() *stormRules { return rulesOfGroup(w.group) }

// path is where it stands at the receiver.
func (w *way) path() string { return "/" + w.group + "/" + w.name }

func ever(d deed) func(int, int) deed { return func(int, int) deed { return d } }

// first does something with the first requests of a delivery, and takes the next.
func first(deeds ...deed) func(int, int) deed {
	return func(n, _ int) deed {
		if n <= len(deeds) {
			return deeds[n-1]
		}
		return took
	}
}

func repeat(d deed, times int) []deed { return slices.Repeat([]deed{d}, times) }

func answers(status int) deed { return deed{status: status, after: "-", takes: status/100 == 2} }

func begs(status int, after string) deed { return deed{status: status, after: after} }

var (
	took   = answers(http.StatusOK)
	late   = deed{after: "-", takes: true, silent: true} // it has the message, and its answer comes too late
	hangs  = deed{after: "-", silent: true}
	resets = deed{after: "-", unread: true, does: (*exchange).reset}
	breaks = deed{after: "-", does: (*exchange).reset}
)

// stormWays are all ways of C56, C57 and C58, of the table of retries, and some of
// hostile answers.
func stormWays() []*way {
	var ways []*way
	add := func(list ...*way) { ways = append(ways, list...) }
	well := func(name string, d deed) { add(&way{name: name, group: "plain", does: ever(d), delivered: true}) }
	refuses := func(name, code string, d deed) {
		add(&way{name: name, group: "plain", does: ever(d), code: code, once: true})
	}
	dead := func(name, code string, d deed) { add(&way{name: name, group: "plain", does: ever(d), code: code}) }
	mends := func(name string, does func(int, int) deed, fails ...string) {
		add(&way{name: name, group: "mend", does: does, delivered: true, fails: fails})
	}

	for _, s := range []int{200, 202, 204} {
		well(fmt.Sprint(s), answers(s))
	}
	well("200-closes", deed{status: 200, after: "-", takes: true, does: func(x *exchange) {
		x.rw.Header().Set("Connection", "close")
		x.rw.WriteHeader(200)
	}})
	well("200-early-hints", deed{status: 200, after: "-", takes: true, does: func(x *exchange) {
		x.rw.WriteHeader(http.StatusEarlyHints)
		x.rw.WriteHeader(200)
	}})
	well("200-no-gzip", deed{status: 200, after: "-", takes: true, does: func(x *exchange) {
		x.rw.Header().Set("Content-Encoding", "gzip")
		_, _ = x.rw.Write([]byte("this is none"))
	}})
	well("200-cut", deed{status: 200, after: "-", takes: true, does: func(x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
	}})
	well("200-endless", deed{status: 200, after: "-", takes: true, does: func(x *exchange) { x.endless(200) }})
	well("200-drips", deed{status: 200, after: "-", takes: true, does: func(x *exchange) { x.drips() }})

	for _, s := range []int{300, 301, 302, 303, 304, 307, 308} {
		refuses(fmt.Sprint(s), "redirect", deed{status: s, after: "-", does: func(x *exchange) {
			x.rw.Header().Set("Location", x.s.inside+"/metadata")
			x.rw.WriteHeader(s)
		}})
	}
	for _, s := range []int{400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 422, 431, 451} {
		refuses(fmt.Sprint(s), fmt.Sprintf("http_%d", s), answers(s))
	}
	refuses("404-endless", "http_404", deed{status: 404, after: "-", does: func(x *exchange) { x.endless(404) }})

	for _, s := range []int{408, 425, 429, 500, 501, 502, 503, 504, 507} {
		dead(fmt.Sprint(s), fmt.Sprintf("http_%d", s), answers(s))
	}
	for name, after := range map[string]string{"past": stormDate(-24 * time.Hour), "negative": "-5", "fraction": "1.5", "words": "soon", "empty": "", "zero": "0"} {
		dead("429-"+name, "http_429", begs(429, after))
	}
	for name, after := range map[string]string{"seconds": "7", "year": "31536000", "overflow": strings.Repeat("9", 30), "date": "in 3s", "far-date": stormDate(365 * 24 * time.Hour)} {
		add(&way{name: "429-" + name, group: "plain", does: ever(begs(429, after)), code: "http_429", held: true})
	}
	add(&way{name: "503-seconds", group: "plain", does: ever(begs(503, "2")), code: "http_503", held: true})
	dead("999", "http_999", deed{status: 999, after: "-", does: func(x *exchange) { x.raw("HTTP/1.1 999 What\r\nConnection: close\r\nContent-Length: 0\r\n\r\n") }})
	dead("no-http", "connection", deed{after: "-", does: func(x *exchange) { x.raw("220 mail.example.com ESMTP\r\n") }})
	dead("reset-unread", "connection", resets)
	dead("reset", "connection", breaks)
	dead("huge-headers", "connection", deed{after: "-", does: func(x *exchange) { x.headers() }})
	for address, code := range map[string]string{"tls": "tls", "tls-plain": "tls", "dns": "dns", "closed": "connection"} {
		add(&way{name: "at-" + address, group: "plain", does: ever(took), code: code, address: address})
	}

	slow := func(name, address string, d deed) {
		add(&way{name: name, group: "slow", does: ever(d), code: "timeout", address: address})
	}
	slow("hangs", "", hangs)
	slow("hangs-unread", "", deed{after: "-", silent: true, unread: true})
	slow("late", "", late)
	slow("drips-headers", "", deed{after: "-", silent: true, does: func(x *exchange) { x.dripsHeaders() }})
	slow("mute", "mute", took)
	slow("mute-tls", "mute-tls", took)

	mends("500-once", first(answers(500)), "http_500")
	mends("503-seven", first(repeat(answers(503), 7)...), "http_503")
	mends("reset-then-200", first(resets, breaks, resets), "connection")
	add(&way{name: "429-then-200", group: "mend", does: first(begs(429, "7"), begs(429, "soon")), delivered: true, fails: []string{"http_429"}, heldOnce: true})
	mends("all-then-204", first(answers(408), answers(425), answers(429), answers(500), breaks, answers(507)),
		"http_408", "http_425", "http_429", "http_500", "http_507", "connection")
	mends("outage", func(_, at int) deed { // C57: while it is away all fail, probes too, and what waited comes in order
		if at%40 < 16 {
			return answers(503)
		}
		return took
	}, "http_503")
	slowly := func(name string, does func(int, int) deed, fails ...string) {
		add(&way{name: name, group: "mendslow", does: does, delivered: true, fails: append(fails, "timeout")})
	}
	slowly("500-late-200", first(answers(500), late), "http_500") // C56
	slowly("hangs-then-200", first(hangs))
	slowly("takes-twice", first(late, took))

	add(&way{name: "500-until-old", group: "aged", does: ever(answers(500)), code: "expired", fails: []string{"http_500"}})
	add(&way{name: "404-again", group: "stubborn", does: ever(answers(404)), code: "http_404"})
	add(&way{name: "404-then-200", group: "stubborn", does: first(answers(404)), delivered: true, fails: []string{"http_404"}})
	add(&way{name: "200", group: "loose", does: ever(took), delivered: true})
	add(&way{name: "500-twice", group: "loose", does: first(answers(500), answers(500)), delivered: true, fails: []string{"http_500"}})
	add(&way{name: "500", group: "loose", does: ever(answers(500)), code: "http_500"})
	slices.SortFunc(ways, func(a, b *way) int { return strings.Compare(a.path(), b.path()) })
	return ways
}

func stormDate(in time.Duration) string { return time.Now().Add(in).UTC().Format(http.TimeFormat) }

// stormDelivery is the part of the configuration that the groups are.
func stormDelivery(origins ...string) (delivery map[string]any, overrides []any) {
	rules := func(r *stormRules) map[string]any {
		return map[string]any{
			"max_attempts": r.attempts, "initial_backoff": r.backoff.String(), "timeout": r.timeout.String(), "max_age": r.age.String(),
		}
	}
	delivery = rules(&stormGroups[0])
	delivery["backoff_factor"], delivery["max_backoff"] = 2, stormMaxBackoff.String()
	delivery["retry_after_limit"], delivery["payload_bytes"] = stormRetryAfter.String(), stormPayload
	delivery["circuit"] = map[string]any{"failures": stormThreshold, "cooldown": stormCooldown.String(), "max_cooldown": stormMaxCooldown.String()}
	for i := range stormGroups[1:] {
		r := &stormGroups[1+i]
		for _, origin := range origins {
			o := rules(r)
			o["origin"], o["path_prefix"] = origin, "/"+r.group
			if r.again != nil {
				o["retry_statuses"] = r.again
			}
			if r.loose {
				o["order"], o["in_flight"] = "none", stormInFlight
			}
			overrides = append(overrides, o)
		}
	}
	return delivery, overrides
}

// failing says whether a failure of a code makes a row of failures longer: the
// receiver did not say its word on the message.
func (w *way) failing(code string, status int) bool {
	switch code {
	case "connection", "dns", "tls", "timeout":
		return true
	}
	return status == 408 || status == 425 || status == 429 || status >= 500 || slices.Contains(w.rules().again, status)
}
