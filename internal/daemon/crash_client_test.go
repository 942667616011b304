package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// caller is a client of the daemon. When the daemon dies under a request it
// waits for the next life and sends the same request again.
type caller struct {
	t     testing.TB
	k     *keeper
	http  *http.Client
	stops bool         // lives end in order too, and may have too much to do: who is refused for that asks again
	again atomic.Int64 // requests that were sent once more, over a death
}

func (c *caller) repeated() int { return int(c.again.Load()) }

func newCaller(t testing.TB, k *keeper) *caller {
	c := &caller{t: t, k: k, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// answer is what a request came to.
type answer struct {
	status int
	body   []byte
}

func (a answer) into(v any) error {
	if a.status < 200 || a.status > 299 {
		return fmt.Errorf("status %d: %s", a.status, a.body)
	}
	return json.Unmarshal(a.body, v)
}

func (a answer) problem() api.Problem {
	var p api.Problem
	_ = json.Unmarshal(a.body, &p) // no problem at all has no code
	return p
}

// do sends until an answer comes. headers are pairs.
func (c *caller) do(ctx context.Context, method, path string, body any, headers ...string) (answer, error) {
	var text []byte
	if body != nil {
		text = quoted(body)
	}
	last := 0
	for {
		l, address, err := c.k.up(ctx, last)
		if err != nil {
			return answer{}, fmt.Errorf("%s %s: no daemon: %w", method, path, err)
		}
		a, err := c.once(ctx, address, method, path, text, headers)
		if err == nil && c.stops && a.status == http.StatusServiceUnavailable {
			switch a.problem().Code {
			case "timeout": // much is to do on this machine; nobody knows what came of it
				continue
			case "stopping":
				err = errors.New("it is stopping")
			}
		}
		if err == nil {
			return a, nil
		}
		select { // the daemon must be dying; a living one never breaks a connection
		case <-l.gone:
			last = l.number
			c.again.Add(1)
		case <-ctx.Done():
			return answer{}, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
}

func (c *caller) once(ctx context.Context, address, method, path string, body []byte, headers []string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, address+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+crashToken)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, body: text}, err
}

// get reads into v.
func (c *caller) get(ctx context.Context, path string, v any) error {
	a, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := a.into(v); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// createSession makes a session with an alias. When the first life to be asked
// died after the commit, the second says that the alias is taken: that is it.
func (c *caller) createSession(ctx context.Context, s api.CreateSession) error {
	a, err := c.do(ctx, http.MethodPost, "/v1/sessions", s)
	if err != nil || a.status == http.StatusCreated || a.status == http.StatusConflict {
		return err
	}
	return fmt.Errorf("create session: %d %s", a.status, a.body)
}

// submit sends work under a key until it is accepted, and gives the run and
// whether this very answer created it.
func (c *caller) submit(ctx context.Context, session, key string, content any) (api.Run, bool, error) {
	return c.send(ctx, session, key, api.SubmitRun{Content: quoted(content)})
}

// send is submit of a whole request.
func (c *caller) send(ctx context.Context, session, key string, req api.SubmitRun) (api.Run, bool, error) {
	var run api.Run
	a, err := c.do(ctx, http.MethodPost, "/v1/sessions/"+session+"/runs", req, "Idempotency-Key", key)
	if err == nil {
		err = a.into(&run)
	}
	if err != nil {
		return run, false, fmt.Errorf("submit %s: %w", key, err)
	}
	return run, a.status == http.StatusAccepted, nil
}

// settle waits until a run goes no further by itself.
func (c *caller) settle(ctx context.Context, id string) (api.Run, error) {
	for {
		var run api.Run
		if err := c.get(ctx, "/v1/runs/"+id+"?wait=30s", &run); err != nil {
			return run, err
		}
		if run.Terminal() || run.Status == api.RunNeedsAttention {
			return run, nil
		}
		if err := ctx.Err(); err != nil {
			return run, fmt.Errorf("run %s stays %s", id, run.Status)
		}
	}
}

// finish waits for the end of a run; decide is the person who settles what is
// in doubt.
func (c *caller) finish(ctx context.Context, id string, decide func(api.Attention) api.ResolveAttention) (api.Run, error) {
	told := map[string]bool{}
	for {
		changed := c.k.signal()
		run, err := c.settle(ctx, id)
		if err != nil || run.Terminal() {
			return run, err
		}
		fresh := false
		for _, doubt := range run.Attention {
			if told[doubt.CallID] {
				continue
			}
			if decide == nil {
				return run, fmt.Errorf("run %s needs attention", id)
			}
			a, err := c.do(ctx, http.MethodPost, "/v1/runs/"+id+"/attention", decide(doubt))
			if err != nil {
				return run, err
			}
			// A conflict: the word that was sent before the crash counted.
			if a.status != http.StatusAccepted && a.status != http.StatusConflict {
				return run, fmt.Errorf("attention: %d %s", a.status, a.body)
			}
			told[doubt.CallID], fresh = true, true
		}
		if fresh {
			continue
		}
		select { // the person has spoken; the run has not gone on yet
		case <-changed:
		case <-ctx.Done():
			return run, fmt.Errorf("run %s does not go on: %w", id, ctx.Err())
		}
	}
}

// feed reads the whole commit-ordered feed.
func (c *caller) feed(ctx context.Context) ([]api.Event, error) {
	return c.pages(ctx, "/v1/events?limit=1000&after=")
}

// sessionEvents reads the whole log of a session.
func (c *caller) sessionEvents(ctx context.Context, session string) ([]api.Event, error) {
	return c.pages(ctx, "/v1/sessions/"+url.PathEscape(session)+"/events?limit=1000&after=")
}

func (c *caller) pages(ctx context.Context, path string) ([]api.Event, error) {
	var all []api.Event
	for cursor := "0"; ; {
		var page api.List[api.Event]
		if err := c.get(ctx, path+cursor, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" || page.NextCursor == cursor || len(page.Items) == 0 {
			return all, nil
		}
		cursor = page.NextCursor
	}
}

// deliveries waits until n deliveries are at their end, and none is not.
func (c *caller) deliveries(ctx context.Context, n int) ([]api.Delivery, error) {
	for {
		changed := c.k.signal()
		var page api.List[api.Delivery]
		if err := c.get(ctx, "/v1/deliveries?limit=100", &page); err != nil {
			return nil, err
		}
		open := 0
		for _, d := range page.Items {
			if d.Status != api.DeliveryDelivered && d.Status != api.DeliveryDeadLettered {
				open++
			}
		}
		if open == 0 && len(page.Items) >= n {
			return page.Items, nil
		}
		select { // the daemon tells of each commit
		case <-changed:
		case <-ctx.Done():
			return page.Items, fmt.Errorf("%d of %d deliveries, %d of them not at their end", len(page.Items), n, open)
		}
	}
}

// jobEnds waits until a job is at its end.
func (c *caller) jobEnds(ctx context.Context, id string) (j api.Job, err error) {
	for {
		changed := c.k.signal()
		if err := c.get(ctx, "/v1/jobs/"+id, &j); err != nil {
			return j, err
		}
		if j.Status == api.JobCompleted || j.Status == api.JobCancelled {
			return j, nil
		}
		select { // the daemon tells of each commit
		case <-changed:
		case <-ctx.Done():
			return j, fmt.Errorf("the job does not end: %+v", j)
		}
	}
}

// within bounds a part of a test.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
