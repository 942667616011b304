package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

// follower reads one event stream over all lives of the daemon. It comes again
// from the last event that it saw, and wants every durable event once, in
// order (I-18), and deltas that move no cursor (I-17).
type follower struct {
	c       *caller
	session string // alias; of a run too
	run     string // id; empty: the session's stream
	product bool   // by the client that users have, which hides what comes twice

	mu      sync.Mutex
	seen    []api.Event
	faults  []string
	conns   int
	deltas  int
	over    bool
	changed chan struct{}
	done    chan struct{}
}

func (c *caller) follow(ctx context.Context, session, run string, product bool) *follower {
	f := &follower{c: c, session: session, run: run, product: product, changed: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		if product {
			f.byClient(ctx)
		} else {
			f.byHand(ctx)
		}
	}()
	return f
}

func (f *follower) note(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *follower) fault(format string, args ...any) {
	f.note(func() { f.faults = append(f.faults, fmt.Sprintf(format, args...)) })
}

func (f *follower) path() string {
	if f.run != "" {
		return "/v1/runs/" + f.run + "/stream"
	}
	return "/v1/sessions/" + f.session + "/stream"
}

func (f *follower) last() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) == 0 {
		return 0
	}
	return f.seen[len(f.seen)-1].Seq
}

// byHand connects again and again until the stream is over or ctx ends.
func (f *follower) byHand(ctx context.Context) {
	number := 0
	for ctx.Err() == nil {
		l, address, err := f.c.k.up(ctx, number)
		if err != nil {
			return
		}
		switch began, over := f.connect(ctx, address); {
		case over:
			f.note(func() { f.over = true })
			return
		case began:
			continue // it broke: the life is ending, or the next connection goes on
		}
		select {
		case <-l.gone:
			number = l.number
		case <-ctx.Done():
		}
	}
}

// connect reads one connection to its end.
func (f *follower) connect(ctx context.Context, address string) (began, over bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+f.path(), nil)
	if err != nil {
		f.fault("%v", err)
		return false, true
	}
	req.Header.Set("Authorization", "Bearer "+crashToken)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", strconv.FormatInt(f.last(), 10))
	res, err := f.c.http.Do(req)
	if err != nil {
		return false, false
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNoContent:
		return true, true
	case http.StatusOK:
	default:
		return false, false
	}
	f.note(func() { f.conns++ })
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	synced := 0
	for {
		kind, id, data, err := readFrame(lines)
		if err != nil { // what came of a frame that was cut counts for nothing
			return true, f.run != "" && f.ended()
		}
		switch {
		case id != "":
			f.take(kind, id, data)
		case kind == "synced":
			if synced++; synced > 1 {
				f.fault("I-18: a connection says twice that it is synced")
			}
		case kind == "problem":
			f.fault("the stream ends with %s", data)
			return true, true
		case strings.HasSuffix(kind, ".delta"):
			f.note(func() { f.deltas++ })
		}
	}
}

// readFrame reads one frame of a stream; comments give an empty one.
func readFrame(lines *bufio.Reader) (kind, id string, data []byte, err error) {
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return "", "", nil, err
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) == 0 {
			return kind, id, data, nil
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "id":
			id = string(value)
		case "data":
			data = append(data, value...)
		}
	}
}

func (f *follower) take(kind, id string, data []byte) {
	var e api.Event
	if err := json.Unmarshal(data, &e); err != nil {
		f.fault("a frame holds %q: %v", data, err)
		return
	}
	last := f.last()
	if strconv.FormatInt(e.Seq, 10) != id || e.Type != kind {
		f.fault("I-18: the frame %s, id %s, holds %s#%d", kind, id, e.Type, e.Seq)
	}
	if e.Seq <= last || f.run == "" && e.Seq != last+1 {
		f.fault("I-18: %s#%d follows #%d", e.Type, e.Seq, last)
	}
	f.note(func() { f.seen = append(f.seen, e) })
}

// ended says whether the run's last event was seen.
func (f *follower) ended() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen) > 0 && terminalType(f.seen[len(f.seen)-1].Type)
}

func terminalType(typ string) bool {
	switch typ {
	case "run.completed", "run.failed", "run.cancelled", "run.interrupted":
		return true
	}
	return false
}

// byClient follows with the public client, to which the daemon has one address.
func (f *follower) byClient(ctx context.Context) {
	c, err := f.c.public()
	if err != nil {
		f.fault("%v", err)
		return
	}
	tell := func(m client.Message) error {
		switch {
		case m.Event != nil:
			f.take(m.Event.Type, strconv.FormatInt(m.Event.Seq, 10), quoted(m.Event))
		case m.Delta != nil:
			f.note(func() { f.deltas++ })
		}
		return nil
	}
	if f.run != "" {
		err = c.StreamRun(ctx, f.run, 0, tell)
	} else {
		err = c.StreamSession(ctx, f.session, 0, tell)
	}
	if err != nil && ctx.Err() == nil {
		f.fault("the client gives up: %v", err)
	}
	f.note(func() { f.over = true })
}

// public is the client that users have. It finds the daemon wherever it lives now.
func (c *caller) public() (*client.Client, error) {
	again := func(int) time.Duration { return 10 * time.Millisecond }
	return client.New("http://daemon", crashToken, client.WithHTTPClient(&http.Client{Transport: wherever{c}}), client.WithRetry(100_000, again))
}

type wherever struct{ c *caller }

func (w wherever) RoundTrip(r *http.Request) (*http.Response, error) {
	_, address, err := w.c.k.up(r.Context(), 0)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	there := r.Clone(r.Context())
	there.URL.Host, there.Host = u.Host, u.Host
	return w.c.http.Transport.RoundTrip(there)
}

// repeat does something with the public client until the daemon lives through it.
func (c *caller) repeat(ctx context.Context, do func(*client.Client) error) error {
	pub, err := c.public()
	if err != nil {
		return err
	}
	for {
		changed := c.k.signal()
		if err = do(pub); !errors.Is(err, client.ErrUnreachable) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond): // the request fell between two changes
		case <-ctx.Done():
			return err
		}
	}
}

// wants waits until everything was seen, and compares it with what is in the log.
func (f *follower) wants(ctx context.Context, t testing.TB, log []api.Event) {
	t.Helper()
	var want []api.Event
	for _, e := range log {
		if f.run == "" || e.RunID == f.run {
			want = append(want, e)
		}
	}
	for {
		f.mu.Lock()
		seen, faults, over, changed := f.seen, f.faults, f.over, f.changed
		f.mu.Unlock()
		complete := len(want) > 0 && len(seen) > 0 && seen[len(seen)-1].Seq >= want[len(want)-1].Seq
		if !complete && !over && len(faults) == 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				t.Errorf("I-18: %s waits for more than %d of %d events", f.path(), len(seen), len(want))
			}
		}
		for _, fault := range faults {
			t.Errorf("%s: %s", f.path(), fault)
		}
		if len(seen) != len(want) {
			t.Errorf("I-18: %s (client: %t) told %d events, the log has %d", f.path(), f.product, len(seen), len(want))
			return
		}
		for i := range want {
			if seen[i].ID != want[i].ID || seen[i].Hash != want[i].Hash || !bytes.Equal(seen[i].Data, want[i].Data) {
				t.Errorf("I-18: %s: event %d was %s#%d, the log has %s#%d", f.path(), i, seen[i].Type, seen[i].Seq, want[i].Type, want[i].Seq)
			}
		}
		return
	}
}
