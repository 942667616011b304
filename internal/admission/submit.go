package admission

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// CodeInputContract is the code of a submission that breaks the input contract.
const CodeInputContract = "input_contract_violated"

// CodeHops is the code of a submission behind too many runs that answered into a session.
const CodeHops = "hop_limit"

// opSubmit scopes idempotency keys of submissions.
const opSubmit = "submit"

// winnerWait bounds how long a submission waits for an equal one that is
// being committed.
const winnerWait = 2 * time.Second

// Submission is work as a room or a connector hands it in.
type Submission struct {
	Request *api.SubmitRun
	Key     string // idempotency key; empty: none
	Source  string // where it comes from; empty: api
	Hops    int    // how many runs answered into a session, one after the other, up to this one
	// SaveTargets makes the targets that the request names the session's own for
	// what comes later. It is for connectors, and is done only at rest: the answer says
	// whether it was (I-08).
	SaveTargets bool
}

// Submitted is what came of a submission.
type Submitted struct {
	ID      event.RunID
	Created bool // false: the key was known with the same request; ID is the run that exists
	// TargetsSaved says that the targets are the session's own now, where that was
	// asked for; NotSaved is else why they are not: ReasonBusy or ReasonRepeated.
	TargetsSaved bool
	NotSaved     string
}

// Why targets were not made the session's own.
const (
	ReasonBusy     = "session_busy"        // a run was not at its end, or the session was being changed
	ReasonRepeated = "run_exists"          // the key was known: nothing is done twice
	ReasonNone     = "no_explicit_targets" // the request names none
)

// Place is a session as a submission finds it.
type Place struct {
	ID  event.SessionID
	row eventlog.SessionRow
	// set: the settings as this process has them in memory, which the append holds
	// against the store; nil: those of the row.
	set *event.Settings
}

// UserID is the user whose session it is.
func (p Place) UserID() string { return p.row.UserID }

// PlaceFor finds the session of a submission, by id or alias; see Find. One that
// rests in this process is not looked up: what is known of it here may be old, so that
// nothing is refused by it, and what is accepted is accepted on condition that it holds.
func (a *Admission) PlaceFor(ctx context.Context, c Caller, ref, user string) (Place, error) {
	id := event.SessionID(ref)
	if r, ok := a.cfg.Owner.Rests(id); ok && c.Sees(r.UserID) && r.Status == session.Open {
		row := eventlog.SessionRow{ID: id, UserID: r.UserID, Status: r.Status, SettingsVersion: r.Version}
		return Place{id, row, &r.Settings}, nil
	}
	row, err := a.Find(ctx, c, ref, user)
	return Place{row.ID, row, nil}, err
}

// Submit admits work that a caller of the API hands in; see SubmitWork.
func (a *Admission) Submit(ctx context.Context, c Caller, row eventlog.SessionRow, req *api.SubmitRun, key string) (id event.RunID, created bool, err error) {
	return a.SubmitAt(ctx, c, Place{row.ID, row, nil}, req, key)
}

// SubmitAt is Submit for a place.
func (a *Admission) SubmitAt(ctx context.Context, c Caller, p Place, req *api.SubmitRun, key string) (id event.RunID, created bool, err error) {
	sub := &Submission{Request: req, Key: key}
	out, err := a.submit(ctx, c, p, sub)
	var refused *problem.Error
	if p.set != nil && errors.As(err, &refused) && refused.Kind != problem.Unavailable {
		// Refused by what is in memory, perhaps: the store has the last word.
		row, err := a.Find(ctx, c, string(p.ID), "")
		if err != nil {
			return "", false, err
		}
		out, err = a.SubmitWork(ctx, c, row, sub)
		return out.ID, out.Created, err
	}
	return out.ID, out.Created, err
}

// SubmitWork admits work. The order is: idempotency, contract, capture, append.
// A submission that breaks the input contract leaves no run and no event (I-07).
func (a *Admission) SubmitWork(ctx context.Context, c Caller, row eventlog.SessionRow, sub *Submission) (out Submitted, err error) {
	return a.submit(ctx, c, Place{row.ID, row, nil}, sub)
}

func (a *Admission) submit(ctx context.Context, c Caller, p Place, sub *Submission) (out Submitted, err error) {
	req, row := sub.Request, p.row
	items, err := a.items(ctx, row.UserID, req)
	if err != nil {
		return out, err
	}
	hash, err := keyHash(sub.Key)
	if err != nil {
		return out, err
	}
	for range conflicts {
		if hash != "" {
			id, err := a.known(ctx, row, req, items, hash)
			if id != "" || err != nil {
				out.ID = id
				if sub.SaveTargets {
					out.NotSaved = ReasonRepeated
				}
				return out, err
			}
		}
		if a.stopped.Load() {
			return out, errStopping
		}
		if row.Status != session.Open {
			return out, errClosed
		}
		if sub.Hops > a.cfg.Limits.Hops {
			return out, problem.New(problem.Conflict, CodeHops, "%d runs have answered into a session, one after the other; targets.max_hops allows %d", sub.Hops, a.cfg.Limits.Hops)
		}
		_, rests := a.cfg.Owner.Rests(row.ID) // and has no queue then
		if !rests {
			if err := a.room(ctx, row.ID); err != nil {
				return out, err
			}
		}
		save := false
		if save, out.NotSaved, err = a.savesTargets(ctx, row.ID, sub); err != nil {
			return out, err
		}
		id, err := a.admit(ctx, c, p, sub, items, hash, save, !rests)
		var dup *eventlog.DuplicateError
		switch {
		case err == nil:
			out.ID, out.Created, out.TargetsSaved = id, true, save
			return out, nil
		case errors.As(err, &dup): // an equal key won the race; its run is committed
		case conflicted(err): // the session changed in between
			if row, err = a.Find(ctx, c, string(row.ID), ""); err != nil {
				return out, err
			}
			p = Place{row.ID, row, nil}
		default:
			return out, err
		}
	}
	return out, problem.New(problem.Conflict, "session_busy", "the session is being changed by others; try again")
}

// savesTargets says whether a submission's targets become the session's own.
func (a *Admission) savesTargets(ctx context.Context, id event.SessionID, sub *Submission) (save bool, why string, err error) {
	switch {
	case !sub.SaveTargets:
		return false, "", nil
	case sub.Request.ReplyTargets == nil:
		return false, ReasonNone, nil
	}
	n, err := a.cfg.Store.Pending(ctx, id, 1)
	if err != nil || n > 0 {
		return false, ReasonBusy, err
	}
	return true, "", nil
}

// room says whether the session's queue takes another run.
func (a *Admission) room(ctx context.Context, id event.SessionID) error {
	most := a.cfg.Limits.QueuedRuns
	n, err := a.cfg.Store.Pending(ctx, id, most)
	if err == nil && n >= most {
		err = problem.New(problem.Limited, "queue_full", "%d runs of the session are not at their end; submit again when some are", n)
	}
	return err
}

// admit checks the contract, captures and appends. With save the request's targets
// become the session's own, in the same append and only at rest. Where the queue was
// not counted, that is done when it turns out that the session does not rest.
func (a *Admission) admit(ctx context.Context, c Caller, p Place, sub *Submission, items []item, hash string, save, counted bool) (event.RunID, error) {
	req, row, set := sub.Request, p.row, p.set
	if set == nil {
		of, err := row.Settings()
		if err != nil {
			return "", err
		}
		set = &of
	}
	d, blobs, err := a.draft(ctx, c, &row, set, sub, items)
	if err != nil {
		return "", err
	}
	if hash != "" {
		d.Idempotency = &event.IdempotencyKey{KeyHash: hash, Operation: opSubmit}
		if set.InputContract != nil {
			// A retry of the key is read under this contract, whatever comes later.
			contract := event.NewBlob(row.ID, event.BlobContract, set.InputContract.Schema)
			d.Idempotency.Contract, blobs = contract.Ref, append(blobs, contract)
		}
		if d.Idempotency.Fingerprint, err = fingerprint(req, canonicalInput(d, items)); err != nil {
			return "", err
		}
	}
	id, err := event.NewRunID(a.cfg.Random)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, appendTime)
	defer cancel()
	if err := a.keepInline(ctx, items); err != nil {
		return "", err
	}
	draft := event.Event{SessionID: row.ID, UserID: row.UserID, RunID: id, Data: d}
	queued := draft
	queued.Data = &event.RunQueued{}
	events, require := []event.Event{draft, queued}, sessionIs(row.ID, row.SettingsVersion, session.Open)
	if save {
		updated, rests := savedTargets(c, &row, d.ReplyTargets)
		d.SettingsVersion++
		events, require = slices.Insert(events, 0, updated), append(require, rests)
	}
	ap := commandOf(row.ID, require, blobs, events)
	if taken, err := a.cfg.Owner.Offer(ctx, row.ID, ap); taken {
		return id, told(ctx, err)
	}
	if !counted {
		if err := a.room(ctx, row.ID); err != nil {
			return "", err
		}
	}
	return id, a.append(ctx, ap)
}

// appendTime bounds the append of a submission.
const appendTime = 10 * time.Second

// savedTargets makes targets those of a session, under the condition that it rests.
func savedTargets(c Caller, row *eventlog.SessionRow, targets []event.ReplyTarget) (event.Event, eventlog.Condition) {
	return event.Event{SessionID: row.ID, UserID: row.UserID, Data: &event.SessionUpdated{
			Actor: c.Actor, Changed: []string{"reply_targets"}, Settings: event.Settings{ReplyTargets: targets}, Version: int(row.SettingsVersion) + 1,
		}},
		eventlog.Condition{Table: derived.Queue, Where: []derived.Col{{Name: "session_id", Value: string(row.ID)}}, Absent: true}
}

// draft checks the contract and captures everything that shapes a run; what
// makes it safe to repeat is the caller's to add.
func (a *Admission) draft(ctx context.Context, c Caller, row *eventlog.SessionRow, set *event.Settings, sub *Submission, items []item) (*event.RunCreated, []event.Blob, error) {
	d := &event.RunCreated{Actor: c.Actor, Hops: sub.Hops, Kind: "input", Source: cmp.Or(sub.Source, "api"), SettingsVersion: int(row.SettingsVersion), OnDoubt: set.OnDoubt, ParallelTools: a.cfg.Limits.ParallelTools}
	if set.InputContract != nil {
		schema, err := a.input(set.InputContract.Schema)
		if err != nil {
			return nil, nil, err
		}
		value, err := schema.Check(textOf(items))
		if err != nil {
			var v *contract.Violation
			errors.As(err, &v)
			return nil, nil, problem.New(problem.Invalid, CodeInputContract, "%s", err).With(problem.Issue{Path: v.Path, Text: v.Text})
		}
		d.Input, d.InputContract = collapse(value, items), schema.Digest()
		d.TextPreview = preview(string(value))
	} else {
		for i := range items {
			if items[i].asset != nil {
				d.Input = append(d.Input, event.InputItem{Type: event.InputAsset, Asset: items[i].asset})
			} else {
				d.Input = append(d.Input, event.InputItem{Type: event.InputText, Content: event.TextContent(items[i].text)})
			}
		}
		d.TextPreview = preview(textOf(items))
	}
	if err := a.capture(ctx, row.UserID, d, set, sub.Request); err != nil {
		return nil, nil, err
	}
	if err := a.checkAssets(items, d.Route); err != nil {
		return nil, nil, err
	}
	ts, err := a.toolset(set.Tools)
	if err != nil || len(ts.captured) == 0 {
		return d, nil, err
	}
	d.Tools, d.Toolset = ts.captured, ts.ref
	return d, []event.Blob{{Owner: string(row.ID), Ref: ts.ref, Kind: event.BlobToolset, Bytes: ts.encoded}}, nil
}

// capture pins what shapes the run (I-08).
func (a *Admission) capture(ctx context.Context, user string, d *event.RunCreated, set *event.Settings, req *api.SubmitRun) error {
	route, model := req.Route, req.Model
	if p := set.RoutePolicy; p != nil {
		if route == "" {
			route = p.Route
			if model == "" {
				model = p.Model
			}
		}
	}
	var err error
	if d.Route, err = a.cfg.Route(route, model); err != nil {
		return err
	}
	d.Compaction = a.cfg.Compaction
	if d.ReplyTargets, err = a.targets(ctx, user, set, req); err != nil {
		return err
	}
	switch {
	case req.MaxTurns < 0 || req.MaxTurns > a.cfg.Limits.MaxTurns:
		return problem.New(problem.Invalid, "invalid_max_turns", "max_turns must be between 1 and %d", a.cfg.Limits.MaxTurns)
	case req.MaxTurns > 0:
		d.MaxTurns = req.MaxTurns
	case set.MaxTurns > 0:
		d.MaxTurns = set.MaxTurns
	default:
		d.MaxTurns = session.DefaultMaxTurns
	}
	d.Metadata, err = a.metadata(req.Metadata)
	return err
}

// items reads the input: texts and files, not all empty, within bounds.
func (a *Admission) items(ctx context.Context, user string, req *api.SubmitRun) ([]item, error) {
	list := req.InputItems
	if len(req.Content) > 0 && string(req.Content) != "null" {
		if len(list) > 0 {
			return nil, problem.New(problem.Invalid, "invalid_input", "content and input_items exclude each other")
		}
		text, err := contentText(req.Content)
		if err != nil {
			return nil, err
		}
		list = []api.InputItem{{Type: "text", Text: text}}
	}
	given := len(list)
	for _, id := range req.Attachments {
		list = append(list, api.InputItem{Type: "asset_reference", AssetID: id})
	}
	if len(list) == 0 {
		return nil, problem.New(problem.Invalid, "invalid_input", "a submission wants content or input_items")
	}
	if len(list) > a.cfg.Limits.InputItems {
		return nil, problem.New(problem.TooLarge, "input_too_large", "more than %d input items", a.cfg.Limits.InputItems)
	}
	items := make([]item, len(list))
	total, files := 0, int64(0)
	for i := range list {
		it := &list[i]
		if it.Type == "text" && it.AssetID == "" && it.Data == "" {
			items[i].text = it.Text
			total += len(it.Text)
			continue
		}
		at := fmt.Sprintf("input_items[%d]", i)
		if i >= given {
			at = fmt.Sprintf("attachments[%d]", i-given)
		}
		var err error
		if items[i], err = a.assetItem(ctx, user, it, at); err != nil {
			return nil, err
		}
		files += items[i].asset.Bytes
	}
	switch {
	case total == 0 && files == 0:
		return nil, problem.New(problem.Invalid, "invalid_input", "the input is empty")
	case total > a.cfg.Limits.InputBytes:
		return nil, problem.New(problem.TooLarge, "input_too_large", "the input holds more than %d bytes", a.cfg.Limits.InputBytes)
	case files > session.MaxContextFiles:
		return nil, problem.New(problem.TooLarge, "input_too_large", "the files of an input hold more than %d bytes", int64(session.MaxContextFiles))
	}
	return items, nil
}

// contentText is the text of Content: of a string the string, of any other
// JSON value its text as sent.
func contentText(raw api.Raw) (string, error) {
	if raw[0] != '"' {
		return string(raw), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", problem.New(problem.Invalid, "invalid_json", "content is no strict JSON string").Because(err)
	}
	return s, nil
}

func textOf(items []item) string {
	var b strings.Builder
	for i := range items {
		b.WriteString(items[i].text)
	}
	return b.String()
}

// collapse puts the canonical value in the place of the first text item; the
// others are part of it. Files keep their order around it.
func collapse(value canonjson.Value, items []item) []event.InputItem {
	text := event.InputItem{Type: event.InputText, Structured: true, Value: value}
	if len(value) > event.InlineLimit {
		text.Value, text.Content = nil, event.Content{Text: string(value)}
	}
	var out []event.InputItem
	said := false
	for i := range items {
		switch {
		case items[i].asset != nil:
			out = append(out, event.InputItem{Type: event.InputAsset, Asset: items[i].asset})
		case !said:
			out, said = append(out, text), true
		}
	}
	return out
}

func preview(text string) string {
	clean, _ := canonjson.ReplaceInvalid(text)
	return canonjson.CutRunes(clean, 200)
}

// toolset gives what a run captures of the tools that the session names.
func (a *Admission) toolset(names *[]string) (*toolset, error) {
	key := "*"
	if names != nil {
		key = strings.Join(*names, ",")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ts, ok := a.toolsets[key]; ok {
		return ts, nil
	}
	defs, missing := a.cfg.Tools.Select(names)
	if len(missing) > 0 {
		return nil, problem.New(problem.Conflict, "unknown_tool", "the session names tools that are not configured any more: %s",
			canonjson.CutRunes(strings.Join(missing, ", "), 200))
	}
	ts, err := captureTools(defs)
	if err != nil {
		return nil, err
	}
	if len(a.toolsets) >= cacheSize {
		clear(a.toolsets)
	}
	a.toolsets[key] = ts
	return ts, nil
}

func captureTools(defs []tool.Definition) (*toolset, error) {
	ts := &toolset{}
	var err error
	if ts.encoded, err = json.Marshal(defs); err != nil {
		return nil, err
	}
	ts.ref = event.RefOf(ts.encoded)
	for _, d := range defs {
		ts.captured = append(ts.captured, event.CapturedTool{
			Confined: d.Confined, Digest: d.Digest(), Idempotent: d.Idempotent, Level: string(d.Level),
			Name: d.Name, Policy: string(d.Policy), Source: string(d.Source),
		})
	}
	return ts, nil
}

// keyHash checks an Idempotency-Key and gives its digest; only that is stored.
func keyHash(key string) (string, error) {
	if key == "" {
		return "", nil
	}
	if len(key) > 255 || strings.IndexFunc(key, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return "", problem.New(problem.Invalid, "invalid_idempotency_key", "Idempotency-Key must be 1 to 255 visible ASCII characters")
	}
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:]), nil
}

// known looks a key up. A key with the same request gives its run; with
// another it is a conflict at once (I-07). The request is read under the
// contract that was stored with the key, so that a retry keeps its run even if
// the contract changed since.
func (a *Admission) known(ctx context.Context, row eventlog.SessionRow, req *api.SubmitRun, items []item, hash string) (event.RunID, error) {
	ctx, cancel := context.WithTimeout(ctx, winnerWait)
	defer cancel()
	rec, err := a.cfg.Store.Idempotency(ctx, row.ID, opSubmit, hash)
	if errors.Is(err, eventlog.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	input := exactInput(items)
	if rec.Contract != "" {
		schema, _, err := a.cfg.Store.Blob(ctx, row.ID, rec.Contract)
		if err != nil {
			return "", err
		}
		compiled, err := a.input(schema)
		if err != nil {
			return "", err
		}
		value, err := compiled.Check(textOf(items))
		if err != nil {
			return "", errKeyReused
		}
		input = bare(collapse(value, items))
	}
	print, err := fingerprint(req, input)
	if err != nil {
		return "", err
	}
	if print != rec.Fingerprint {
		return "", errKeyReused
	}
	return rec.RunID, nil
}

var errKeyReused = problem.New(problem.Conflict, "idempotency_conflict", "the Idempotency-Key was used with another request")

// exactInput is the input as it came. Of a file the id says all: what is known
// of it besides follows from its bytes, or is of no weight.
func exactInput(items []item) []event.InputItem {
	out := make([]event.InputItem, len(items))
	for i := range items {
		if r := items[i].asset; r != nil {
			out[i] = event.InputItem{Type: event.InputAsset, Asset: &event.AssetRef{ID: r.ID}}
			continue
		}
		out[i] = event.InputItem{Type: event.InputText, Content: event.Content{Text: items[i].text}}
	}
	return out
}

// canonicalInput is the input as the fingerprint reads it.
func canonicalInput(d *event.RunCreated, items []item) []event.InputItem {
	if d.InputContract == "" {
		return exactInput(items)
	}
	return bare(slices.Clone(d.Input))
}

// bare keeps of files their ids alone; the list is changed in place.
func bare(input []event.InputItem) []event.InputItem {
	for i := range input {
		if r := input[i].Asset; r != nil {
			input[i].Asset = &event.AssetRef{ID: r.ID}
		}
	}
	return input
}

// fingerprint is a versioned SHA-256 over the canonical form of what shapes
// the run's behaviour. Metadata does not: a retry may carry another trace id.
func fingerprint(req *api.SubmitRun, input []event.InputItem) (string, error) {
	v := struct {
		Input        []event.InputItem  `json:"input"`
		MaxTurns     int                `json:"max_turns,omitzero"`
		Model        string             `json:"model,omitzero"`
		ReplyTargets *[]api.ReplyTarget `json:"reply_targets,omitzero"`
		Route        string             `json:"route,omitzero"`
		Version      int                `json:"version"`
	}{Input: input, MaxTurns: req.MaxTurns, Model: req.Model, ReplyTargets: req.ReplyTargets, Route: req.Route, Version: 1}
	h := sha256.New()
	err := json.MarshalEncode(jsontext.NewEncoder(h), v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return "", err
	}
	return "v1:" + hex.EncodeToString(h.Sum(nil)), nil
}
