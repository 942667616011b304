package runs

import (
	"errors"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func (h *Handlers) assetRoutes() []call.Route {
	return []call.Route{
		h.file(h.createAsset, openapi.Operation{Method: "POST", Path: "/v1/assets", ID: "createAsset", Role: gate.Operator, Summary: "Hand in a file",
			Notes: "The body is the file itself. What it is (`image/png`, `image/jpeg`, `image/gif`, `image/webp`, `application/pdf`, or text in UTF-8) is found in its bytes; `Content-Type` only tells `text/markdown`, `text/csv` and `application/json` from `text/plain`. " +
				"Equal bytes of one user are one asset. An asset that no run uses goes away after a day; one that runs use stays as long as their sessions.",
			Params:  []openapi.Param{call.User, openapi.Query("name", "string", "A file name for the model and for people. Of a path only its last element is kept.")},
			Answers: []openapi.Answer{openapi.Gives[api.Asset](201, "The asset; Location names it."), openapi.Gives[api.Asset](200, "The asset that was there already.")}, Fails: []int{429}}),
		call.Plain(h.listAssets, openapi.Operation{Method: "GET", Path: "/v1/assets", ID: "listAssets", Role: gate.Reader, Summary: "List assets, newest first",
			Params: []openapi.Param{call.Limit, call.Cursor, call.Owner}, Answers: []openapi.Answer{openapi.Gives[api.List[api.Asset]](200, "A page.")}}),
		call.Plain(h.getAsset, openapi.Operation{Method: "GET", Path: "/v1/assets/{a}", ID: "getAsset", Role: gate.Reader, Summary: "Read what is known of an asset",
			Answers: []openapi.Answer{openapi.Gives[api.Asset](200, "The asset.")}}),
		call.Plain(h.getAssetBytes, openapi.Operation{Method: "GET", Path: "/v1/assets/{a}/raw", ID: "getAssetBytes", Role: gate.Reader, Summary: "Read an asset's bytes",
			Notes:   "Always as an attachment, never to be shown in place by a browser.",
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: strings.Join(admission.AssetTypes(), ", "), Text: "The bytes, with the media type that was found in them."}}, Fails: []int{429}}),
	}
}

var errUploads = problem.New(problem.Limited, "too_many_uploads", "too many files are on their way; try again")

// file is a route whose body is a file.
func (h *Handlers) file(f func(*call.Call, []byte) error, op openapi.Operation) call.Route {
	return call.Raw(func(c *call.Call) error {
		if err := enter(c, h.uploads); err != nil {
			return err
		}
		defer func() { <-h.uploads }()
		data, err := c.Receive(h.cfg.MaxAsset)
		var p *problem.Error
		if errors.As(err, &p) && p.Kind == problem.TooLarge {
			return problem.New(problem.TooLarge, "asset_too_large", "the file holds more than %d bytes", h.cfg.MaxAsset).Because(err)
		}
		if err != nil {
			return err
		}
		return f(c, data)
	}, op)
}

// enter takes a place among the files that come in, or go out: each stands in memory as a whole. It waits for one as long
// as a reader of ours may take for a piece of an answer.
func enter(c *call.Call, places chan struct{}) error {
	wait := time.NewTimer(c.WriteTimeout)
	defer wait.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-wait.C:
		return errUploads
	case <-c.Stopping:
		return eventlog.ErrClosed
	case <-c.Ctx().Done():
		return c.Ctx().Err()
	}
}

func (h *Handlers) createAsset(c *call.Call, data []byte) error {
	row, created, err := h.cfg.Admission.PutAsset(c.Ctx(), c.Who.Caller, c.Query["user_id"], c.Query["name"], c.R.Header.Get("Content-Type"), data)
	if err != nil {
		return err
	}
	c.W.Header().Set("Location", "/v1/assets/"+string(row.ID))
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return tellAsset(c, status, &row)
}

// tellAsset answers with an asset.
func tellAsset(c *call.Call, status int, row *eventlog.AssetRow) error {
	out, err := assetOf(row)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func assetOf(row *eventlog.AssetRow) (api.Asset, error) {
	var t views.Times
	out := api.Asset{
		ID: string(row.ID), UserID: row.UserID, Digest: row.Ref, MediaType: row.MediaType, Name: row.Name, Bytes: row.Bytes, CreatedAt: t.At(row.CreatedAt),
	}
	return out, t.Err
}

func (h *Handlers) listAssets(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	user, err := c.Owner()
	if err != nil {
		return err
	}
	rows, next, err := h.cfg.Store.ListAssets(c.Ctx(), user, page)
	if err != nil {
		return err
	}
	out := api.List[api.Asset]{Items: []api.Asset{}, NextCursor: next}
	for i := range rows {
		a, err := assetOf(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, a)
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getAsset(c *call.Call) error {
	row, err := h.cfg.Admission.FindAsset(c.Ctx(), c.Who.Caller, event.AssetID(c.R.PathValue("a")))
	if err != nil {
		return err
	}
	return tellAsset(c, http.StatusOK, &row)
}

func (h *Handlers) getAssetBytes(c *call.Call) error {
	if err := enter(c, h.reads); err != nil {
		return err
	}
	defer func() { <-h.reads }()
	row, data, err := h.cfg.Admission.AssetBytes(c.Ctx(), c.Who.Caller, event.AssetID(c.R.PathValue("a")))
	if err != nil {
		return err
	}
	name := row.Name
	if name == "" {
		name = string(row.ID)
	}
	header := c.W.Header()
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	return c.Bytes(http.StatusOK, row.MediaType, data)
}
