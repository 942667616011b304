package httpapi

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
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// find resolves {s} for the caller.
func (c *call) find() (eventlog.SessionRow, error) {
	return c.cfg.Admission.Find(c.Ctx(), c.Who.Caller, c.R.PathValue("s"), c.query["user_id"])
}

// show answers with a session as it is now.
func (c *call) show(status int, id event.SessionID) error {
	row, err := c.cfg.Admission.Find(c.Ctx(), c.Who.Caller, string(id), "")
	if err != nil {
		return err
	}
	out, err := c.session(c.Ctx(), &row, true)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func createSession(c *call, req *api.CreateSession) error {
	id, err := c.cfg.Admission.CreateSession(c.Ctx(), c.Who.Caller, req)
	if err != nil {
		return err
	}
	c.W.Header().Set("Location", "/v1/sessions/"+string(id))
	return c.show(http.StatusCreated, id)
}

func listSessions(c *call) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	f := eventlog.SessionFilter{ThreadID: c.query["thread_id"]}
	if f.Range, err = c.timeRange(); err != nil {
		return err
	}
	if f.UserID, err = c.owner(); err != nil {
		return err
	}
	if f.Status, err = c.oneOf("status", session.Open, session.Closed); err != nil {
		return err
	}
	rows, next, err := c.cfg.Store.Sessions(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Session]{Items: []api.Session{}, NextCursor: next}
	for i := range rows {
		item, err := c.session(c.Ctx(), &rows[i], false)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func getSession(c *call) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	return c.show(http.StatusOK, row.ID)
}

func patchSession(c *call, req *api.UpdateSession) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	// null takes a setting back to what it is when it was never given (RFC 7396).
	clearTo(c, "title", &req.Title, "")
	clearTo(c, "instructions", &req.Instructions, "")
	clearTo(c, "on_doubt", &req.OnDoubt, string(event.DoubtAsk))
	clearTo(c, "max_turns", &req.MaxTurns, 0)
	clearTo(c, "history_limit", &req.HistoryLimit, 0)
	change, err := c.cfg.Admission.Patch(req)
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, change); err != nil {
		return err
	}
	return c.show(http.StatusOK, row.ID)
}

func clearTo[T any](c *call, name string, member **T, standard T) {
	if c.IsNull(name) {
		*member = &standard
	}
}

func closeSession(c *call, req *api.StopRun) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Close(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return c.show(http.StatusOK, row.ID)
}

func eraseSession(c *call) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Erase(c.Ctx(), c.Who.Caller, row); err != nil {
		return err
	}
	return c.NoContent()
}

// getSetting shows one setting; one that is not set is not found.
func getSetting[T any](name string, of func(*event.Settings) *T, op openapi.Operation) route {
	return plain(func(c *call) error {
		row, err := c.find()
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
func putSetting[T any](change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, op openapi.Operation) route {
	return takes(func(c *call, req *T) error {
		row, err := c.find()
		if err != nil {
			return err
		}
		ch, err := change(c.cfg.Admission, req)
		if err != nil {
			return err
		}
		if err := c.cfg.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, ch); err != nil {
			return err
		}
		return c.JSON(http.StatusOK, of(&ch.To))
	}, op)
}

// deleteSetting clears one setting. One that is not set stays so, without an event.
func deleteSetting[T any](change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, op openapi.Operation) route {
	return plain(func(c *call) error {
		row, err := c.find()
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
		ch, err := change(c.cfg.Admission, nil)
		if err != nil {
			return err
		}
		if err := c.cfg.Admission.Update(c.Ctx(), c.Who.Caller, row.ID, ch); err != nil {
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
	return &api.ReplyTargets{ReplyTargets: replyTargets(set)}
}

// targetsOrNone shows the reply targets, of which there may be none.
func targetsOrNone(set *event.Settings) *api.ReplyTargets {
	return &api.ReplyTargets{ReplyTargets: replyTargets(set)}
}

// getBlob gives content that an event refers to. What is sealed, and bodies of
// deliveries, are not there for anyone (I-33).
func getBlob(c *call) error {
	row, err := c.find()
	if err != nil {
		return err
	}
	none := problem.New(problem.NotFound, "blob_not_found", "the session has no such content")
	ref := c.R.PathValue("ref")
	data, kind, err := c.cfg.Store.Blob(c.Ctx(), row.ID, ref)
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
	h := c.W.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": ref}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	return c.Bytes(http.StatusOK, media, data)
}
