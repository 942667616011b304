package outbox_test

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"pgregory.net/rapid"
)

// no jitter
const even = 0.5

// The retry table of the issue (C58): what each outcome means.
func TestJudge(t *testing.T) {
	for name, row := range map[string]struct {
		out    outbox.Outcome
		class  string
		again  bool
		health outbox.Health
		pause  bool
	}{
		"301":                 {outbox.Outcome{Code: "redirect", Status: 301}, outbox.ClassRedirect, false, outbox.There, false},
		"304":                 {outbox.Outcome{Code: "redirect", Status: 304}, outbox.ClassRedirect, false, outbox.There, false},
		"400":                 {outbox.Outcome{Code: "http_400", Status: 400}, outbox.ClassRefused, false, outbox.There, false},
		"401":                 {outbox.Outcome{Code: "http_401", Status: 401}, outbox.ClassRefused, false, outbox.There, false},
		"404":                 {outbox.Outcome{Code: "http_404", Status: 404}, outbox.ClassRefused, false, outbox.There, false},
		"408":                 {outbox.Outcome{Code: "http_408", Status: 408}, outbox.ClassThrottled, true, outbox.Failing, false},
		"410":                 {outbox.Outcome{Code: "http_410", Status: 410}, outbox.ClassGone, false, outbox.There, true},
		"410 of a sender":     {outbox.Outcome{Code: "mailbox_removed", Permanent: true, Gone: true}, outbox.ClassNetwork, false, outbox.Failing, true},
		"413":                 {outbox.Outcome{Code: "http_413", Status: 413}, outbox.ClassRefused, false, outbox.There, false},
		"422":                 {outbox.Outcome{Code: "http_422", Status: 422}, outbox.ClassRefused, false, outbox.There, false},
		"425":                 {outbox.Outcome{Code: "http_425", Status: 425}, outbox.ClassThrottled, true, outbox.Failing, false},
		"429":                 {outbox.Outcome{Code: "http_429", Status: 429}, outbox.ClassThrottled, true, outbox.Failing, false},
		"500":                 {outbox.Outcome{Code: "http_500", Status: 500}, outbox.ClassServer, true, outbox.Failing, false},
		"503":                 {outbox.Outcome{Code: "http_503", Status: 503}, outbox.ClassServer, true, outbox.Failing, false},
		"507":                 {outbox.Outcome{Code: "http_507", Status: 507}, outbox.ClassServer, true, outbox.Failing, false},
		"599":                 {outbox.Outcome{Code: "http_599", Status: 599}, outbox.ClassServer, true, outbox.Failing, false},
		"999, no HTTP status": {outbox.Outcome{Code: "http_999", Status: 999}, outbox.ClassServer, true, outbox.Failing, false},
		"TLS":                 {outbox.Outcome{Code: "tls"}, outbox.ClassTLS, true, outbox.Failing, false},
		"DNS":                 {outbox.Outcome{Code: "dns"}, outbox.ClassDNS, true, outbox.Failing, false},
		"reset":               {outbox.Outcome{Code: "connection"}, outbox.ClassNetwork, true, outbox.Failing, false},
		"timeout":             {outbox.Outcome{Code: "timeout"}, outbox.ClassTimeout, true, outbox.Failing, false},
		"a blocked address":   {outbox.Outcome{Code: "dial_refused"}, outbox.ClassBlocked, false, outbox.Unknown, false},
		"no secret":           {outbox.Outcome{Code: "secret_unavailable"}, outbox.ClassSecret, true, outbox.Unknown, false},
		"a bad address":       {outbox.Outcome{Code: "invalid", Permanent: true}, outbox.ClassInvalid, false, outbox.Unknown, false},
		"a contract":          {outbox.Outcome{Code: "contract_violated"}, outbox.ClassContract, false, outbox.There, false},
		"an unknown word":     {outbox.Outcome{Code: "weather"}, outbox.ClassNetwork, true, outbox.Failing, false},
		"for good":            {outbox.Outcome{Code: "http_503", Status: 503, Permanent: true}, outbox.ClassServer, false, outbox.Failing, false},
	} {
		v := outbox.Rules{}.Judge(row.out, 1, noon, noon, even)
		if v.Class != row.class || v.RetryAt.IsZero() == row.again || v.Health != row.health || v.Pause != row.pause {
			t.Errorf("%s: %+v, want %+v", name, v, row)
		}
		if !slices.Contains(outbox.Classes(), v.Class) {
			t.Errorf("%s: %s is no class", name, v.Class)
		}
		if row.again && v.RetryAt.Sub(noon) != 5*time.Second {
			t.Errorf("%s: again after %v", name, v.RetryAt.Sub(noon))
		}
		if !row.again && (v.Code != row.out.Code || v.DeadClass != row.class) {
			t.Errorf("%s: a dead letter %s, %s", name, v.Code, v.DeadClass)
		}
	}
	own := outbox.Rules{RetryStatuses: []int{404, 410}}
	for _, status := range own.RetryStatuses {
		if v := own.Judge(outbox.Outcome{Status: status, Gone: status == 410}, 1, noon, noon, even); v.RetryAt.IsZero() || v.Pause || v.Health != outbox.Failing {
			t.Errorf("%d is to be tried again here: %+v", status, v)
		}
	}
}

// The schedule as the issue gives it: 5 s, times three, up to 6 h, 12 attempts.
func TestBackoff(t *testing.T) {
	want := []time.Duration{5, 15, 45, 135, 405, 1215, 3645, 10935, 21600, 21600, 21600}
	for i, w := range want {
		v := outbox.Rules{}.Judge(outbox.Outcome{Code: "timeout"}, i+1, noon, noon, even)
		if got := v.RetryAt.Sub(noon); got != w*time.Second {
			t.Errorf("after attempt %d: %v, want %v", i+1, got, w*time.Second)
		}
		if low, high := (outbox.Rules{}).Backoff(i+1, 0), (outbox.Rules{}).Backoff(i+1, 1); low != w*time.Second*4/5 || high != min(w*time.Second*6/5, 6*time.Hour) {
			t.Errorf("after attempt %d: from %v to %v", i+1, low, high)
		}
	}
	for _, cycle := range []int{12, 13, math.MaxInt} {
		if v := (outbox.Rules{}).Judge(outbox.Outcome{Code: "timeout"}, cycle, noon, noon, even); !v.RetryAt.IsZero() || v.Code != "timeout" {
			t.Errorf("attempt %d is the last: %+v", cycle, v)
		}
	}
	late := outbox.Rules{}.Judge(outbox.Outcome{Code: "timeout"}, 1, noon.Add(-72*time.Hour), noon, even)
	if !late.RetryAt.IsZero() || late.Code != outbox.CodeExpired || late.DeadClass != outbox.ClassExpired {
		t.Errorf("past its age: %+v", late)
	}
}

// C42: what a receiver asks for holds, within its bound, and holds the target;
// what it does not ask for is our own wait, never none.
func TestRetryAfterHolds(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{
		0: 5 * time.Second, -time.Hour: 5 * time.Second, time.Second: 5 * time.Second, 7 * time.Second: 7 * time.Second,
		time.Hour: time.Hour, 365 * 24 * time.Hour: time.Hour, math.MaxInt64: time.Hour,
	} {
		v := outbox.Rules{}.Judge(outbox.Outcome{Status: 429, RetryAfter: asked}, 1, noon, noon, even)
		if got := v.RetryAt.Sub(noon); got != want {
			t.Errorf("asked for %v: %v, want %v", asked, got, want)
		}
		if hold := v.HoldUntil; hold.IsZero() != (asked <= 0) || !hold.IsZero() && hold.Sub(noon) != min(asked, time.Hour) {
			t.Errorf("asked for %v: the target is held until %v", asked, hold)
		}
	}
	// Jitter is of our own wait alone (svix-webhooks#2199 and its kind).
	if v := (outbox.Rules{}).Judge(outbox.Outcome{Status: 429, RetryAfter: 5 * time.Second}, 1, noon, noon, 0); v.RetryAt.Sub(noon) != 5*time.Second {
		t.Errorf("jitter undercut what was asked for: %v", v.RetryAt.Sub(noon))
	}
	// It holds the target although the message that was answered so is at its end.
	if v := (outbox.Rules{}).Judge(outbox.Outcome{Status: 413, RetryAfter: time.Minute}, 1, noon, noon, 0); !v.RetryAt.IsZero() || v.HoldUntil.Sub(noon) != time.Minute {
		t.Errorf("%+v", v)
	}
	var c outbox.Circuit
	c = c.Apply(&event.DeliveryAttemptFailed{HoldUntil: event.FormatTime(noon.Add(time.Minute))}, noon)
	if due := c.Due(noon, time.Time{}); !due.Equal(noon.Add(time.Minute)) {
		t.Errorf("the next message is due at %v", due)
	}
}

// anyRules draws rules within what can be configured, and past it.
func anyRules(t *rapid.T) outbox.Rules {
	length := func(name string) time.Duration {
		return time.Duration(rapid.Int64Range(-1, int64(366*24*time.Hour)).Draw(t, name))
	}
	return outbox.Rules{
		MaxAttempts: rapid.IntRange(-1, 2000).Draw(t, "attempts"), InitialBackoff: length("initial"), MaxBackoff: length("max"), MaxAge: length("age"),
		Factor: rapid.SampledFrom([]float64{0, 1, 1.5, 2, 3, 10, math.Inf(1), math.NaN(), -3}).Draw(t, "factor"), MaxRetryAfter: length("asked at most"),
		Threshold: rapid.IntRange(-1, 12).Draw(t, "threshold"), Cooldown: length("cooldown"), MaxCooldown: length("max cooldown"),
		RetryStatuses: rapid.SliceOfN(rapid.IntRange(300, 599), 0, 3).Draw(t, "statuses"), InFlight: rapid.IntRange(-1, 9).Draw(t, "in flight"),
	}
}

func anyOutcome(t *rapid.T) outbox.Outcome {
	return outbox.Outcome{
		Code:   rapid.SampledFrom([]string{"timeout", "dns", "tls", "connection", "redirect", "http_500", "http_4x4", "dial_refused", "secret_x", "invalid", "", "ü"}).Draw(t, "code"),
		Status: rapid.SampledFrom([]int{0, 0, 100, 204, 301, 400, 408, 410, 425, 429, 499, 500, 599, 999, -1}).Draw(t, "status"), RetryAfter: time.Duration(rapid.Int64().Draw(t, "after")),
		Permanent: rapid.Bool().Draw(t, "permanent"), Gone: rapid.Bool().Draw(t, "gone"),
	}
}

// Whatever is configured and whatever is answered: an attempt that follows lies
// within the bounds, never before now and never before what the receiver asked for.
func TestJudgeBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, o := anyRules(t), anyOutcome(t)
		cycle := rapid.OneOf(rapid.IntRange(0, 30), rapid.Just(math.MaxInt)).Draw(t, "cycle")
		began := noon.Add(-time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "age of it")))
		v := r.Judge(o, cycle, began, noon, rapid.Float64().Draw(t, "jitter"))
		r = r.WithDefaults()
		asked := max(0, min(o.RetryAfter, r.MaxRetryAfter))
		if (asked > 0) != !v.HoldUntil.IsZero() || asked > 0 && v.HoldUntil.Sub(noon) != asked {
			t.Fatalf("asked for %v, held until %v", asked, v.HoldUntil)
		}
		if v.RetryAt.IsZero() {
			if v.Code != o.Code && v.Code != outbox.CodeExpired {
				t.Fatalf("dead of %q", v.Code)
			}
			return
		}
		d := v.RetryAt.Sub(noon)
		own := time.Duration(float64(min(r.InitialBackoff, r.MaxBackoff)) * 0.8)
		if cycle >= r.MaxAttempts || v.RetryAt.Sub(began) > r.MaxAge || d < asked || d < own-time.Microsecond || d <= 0 || d > max(asked, r.MaxBackoff) && d > time.Millisecond {
			t.Fatalf("attempt %d of %+v after %v", cycle, r, d)
		}
	})
}

// However often it failed, the wait never falls, without jitter, nor does the
// cooldown, and neither passes its bound or overflows.
func TestWaitsNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRules(t).WithDefaults()
		var wait, cool time.Duration
		for _, n := range []int{0, 1, 2, 3, 5, 12, 40, 70, 1000, math.MaxInt} {
			if n == math.MaxInt && r.Factor == 1 {
				continue
			}
			w, c := r.Backoff(n, even), r.CooldownOf(n)
			if w < wait || w > max(r.MaxBackoff, time.Millisecond) || c < cool || c > r.MaxCooldown || c <= 0 {
				t.Fatalf("%d: wait %v after %v, cooldown %v after %v", n, w, wait, c, cool)
			}
			wait, cool = w, c
		}
	})
}

// C57: five in a row open it; 30 s doubling to 15 min; a failed probe opens it for
// longer; an answer closes it; refusals do not open it, and end a row.
func TestCircuit(t *testing.T) {
	var r outbox.Rules
	c, now := outbox.Circuit{}, noon
	step := func(h outbox.Health) {
		failures, events := r.After(c, h, now)
		c = c.Apply(&event.DeliveryAttemptFailed{Failures: failures}, now)
		for _, d := range events {
			c = c.Apply(d, now)
		}
	}
	for range 4 {
		step(outbox.Failing)
	}
	step(outbox.There) // a 4xx
	for i := range 5 {
		if c.State != outbox.Closed || c.Failures != i {
			t.Fatalf("%d failures in a row: %+v", i, c)
		}
		step(outbox.Unknown)
		step(outbox.Failing)
	}
	for i, want := range []time.Duration{30, 60, 120, 240, 480, 900, 900, 900} {
		want *= time.Second
		if c.State != outbox.Open || c.OpenUntil.Sub(now) != want || c.Opens != i+1 || c.Failures != 5+i {
			t.Fatalf("the %d. time: %+v, %v", i+1, c, c.OpenUntil.Sub(now))
		}
		if due := c.Due(now.Add(time.Second), now); !due.Equal(c.OpenUntil) {
			t.Fatalf("due at %v while it is open", due)
		}
		now = c.OpenUntil
		begin := c.Begin("dlv_1")
		if len(begin) != 1 || c.Begin("dlv_1") == nil {
			t.Fatalf("no probe: %v", begin)
		}
		c = c.Apply(begin[0], now)
		if c.State != outbox.HalfOpen || !c.Single() || c.Begin("dlv_1") != nil {
			t.Fatalf("half open: %+v", c)
		}
		step(outbox.Unknown) // the process died over it: it is a probe still
		if c.State != outbox.HalfOpen {
			t.Fatalf("%+v", c)
		}
		step(outbox.Failing)
	}
	c = c.Apply(&event.TargetCircuitHalfOpened{}, now)
	step(outbox.There)
	if c != (outbox.Circuit{}) {
		t.Errorf("closed: %+v", c)
	}
}

// What waits is due at once after a reset, and only what waited then.
func TestReset(t *testing.T) {
	var c outbox.Circuit
	c = c.Apply(&event.TargetCircuitOpened{Until: event.FormatTime(noon.Add(time.Hour)), Failures: 5, Opens: 1}, noon)
	c = c.Apply(&event.DeliveryAttemptFailed{HoldUntil: event.FormatTime(noon.Add(time.Hour))}, noon)
	c = c.Apply(&event.TargetCircuitClosed{Actor: "ann"}, noon.Add(time.Minute))
	if due := c.Due(noon.Add(6*time.Hour), noon); due.After(noon.Add(time.Minute)) {
		t.Errorf("due at %v", due)
	}
	if due := c.Due(noon.Add(6*time.Hour), noon.Add(2*time.Minute)); !due.Equal(noon.Add(6 * time.Hour)) {
		t.Errorf("what failed after it is due at %v", due)
	}
}

// The memory of a target's owner is what the row says, whatever happens (I-03):
// so the state of a circuit survives its owner.
func TestCircuitIsItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, c := anyRules(t), outbox.Circuit{}
		row := map[string]any{}
		seq, now := int64(1), noon
		tell := func(datas ...event.Data) {
			var events []event.Event
			for _, d := range datas {
				c = c.Apply(d, now)
				events = append(events, event.Event{Stream: target.Stream(), Seq: seq, Time: now, UserID: "ann", Data: d})
				seq++
			}
			for _, ch := range outbox.Rows(events) {
				if ch.Table == derived.Targets {
					for _, col := range ch.Cols {
						row[col.Name] = col.Value
					}
				}
			}
		}
		tell(&event.DeliveryEnqueued{DeliveryID: "dlv_1", Type: "webhook"})
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pause")).Truncate(time.Microsecond))
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				_, more := r.After(c, outbox.There, now)
				tell(append([]event.Data{&event.DeliveryDelivered{Failures: c.Failures}}, more...)...)
			case 1:
				tell(&event.TargetCircuitClosed{Actor: "ann"})
			case 2:
				tell(&event.TargetPaused{Code: event.PausedByRequest})
			case 3:
				tell(&event.TargetResumed{})
			default:
				tell(append(c.Begin("dlv_1"), &event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 1})...)
				v := r.Judge(anyOutcome(t), 1, now, now, even)
				failures, more := r.After(c, v.Health, now)
				d := &event.DeliveryAttemptFailed{Failures: failures, Code: "x"}
				if !v.HoldUntil.IsZero() {
					d.HoldUntil = event.FormatTime(v.HoldUntil)
				}
				tell(append([]event.Data{d}, more...)...)
			}
			text := func(at time.Time) string {
				if at.IsZero() {
					return ""
				}
				return event.FormatTime(at)
			}
			paused := int64(0)
			if c.Paused {
				paused = 1
			}
			for name, want := range map[string]any{"circuit": c.State, "n_failures": int64(c.Failures), "n_opens": int64(c.Opens), "open_until": text(c.OpenUntil),
				"held_until": text(c.HeldUntil), "n_paused": paused, "resumed_at": text(c.ResumedAt), "reset_at": text(c.ResetAt)} {
				if got := row[name]; got != want && (got != nil || !reflect.ValueOf(want).IsZero()) {
					t.Fatalf("%s is %v in the row and %v in memory", name, got, want)
				}
			}
			if !slices.Contains([]string{outbox.Closed, outbox.Open, outbox.HalfOpen}, c.State) || (c.State == outbox.Closed) != (c.Opens == 0) {
				t.Fatalf("%+v", c)
			}
		}
	})
}

// The happy path writes nothing of the target.
func TestDeliveredWritesOneRow(t *testing.T) {
	events := stream(&event.DeliveryEnqueued{DeliveryID: "dlv_1"}, &event.DeliveryEnqueued{DeliveryID: "dlv_2"},
		&event.DeliveryDelivered{DeliveryID: "dlv_1", Attempt: 1}, &event.DeliveryAttemptStarted{DeliveryID: "dlv_2", Attempt: 1, Cycle: 1})
	if changes := outbox.Rows(events[2:]); len(changes) != 2 || changes[0].Table != derived.Outbox || changes[1].Table != derived.Outbox {
		t.Errorf("%v", changes)
	}
	first := outbox.Rows(events[:1])
	if len(first) != 2 || first[0].Table != derived.Targets || first[0].Op != derived.Insert {
		t.Errorf("the first event of a stream makes its target: %v", first)
	}
}

// Failed attempts have rows of their own, and so has the one that a forced replay
// leaves behind: history keeps every attempt.
func TestAttemptsHaveRows(t *testing.T) {
	changes := outbox.Rows(stream(
		&event.DeliveryEnqueued{DeliveryID: "dlv_1"}, &event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 1, Cycle: 1},
		&event.DeliveryAttemptFailed{DeliveryID: "dlv_1", Attempt: 1, Code: "http_503", Status: 503, Excerpt: "sha256:x", DurationMS: 7},
		&event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 2, Cycle: 2}, &event.DeliveryDelivered{DeliveryID: "dlv_1", Attempt: 2, Status: 200},
		&event.DeliveryReplayed{DeliveryID: "dlv_1"},
		&event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 3, Cycle: 1, Earlier: &event.EarlierAttempt{Attempt: 2, Status: 200, EndedAt: at(4)}},
	))
	var got []int64
	for _, c := range changes {
		if c.Table == derived.Attempts {
			got = append(got, c.Key[2].Value.(int64))
			if c.Op != derived.Insert {
				t.Errorf("%v", c)
			}
		}
	}
	if !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("attempts %v", got)
	}
}

// C42 with the numbers of the case.
func TestRetryAfterCase(t *testing.T) {
	text, err := os.ReadFile("testdata/C42.json")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Input struct {
			Policy struct {
				Initial int `json:"initial_s"`
				Max     int `json:"max_s"`
				Cap     int `json:"retry_after_cap_s"`
			}
		}
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	p := c.Input.Policy
	r := outbox.Rules{InitialBackoff: time.Duration(p.Initial) * time.Second, MaxBackoff: time.Duration(p.Max) * time.Second, MaxRetryAfter: time.Duration(p.Cap) * time.Second}
	for asked, want := range map[time.Duration]time.Duration{0: time.Second, 7 * time.Second: 7 * time.Second, 30 * time.Second: 30 * time.Second, 31536000 * time.Second: 300 * time.Second} {
		if v := r.Judge(outbox.Outcome{Status: 429, RetryAfter: asked}, 1, noon, noon, even); v.RetryAt.Sub(noon) != want {
			t.Errorf("asked for %v: %v", asked, v.RetryAt.Sub(noon))
		}
	}
}

// A status, a code and a wait of whatever a receiver makes up.
func FuzzJudge(f *testing.F) {
	f.Add("http_503", 503, int64(7e9), 1, 0.5)
	f.Add("", -1, int64(math.MinInt64), math.MinInt, math.NaN())
	f.Add("http_99999", math.MaxInt, int64(math.MaxInt64), math.MaxInt, math.Inf(1))
	f.Fuzz(func(t *testing.T, code string, status int, after int64, cycle int, jitter float64) {
		v := outbox.Rules{}.Judge(outbox.Outcome{Code: code, Status: status, RetryAfter: time.Duration(after)}, cycle, noon, noon, jitter)
		if !v.RetryAt.IsZero() && (v.RetryAt.Sub(noon) < 4*time.Second || v.RetryAt.Sub(noon) > 6*time.Hour) || v.HoldUntil.Sub(noon) > time.Hour && !v.HoldUntil.IsZero() {
			t.Errorf("%+v", v)
		}
		if !slices.Contains(outbox.Classes(), v.Class) {
			t.Errorf("class %q", v.Class)
		}
	})
}
