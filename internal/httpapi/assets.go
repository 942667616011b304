package httpapi

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
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func assetRoutes() []route {
	return []route{
		file(createAsset, openapi.Operation{Method: "POST", Path: "/v1/assets", ID: "createAsset", Role: gate.Operator, Summary: "Hand in a file",
			Notes: "The body is the file itself. What it is (`image/png`, `image/jpeg`, `image/gif`, `image/webp`, `application/pdf`, or text in UTF-8) is found in its bytes; `Content-Type` only tells `text/markdown`, `text/csv` and `application/json` from `text/plain`. " +
				"Equal bytes of one user are one asset. An asset that no run uses goes away after a day; one that runs use stays as long as their sessions.",
			Params:  []openapi.Param{pUser, openapi.Query("name", "string", "A file name for the model and for people. Of a path only its last element is kept.")},
			Answers: []openapi.Answer{openapi.Gives[api.Asset](201, "The asset; Location names it."), openapi.Gives[api.Asset](200, "The asset that was there already.")}, Fails: []int{429}}),
		plain(listAssets, openapi.Operation{Method: "GET", Path: "/v1/assets", ID: "listAssets", Role: gate.Reader, Summary: "List assets, newest first",
			Params: []openapi.Param{pLimit, pCursor, pOwner}, Answers: []openapi.Answer{openapi.Gives[api.List[api.Asset]](200, "A page.")}}),
		plain(getAsset, openapi.Operation{Method: "GET", Path: "/v1/assets/{a}", ID: "getAsset", Role: gate.Reader, Summary: "Read what is known of an asset",
			Answers: []openapi.Answer{openapi.Gives[api.Asset](200, "The asset.")}}),
		plain(getAssetBytes, openapi.Operation{Method: "GET", Path: "/v1/assets/{a}/raw", ID: "getAssetBytes", Role: gate.Reader, Summary: "Read an asset's bytes",
			Notes:   "Always as an attachment, never to be shown in place by a browser.",
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: strings.Join(admission.AssetTypes(), ", "), Text: "The bytes, with the media type that was found in them."}}, Fails: []int{429}}),
	}
}

var errUploads = problem.New(problem.Limited, "too_many_uploads", "too many files are on their way; try again")

// file is a route whose body is a file.
func file(f func(*call, []byte) error, op openapi.Operation) route {
	return raw(func(c *call) error {
		if err := c.enter(c.uploads); err != nil {
			return err
		}
		defer func() { <-c.uploads }()
		data, err := c.Receive(c.cfg.MaxAsset)
		var p *problem.Error
		if errors.As(err, &p) && p.Kind == problem.TooLarge {
			return problem.New(problem.TooLarge, "asset_too_large", "the file holds more than %d bytes", c.cfg.MaxAsset).Because(err)
		}
		if err != nil {
			return err
		}
		return f(c, data)
	}, op)
}

// enter takes a place among the files that come in, or go out: each stands in memory as a whole. It waits for one as long
// as a reader of ours may take for a piece of an answer.
func (c *call) enter(places chan struct{}) error {
	wait := time.NewTimer(c.cfg.WriteTimeout)
	defer wait.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-wait.C:
		return errUploads
	case <-c.cfg.Stopping:
		return eventlog.ErrClosed
	case <-c.Ctx().Done():
		return c.Ctx().Err()
	}
}

func createAsset(c *call, data []byte) error {
	row, created, err := c.cfg.Admission.PutAsset(c.Ctx(), c.Who.Caller, c.query["user_id"], c.query["name"], c.R.Header.Get("Content-Type"), data)
	if err != nil {
		return err
	}
	c.W.Header().Set("Location", "/v1/assets/"+string(row.ID))
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return c.asset(status, &row)
}

func (c *call) asset(status int, row *eventlog.AssetRow) error {
	out, err := assetOf(row)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

func assetOf(row *eventlog.AssetRow) (api.Asset, error) {
	var t times
	out := api.Asset{
		ID: string(row.ID), UserID: row.UserID, Digest: row.Ref, MediaType: row.MediaType, Name: row.Name, Bytes: row.Bytes, CreatedAt: t.at(row.CreatedAt),
	}
	return out, t.err
}

func listAssets(c *call) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	user, err := c.owner()
	if err != nil {
		return err
	}
	rows, next, err := c.cfg.Store.ListAssets(c.Ctx(), user, page)
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

func getAsset(c *call) error {
	row, err := c.cfg.Admission.FindAsset(c.Ctx(), c.Who.Caller, event.AssetID(c.R.PathValue("a")))
	if err != nil {
		return err
	}
	return c.asset(http.StatusOK, &row)
}

func getAssetBytes(c *call) error {
	if err := c.enter(c.reads); err != nil {
		return err
	}
	defer func() { <-c.reads }()
	row, data, err := c.cfg.Admission.AssetBytes(c.Ctx(), c.Who.Caller, event.AssetID(c.R.PathValue("a")))
	if err != nil {
		return err
	}
	name := row.Name
	if name == "" {
		name = string(row.ID)
	}
	h := c.W.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	return c.Bytes(http.StatusOK, row.MediaType, data)
}
