package httpapi

import (
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// findRun resolves {r} for the caller.
func (c *call) findRun() (eventlog.RunRow, error) {
	return c.cfg.Admission.FindRun(c.Ctx(), c.Who.Caller, event.RunID(c.R.PathValue("r")))
}

// showRun answers with a run as it is now.
func (c *call) showRun(status int, id event.RunID) error {
	row, err := c.cfg.Admission.FindRun(c.Ctx(), c.Who.Caller, id)
	if err != nil {
		return err
	}
	return c.tellRun(status, &row)
}

// tellRun answers with a run as a row says that it is.
func (c *call) tellRun(status int, row *eventlog.RunRow) error {
	out, err := c.run(c.Ctx(), row, true)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func submitRun(c *call, req *api.SubmitRun) error {
	keys := c.R.Header.Values("Idempotency-Key")
	if len(keys) > 1 || len(keys) == 1 && keys[0] == "" {
		return problem.New(problem.Invalid, "invalid_idempotency_key", "Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
	}
	key := ""
	if len(keys) == 1 {
		key = keys[0]
	}
	wait, err := c.wait()
	if err != nil {
		return err
	}
	row, err := c.find()
	if err != nil {
		return err
	}
	var sub *live.Subscription
	if wait > 0 && c.acquire() == nil { // where no place is left there is no wait
		c.Leave()
		defer c.release()
		// Whoever listens before the run is there misses nothing of it.
		sub = c.cfg.Hub.Watch(row.ID.Stream())
		defer sub.Close()
	}
	id, created, err := c.cfg.Admission.Submit(c.Ctx(), c.Who.Caller, row, req, key)
	if err != nil {
		return err
	}
	c.W.Header().Set("Location", "/v1/runs/"+string(id))
	status := http.StatusOK
	if created {
		status = http.StatusAccepted
	}
	if sub != nil {
		// The run is accepted: what goes wrong from here on only ends the wait.
		run, err := c.await(sub, id, wait, !created)
		switch {
		case err == nil:
			return c.tellRun(status, &run)
		case c.Ctx().Err() != nil:
			return err
		}
	}
	err = c.showRun(status, id)
	if problem.Is(err, "run_not_found") { // it was accepted, has ended, and its session was erased since
		if _, gone := c.find(); gone != nil {
			return gone
		}
	}
	return err
}

func interruptSession(c *call, req *api.StopRun) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	asked, err := c.cfg.Admission.Interrupt(c.Ctx(), c.Who.Caller, row, req.Reason)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, api.Interrupt{Requested: asked})
}

func compactSession(c *call) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	id, seq, err := c.cfg.Admission.Compact(c.Ctx(), c.Who.Caller, row)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, api.Compaction{ID: string(id), SessionID: string(row.ID), Seq: seq})
}

func listRuns(c *call) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	f := eventlog.RunFilter{SessionID: event.SessionID(c.query["session_id"])}
	if f.Range, err = c.timeRange(); err != nil {
		return err
	}
	if f.UserID, err = c.owner(); err != nil {
		return err
	}
	if f.Status, err = c.oneOf("status", api.RunQueued, api.RunRunning, api.RunNeedsAttention,
		api.RunCompleted, api.RunFailed, api.RunInterrupted, api.RunCancelled); err != nil {
		return err
	}
	rows, next, err := c.cfg.Store.Runs(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Run]{Items: []api.Run{}, NextCursor: next}
	for i := range rows {
		item, err := c.run(c.Ctx(), &rows[i], false)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func getRun(c *call) error {
	wait, err := c.wait()
	if err != nil {
		return err
	}
	row, err := c.findRun()
	if err != nil {
		return err
	}
	if wait > 0 && !settled(&row) {
		if err := c.acquire(); err != nil {
			return err
		}
		c.Leave()
		defer c.release()
		sub := c.cfg.Hub.Watch(row.SessionID.Stream())
		defer sub.Close()
		if row, err = c.await(sub, row.ID, wait, true); err != nil {
			return err
		}
	}
	return c.tellRun(http.StatusOK, &row)
}

// settled says whether a run goes no further by itself.
func settled(row *eventlog.RunRow) bool {
	if row.Status != session.StatusNeedsAttention {
		return session.Terminal(row.Status)
	}
	calls, err := row.Waiting() // none: every call has its word, and the run goes on
	return err != nil || len(calls) > 0
}

// lookAgain bounds how long a bell that was lost delays who waits for it.
const lookAgain = 5 * time.Second

// await waits until the run is settled, the time is over, or the daemon stops,
// and gives the run as it is then. look: it may be settled already, and sub
// would not say so.
func (c *call) await(sub *live.Subscription, id event.RunID, wait time.Duration, look bool) (eventlog.RunRow, error) {
	sub.Narrow(id)
	until := time.Now().Add(wait)
	over := time.NewTimer(wait)
	defer over.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for last := false; ; look = true {
		if look {
			row, err := c.cfg.Admission.FindRun(c.Ctx(), c.Who.Caller, id)
			if err != nil || last || settled(&row) {
				return row, err
			}
		}
		select {
		case <-sub.Bell:
		case <-again.C:
		case <-over.C:
		case <-c.cfg.Stopping:
		case <-c.Ctx().Done():
			return eventlog.RunRow{}, c.Ctx().Err()
		}
		last = c.Stops() || !time.Now().Before(until) // also where a bell rang in the same moment
	}
}

func cancelRun(c *call, req *api.StopRun) error {
	row, err := c.findRun()
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Cancel(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return c.showRun(http.StatusAccepted, row.ID)
}

func resolveAttention(c *call, req *api.ResolveAttention) error {
	row, err := c.findRun()
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Attention(c.Ctx(), c.Who.Caller, row, req); err != nil {
		return err
	}
	return c.showRun(http.StatusAccepted, row.ID)
}
