package admission

import (
	"context"
	"encoding/base64"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

func errNoAsset(id event.AssetID) error {
	return problem.New(problem.NotFound, "asset_not_found", "there is no asset %.64q", id)
}

// The media types that assets may have. What a file is, is read from its bytes.
var (
	binaryTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
	textTypes   = []string{"text/plain", "text/markdown", "text/csv", "application/json"}
)

// AssetTypes lists the media types that assets may have.
func AssetTypes() []string { return slices.Concat(binaryTypes, textTypes) }

// Sniff finds the media type of a file: pictures and PDF by their first bytes
// (WHATWG MIME Sniffing, section 6), text where all of it is UTF-8 without
// control characters. Which kind of text it is, only the claim can say; of
// anything else the claim counts for nothing. false: no type that is taken.
func Sniff(data []byte, claim string) (string, bool) {
	found := http.DetectContentType(data)
	if slices.Contains(binaryTypes, found) {
		return found, true
	}
	if !isText(data) {
		return "", false
	}
	claimed, _, err := mime.ParseMediaType(claim)
	if err != nil || !slices.Contains(textTypes, claimed) || claimed == "application/json" && !jsontext.Value(data).IsValid() {
		return "text/plain", true
	}
	return claimed, true
}

func isText(data []byte) bool {
	if len(data) == 0 || !utf8.Valid(data) {
		return false
	}
	return !slices.ContainsFunc(data, func(c byte) bool { return c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' || c == 0x7f })
}

// fileName keeps the last element of a name that a caller gave, bounded: the
// log holds no path. What has no printable form is left out.
func fileName(name string) string {
	name = name[strings.LastIndexAny(name, `/\`)+1:]
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return -1
		}
		return r
	}, name)
	if name = canonjson.CutRunes(strings.TrimSpace(name), 200); name == "." || name == ".." {
		return ""
	}
	return name
}

// newAsset checks a file and gives its row.
func (a *Admission) newAsset(user string, data []byte, name, claim, at string) (eventlog.AssetRow, error) {
	where := ""
	if at != "" {
		where = at + ": "
	}
	if len(data) == 0 {
		return eventlog.AssetRow{}, problem.New(problem.Invalid, "empty_asset", "%sthe file is empty", where)
	}
	if int64(len(data)) > a.cfg.Limits.AssetBytes {
		return eventlog.AssetRow{}, problem.New(problem.TooLarge, "asset_too_large", "%sthe file holds more than %d bytes", where, a.cfg.Limits.AssetBytes)
	}
	media, ok := Sniff(data, claim)
	if !ok {
		return eventlog.AssetRow{}, problem.New(problem.Invalid, "unsupported_asset_type",
			"%sthe file is none of %s, and no text in UTF-8", where, strings.Join(binaryTypes, ", "))
	}
	ref := event.RefOf(data)
	return eventlog.AssetRow{
		ID: event.AssetIDFor(user, ref), UserID: user, Ref: ref, MediaType: media, Name: fileName(name), Bytes: int64(len(data)),
	}, nil
}

// PutAsset keeps a file of the caller's user, or of the named one. Equal bytes
// are one asset; then created is false.
func (a *Admission) PutAsset(ctx context.Context, c Caller, user, name, claim string, data []byte) (row eventlog.AssetRow, created bool, err error) {
	if a.stopped.Load() {
		return row, false, errStopping
	}
	if user, err = c.User(user); err != nil {
		return row, false, err
	}
	if row, err = a.newAsset(user, data, name, claim, ""); err != nil {
		return row, false, err
	}
	return a.keep(ctx, row, data)
}

func (a *Admission) keep(ctx context.Context, row eventlog.AssetRow, data []byte) (eventlog.AssetRow, bool, error) {
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return row, false, err
	}
	row.CreatedAt = event.FormatTime(now)
	kept, created, err := a.cfg.Store.PutAsset(ctx, row, data, a.cfg.Limits.UserAssetBytes)
	switch {
	case errors.Is(err, eventlog.ErrQuota):
		err = problem.New(problem.Limited, "asset_quota", "the assets of user %s would hold more than %d bytes; those that no session uses go away by themselves", row.UserID, a.cfg.Limits.UserAssetBytes)
	case errors.Is(err, eventlog.ErrClosed):
		err = errStopping.Because(err)
	case err != nil && ctx.Err() == nil:
		err = problem.New(problem.Unavailable, "store_unavailable", "the daemon cannot write now; try again").Because(err)
	}
	return kept, created, err
}

// FindAsset gives an asset that the caller may see.
func (a *Admission) FindAsset(ctx context.Context, c Caller, id event.AssetID) (eventlog.AssetRow, error) {
	row, err := a.cfg.Store.Asset(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Sees(row.UserID) { // I-34
		return row, errNoAsset(id)
	}
	return row, err
}

// AssetBytes gives the bytes of an asset that the caller may see.
func (a *Admission) AssetBytes(ctx context.Context, c Caller, id event.AssetID) (eventlog.AssetRow, []byte, error) {
	row, err := a.FindAsset(ctx, c, id)
	if err != nil {
		return row, nil, err
	}
	data, err := a.cfg.Store.AssetBytes(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		err = errNoAsset(id)
	}
	return row, data, err
}

// item is one item of an input: a text, or an asset, whose bytes came with it
// or are stored already.
type item struct {
	text  string
	asset *event.AssetRef
	data  []byte // of an inline asset
	row   eventlog.AssetRow
}

// assetItem reads an item that is a file. at is its place, for errors.
func (a *Admission) assetItem(ctx context.Context, user string, it *api.InputItem, at string) (item, error) {
	var out item
	switch it.Type {
	case "asset_reference":
		if it.AssetID == "" || it.Data != "" || it.Name != "" || it.Text != "" {
			return out, problem.New(problem.Invalid, "invalid_input", "%s: an asset_reference has asset_id and nothing else", at)
		}
		row, err := a.cfg.Store.Asset(ctx, event.AssetID(it.AssetID))
		if errors.Is(err, eventlog.ErrNotFound) || err == nil && row.UserID != user { // I-34
			return out, problem.New(problem.Invalid, "asset_not_found", "%s: there is no asset %.64q of this session's user", at, it.AssetID)
		}
		if err != nil {
			return out, err
		}
		out.row = row
	case "inline_asset":
		if it.Data == "" || it.AssetID != "" || it.Text != "" {
			return out, problem.New(problem.Invalid, "invalid_input", "%s: an inline_asset has data, in base64, and maybe a name and a media_type", at)
		}
		data, err := base64.StdEncoding.Strict().DecodeString(it.Data)
		if err != nil {
			return out, problem.New(problem.Invalid, "invalid_input", "%s: data is no base64 (RFC 4648, section 4)", at)
		}
		if out.row, err = a.newAsset(user, data, it.Name, it.MediaType, at); err != nil {
			return out, err
		}
		out.data = data
	default:
		return out, problem.New(problem.Invalid, "invalid_input", "%s: type must be text, asset_reference or inline_asset", at)
	}
	r := &out.row
	if session.IsText(r.MediaType) && r.Bytes > int64(a.cfg.Limits.InputBytes) {
		return out, problem.New(problem.TooLarge, "input_too_large", "%s: a file of text may hold %d bytes in an input", at, a.cfg.Limits.InputBytes)
	}
	out.asset = &event.AssetRef{Bytes: r.Bytes, Digest: r.Ref, ID: r.ID, MediaType: r.MediaType, Name: r.Name}
	return out, nil
}

// checkAssets refuses files that the run's model does not take, before there is a run.
func (a *Admission) checkAssets(items []item, route event.Route) error {
	for i := range items {
		if r := items[i].asset; r != nil && !a.cfg.Takes(route, r.MediaType) {
			return problem.New(problem.Invalid, "asset_not_supported",
				"input item %d: the model %s of route %s does not take %s; choose another route, or say in the configuration that this one can (routes.%s.capabilities)",
				i, canonjson.CutRunes(route.Model, 64), route.Name, r.MediaType, route.Name)
		}
	}
	return nil
}

// keepInline stores the files that came with the submission. Should it not be
// accepted after all, nothing uses them, and they go away by themselves.
func (a *Admission) keepInline(ctx context.Context, items []item) error {
	for i := range items {
		if items[i].data == nil {
			continue
		}
		kept, _, err := a.keep(ctx, items[i].row, items[i].data)
		if err != nil {
			return err
		}
		items[i].asset.Name = kept.Name
	}
	return nil
}

// usesOf lists the assets that events refer to.
func usesOf(events []event.Event) []event.AssetID {
	var ids []event.AssetID
	for i := range events {
		if d, ok := events[i].Data.(*event.RunCreated); ok {
			for _, it := range d.Input {
				if it.Asset != nil {
					ids = append(ids, it.Asset.ID)
				}
			}
		}
	}
	return ids
}
