package sessions

import (
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// show answers with a session as it is now.
func (h *Handlers) show(c *call.Call, status int, id event.SessionID) error {
	row, err := h.Admission.Find(c.Ctx(), c.Who.Caller, string(id), "")
	if err != nil {
		return err
	}
	out, err := views.Session(c.Ctx(), h.Store, &row, true)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func (h *Handlers) createSession(c *call.Call, req *api.CreateSession) error {
	id, err := h.Admission.CreateSession(c.Ctx(), c.Who.Caller, req)
	if err != nil {
		return err
	}
	c.W.Header().Set("Location", "/v1/sessions/"+string(id))
	return h.show(c, http.StatusCreated, id)
}

func (h *Handlers) listSessions(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	f := eventlog.SessionFilter{ThreadID: c.Query["thread_id"]}
	if f.Range, err = c.Range(); err != nil {
		return err
	}
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	if f.Status, err = c.OneOf("status", session.Open, session.Closed); err != nil {
		return err
	}
	rows, next, err := h.Store.Sessions(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Session]{Items: []api.Session{}, NextCursor: next}
	for i := range rows {
		item, err := views.Session(c.Ctx(), h.Store, &rows[i], false)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getSession(c *call.Call) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	return h.show(c, http.StatusOK, row.ID)
}

func (h *Handlers) patchSession(c *call.Call, req *api.UpdateSession) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	// null takes a setting back to what it is when it was never given (RFC 7396).
	clearTo(c, "title", &req.Title, "")
	clearTo(c, "instructions", &req.Instructions, "")
	clearTo(c, "on_doubt", &req.OnDoubt, string(event.DoubtAsk))
	clearTo(c, "max_turns", &req.MaxTurns, 0)
	clearTo(c, "history_limit", &req.HistoryLimit, 0)
	change, err := h.Admission.Patch(req)
	if err != nil {
		return err
	}
	if err := h.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, change); err != nil {
		return err
	}
	return h.show(c, http.StatusOK, row.ID)
}

func clearTo[T any](c *call.Call, name string, member **T, standard T) {
	if c.IsNull(name) {
		*member = &standard
	}
}

func (h *Handlers) closeSession(c *call.Call, req *api.StopRun) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	if err := h.Admission.Close(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return h.show(c, http.StatusOK, row.ID)
}

func (h *Handlers) eraseSession(c *call.Call) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	if err := h.Admission.Erase(c.Ctx(), c.Who.Caller, row); err != nil {
		return err
	}
	return c.NoContent()
}

// getSetting shows one setting; one that is not set is not found.
func getSetting[T any](h *Handlers, name string, of func(*event.Settings) *T, op openapi.Operation) call.Route {
	return call.Plain(func(c *call.Call) error {
		row, err := c.Session(h.Admission)
		if err != nil {
			return err
		}
		set, err := row.Settings()
		if err != nil {
			return err
		}
		v := of(&set)
		if v == nil {
			return problem.New(problem.NotFound, strings.ReplaceAll(name, " ", "_")+"_not_set", "the session has no %s", name)
		}
		return c.JSON(http.StatusOK, v)
	}, op)
}

// putSetting changes one setting and shows it as it stands then.
func putSetting[T any](h *Handlers, change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, op openapi.Operation) call.Route {
	return call.Takes(func(c *call.Call, req *T) error {
		row, err := c.Session(h.Admission)
		if err != nil {
			return err
		}
		ch, err := change(h.Admission, req)
		if err != nil {
			return err
		}
		if err := h.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, ch); err != nil {
			return err
		}
		return c.JSON(http.StatusOK, of(&ch.To))
	}, op)
}

// deleteSetting clears one setting. One that is not set stays so, without an event.
func deleteSetting[T any](h *Handlers, change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, op openapi.Operation) call.Route {
	return call.Plain(func(c *call.Call) error {
		row, err := c.Session(h.Admission)
		if err != nil {
			return err
		}
		set, err := row.Settings()
		if err != nil {
			return err
		}
		if of(&set) == nil {
			return c.NoContent()
		}
		ch, err := change(h.Admission, nil)
		if err != nil {
			return err
		}
		if err := h.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, ch); err != nil {
			return err
		}
		return c.NoContent()
	}, op)
}

// targetsOf shows the reply targets; nil when there are none.
func targetsOf(set *event.Settings) *api.ReplyTargets {
	if len(set.ReplyTargets) == 0 {
		return nil
	}
	return &api.ReplyTargets{ReplyTargets: views.ReplyTargets(set)}
}

// targetsOrNone shows the reply targets, of which there may be none.
func targetsOrNone(set *event.Settings) *api.ReplyTargets {
	return &api.ReplyTargets{ReplyTargets: views.ReplyTargets(set)}
}

// getBlob gives content that an event refers to. What is sealed, and bodies of
// deliveries, are not there for anyone (I-33).
func (h *Handlers) getBlob(c *call.Call) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	none := problem.New(problem.NotFound, "blob_not_found", "the session has no such content")
	ref := c.R.PathValue("ref")
	data, kind, err := h.Store.Blob(c.Ctx(), row.ID, ref)
	if errors.Is(err, eventlog.ErrNotFound) {
		return none
	}
	if err != nil {
		return err
	}
	media := "text/plain; charset=utf-8"
	switch kind {
	case event.BlobContent:
		if jsontext.Value(data).IsValid() {
			media = "application/json"
		}
	case event.BlobToolset, event.BlobContract:
		media = "application/json"
	default:
		return none
	}
	header := c.W.Header()
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": ref}))
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	return c.Bytes(http.StatusOK, media, data)
}

func (h *Handlers) interruptSession(c *call.Call, req *api.StopRun) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	asked, err := h.Admission.Interrupt(c.Ctx(), c.Who.Caller, row, req.Reason)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, api.Interrupt{Requested: asked})
}

func (h *Handlers) compactSession(c *call.Call) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	id, seq, err := h.Admission.Compact(c.Ctx(), c.Who.Caller, row)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, api.Compaction{ID: string(id), SessionID: string(row.ID), Seq: seq})
}
