package runs

import (
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// showRun answers with a run as it is now.
func (h *Handlers) showRun(c *call.Call, status int, id event.RunID) error {
	run, err := h.findRun(c, id)
	if err != nil {
		return err
	}
	return c.JSON(status, run)
}

func (h *Handlers) findRun(c *call.Call, id event.RunID) (api.Run, error) {
	row, err := h.cfg.Admission.FindRun(c.Ctx(), c.Who.Caller, id)
	if err != nil {
		return api.Run{}, err
	}
	return views.Run(c.Ctx(), h.cfg.Store, &row)
}

// tellRun answers with a run as a row says that it is.
func (h *Handlers) tellRun(c *call.Call, status int, row *eventlog.RunRow) error {
	out, err := views.Run(c.Ctx(), h.cfg.Store, row)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func (h *Handlers) submitRun(c *call.Call, req *api.SubmitRun) error {
	keys := c.R.Header.Values("Idempotency-Key")
	if len(keys) > 1 || len(keys) == 1 && keys[0] == "" {
		return problem.New(problem.Invalid, "invalid_idempotency_key", "Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
	}
	key := ""
	if len(keys) == 1 {
		key = keys[0]
	}
	wait, err := c.Wait()
	if err != nil {
		return err
	}
	place, err := c.Place(h.cfg.Admission)
	if err != nil {
		return err
	}
	var sub *live.Subscription
	if wait > 0 && c.Acquire() == nil { // where no place is left there is no wait
		c.Leave()
		defer c.Release()
		// Whoever listens before the run is there misses nothing of it.
		sub = h.cfg.Hub.Watch(place.ID.Stream())
		defer sub.Close()
	}
	id, created, err := h.cfg.Admission.SubmitAt(c.Ctx(), c.Who.Caller, place, req, key)
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
		row, err := h.await(c, sub, id, wait, !created)
		if err == nil {
			var run api.Run
			if run, err = views.Run(c.Ctx(), h.cfg.Store, &row); err == nil {
				return c.JSON(status, run)
			}
		}
		if c.Ctx().Err() != nil {
			return err
		}
	}
	run, err := h.findRun(c, id)
	if problem.Is(err, "run_not_found") { // it was accepted, has ended, and its session was erased since
		if _, gone := h.cfg.Admission.Find(c.Ctx(), c.Who.Caller, string(place.ID), ""); problem.Is(gone, "session_erased") {
			return gone
		}
	}
	if err != nil && created && c.Ctx().Err() == nil {
		// It is in the log. Who is told to try again would have it done twice.
		now := time.Now().UTC()
		run, err = api.Run{
			ID: string(id), SessionID: string(place.ID), UserID: place.UserID(), Kind: "input", Status: api.RunQueued, SubmittedAt: now, UpdatedAt: now,
			Request: api.RunRequest{Source: "api"}, InputAttachments: []api.Attachment{}, Outputs: []api.Output{}, Deliveries: []api.Delivery{},
		}, nil
	}
	if err != nil {
		return err
	}
	return c.JSON(status, run)
}

func (h *Handlers) listRuns(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	f := eventlog.RunFilter{SessionID: event.SessionID(c.Query["session_id"])}
	if f.Range, err = c.Range(); err != nil {
		return err
	}
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	if f.Status, err = c.OneOf("status", api.RunQueued, api.RunRunning, api.RunNeedsAttention,
		api.RunCompleted, api.RunFailed, api.RunInterrupted, api.RunCancelled); err != nil {
		return err
	}
	rows, next, err := h.cfg.Store.Runs(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	items, err := views.Runs(c.Ctx(), h.cfg.Store, rows)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, api.List[api.Run]{Items: items, NextCursor: next})
}

func (h *Handlers) getRun(c *call.Call) error {
	wait, err := c.Wait()
	if err != nil {
		return err
	}
	row, err := c.Run(h.cfg.Admission)
	if err != nil {
		return err
	}
	if wait > 0 && !settled(&row) {
		if err := c.Acquire(); err != nil {
			return err
		}
		c.Leave()
		defer c.Release()
		sub := h.cfg.Hub.Watch(row.SessionID.Stream())
		defer sub.Close()
		if row, err = h.await(c, sub, row.ID, wait, true); err != nil {
			return err
		}
	}
	return h.tellRun(c, http.StatusOK, &row)
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
func (h *Handlers) await(c *call.Call, sub *live.Subscription, id event.RunID, wait time.Duration, look bool) (eventlog.RunRow, error) {
	sub.Narrow(id)
	until := time.Now().Add(wait)
	over := time.NewTimer(wait)
	defer over.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for last := false; ; look = true {
		if look {
			row, err := h.cfg.Admission.FindRun(c.Ctx(), c.Who.Caller, id)
			if err != nil || last || settled(&row) {
				return row, err
			}
		}
		select {
		case <-sub.Bell:
		case <-again.C:
		case <-over.C:
		case <-c.Stopping:
		case <-c.Ctx().Done():
			return eventlog.RunRow{}, c.Ctx().Err()
		}
		last = c.Stops() || !time.Now().Before(until) // also where a bell rang in the same moment
	}
}

func (h *Handlers) cancelRun(c *call.Call, req *api.StopRun) error {
	row, err := c.Run(h.cfg.Admission)
	if err != nil {
		return err
	}
	if err := h.cfg.Admission.Cancel(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return h.showRun(c, http.StatusAccepted, row.ID)
}

func (h *Handlers) resolveAttention(c *call.Call, req *api.ResolveAttention) error {
	row, err := c.Run(h.cfg.Admission)
	if err != nil {
		return err
	}
	if err := h.cfg.Admission.Attention(c.Ctx(), c.Who.Caller, row, req); err != nil {
		return err
	}
	return h.showRun(c, http.StatusAccepted, row.ID)
}
