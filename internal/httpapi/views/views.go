// Package views shows rows, and what the log keeps of them, as the types of package
// api. It decides nothing: who may see a row was asked before.
package views

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/replyto"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Log is what views read beside rows.
type Log interface {
	Facts(ctx context.Context, places []eventlog.Place) ([]event.Event, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error)
}

// maxDeliveries bounds the deliveries that are shown of one run.
const maxDeliveries = 200

// Times reads stored times; the first that cannot be read is its error.
type Times struct{ Err error }

// At reads a time.
func (t *Times) At(s string) time.Time {
	v, err := event.ParseTime(s)
	if err != nil && t.Err == nil {
		t.Err = fmt.Errorf("stored time: %w", err)
	}
	return v
}

// Maybe reads a time that may be absent.
func (t *Times) Maybe(s string) *time.Time {
	if s == "" {
		return nil
	}
	v := t.At(s)
	return &v
}

// text gives the whole text of a content, from the blob store if need be.
func text(ctx context.Context, log Log, owner event.SessionID, c event.Content) (string, error) {
	if c.Ref == "" {
		return c.Text, nil
	}
	b, _, err := log.Blob(ctx, owner, c.Ref)
	return string(b), err
}

// Session shows a session. In a list, instructions that stand in the blob
// store are left out, so that a page stays bounded.
func Session(ctx context.Context, log Log, row *eventlog.SessionRow, whole bool) (api.Session, error) {
	set, err := row.Settings()
	if err != nil {
		return api.Session{}, err
	}
	var t Times
	out := api.Session{
		ID: string(row.ID), Alias: row.Alias, UserID: row.UserID, ThreadID: row.ThreadID, Status: row.Status,
		Title: set.Title, Metadata: api.Raw(set.Metadata), Tools: set.Tools, OnDoubt: string(set.OnDoubt),
		MaxTurns: cmp.Or(set.MaxTurns, session.DefaultMaxTurns), HistoryLimit: cmp.Or(set.HistoryLimit, session.DefaultHistoryLimit),
		InputContract: InputContract(&set), OutputContract: OutputContract(&set), RoutePolicy: RoutePolicy(&set),
		SettingsVersion: row.SettingsVersion, CreatedAt: t.At(row.CreatedAt), UpdatedAt: t.At(row.UpdatedAt),
	}
	if len(set.ReplyTargets) > 0 {
		out.ReplyTargets = ReplyTargets(&set)
	}
	if whole || set.Instructions.Ref == "" {
		if out.Instructions, err = text(ctx, log, row.ID, set.Instructions); err != nil {
			return out, err
		}
	}
	return out, t.Err
}

// InputContract shows that of a session, nil when there is none. So do OutputContract
// and RoutePolicy.
func InputContract(set *event.Settings) *api.InputContract {
	if set.InputContract == nil {
		return nil
	}
	return &api.InputContract{Schema: api.Raw(set.InputContract.Schema)}
}

// OutputContract: see InputContract.
func OutputContract(set *event.Settings) *api.OutputContract {
	if set.OutputContract == nil {
		return nil
	}
	return &api.OutputContract{Schema: api.Raw(set.OutputContract.Schema), MaxRepairAttempts: set.OutputContract.MaxRepairAttempts}
}

// RoutePolicy: see InputContract.
func RoutePolicy(set *event.Settings) *api.RoutePolicy {
	if set.RoutePolicy == nil {
		return nil
	}
	return &api.RoutePolicy{Route: set.RoutePolicy.Route, Model: set.RoutePolicy.Model}
}

// ReplyTargets shows those of a session, of which there may be none.
func ReplyTargets(set *event.Settings) []api.ReplyTarget {
	out := make([]api.ReplyTarget, len(set.ReplyTargets))
	for i := range set.ReplyTargets {
		out[i] = replyto.Show(&set.ReplyTargets[i])
	}
	return out
}

// Run shows a run: its row, and from the log its metadata and answer.
func Run(ctx context.Context, log Log, row *eventlog.RunRow) (api.Run, error) {
	f, _, err := factsOf(ctx, log, []eventlog.RunRow{*row})
	if err != nil {
		return api.Run{}, err
	}
	return run(ctx, log, row, f, true)
}

// Runs shows runs in a list: answers that stand in the blob store are given as a
// reference.
func Runs(ctx context.Context, log Log, rows []eventlog.RunRow) ([]api.Run, error) {
	out := make([]api.Run, 0, len(rows))
	for len(out) < len(rows) {
		some := rows[len(out):]
		f, n, err := factsOf(ctx, log, some[:min(len(some), eventlog.MaxFacts/2)])
		if err != nil {
			return nil, err
		}
		for i := range some[:n] {
			r, err := run(ctx, log, &some[i], f, false)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func run(ctx context.Context, log Log, row *eventlog.RunRow, f facts, whole bool) (api.Run, error) {
	var t Times
	out := api.Run{
		ID: string(row.ID), SessionID: string(row.SessionID), UserID: row.UserID, Kind: row.Kind, Status: row.Status,
		SubmittedAt: t.At(row.SubmittedAt), UpdatedAt: t.At(row.UpdatedAt), StartedAt: t.Maybe(row.StartedAt), FinishedAt: t.Maybe(row.FinishedAt),
		QueuePosition: row.Position,
		Request: api.RunRequest{Source: row.Source, Actor: row.Actor, TextPreview: row.TextPreview,
			Route: row.Route, Provider: row.Provider, Model: row.Model},
		InputAttachments: []api.Attachment{}, Outputs: []api.Output{}, Deliveries: []api.Delivery{},
	}
	if t.Err != nil {
		return out, t.Err
	}
	if row.ErrorCode != "" || row.ErrorMessage != "" {
		out.Error = &api.RunError{Code: cmp.Or(row.ErrorCode, row.Status), Message: row.ErrorMessage}
	}
	if err := counters(row, &out); err != nil {
		return out, err
	}
	waiting, err := row.Waiting()
	if err != nil {
		return out, err
	}
	for _, w := range waiting {
		out.Attention = append(out.Attention, api.Attention{CallID: string(w.CallID), Tool: w.Name, Reason: w.Reason})
	}
	created, err := f.at(createdAt(row))
	if err != nil {
		return out, err
	}
	if d, ok := created.Data.(*event.RunCreated); ok {
		out.InputMetadata = api.Raw(d.Metadata)
		for _, it := range d.Input {
			if a := it.Asset; a != nil {
				out.InputAttachments = append(out.InputAttachments, api.Attachment{AssetID: string(a.ID), MediaType: a.MediaType, Name: a.Name, Bytes: a.Bytes})
			}
		}
	}
	if row.OutputSeq == 0 {
		return out, nil // deliveries come with an output
	}
	sent, err := outputs(ctx, log, row, f, whole, &out)
	if err != nil || sent == 0 {
		return out, err
	}
	rows, _, err := log.Deliveries(ctx, eventlog.DeliveryFilter{SessionID: row.SessionID, RunID: row.ID}, eventlog.Page{Limit: maxDeliveries})
	if err != nil {
		return out, err
	}
	for i := range rows {
		d, err := Delivery(&rows[i])
		if err != nil {
			return out, err
		}
		out.Deliveries = append(out.Deliveries, d)
	}
	out.DeliveriesExpired = max(sent-len(rows), 0)
	return out, nil
}

// counters fills what a run counted, once it is at its end.
func counters(row *eventlog.RunRow, out *api.Run) error {
	if row.Totals == "" {
		return nil
	}
	var t event.Totals
	if err := json.Unmarshal([]byte(row.Totals), &t); err != nil {
		return fmt.Errorf("totals of %s: %w", row.ID, err)
	}
	out.Counters = &api.Counters{Turns: t.Turns, Steps: t.Steps, Tools: t.Tools, Repairs: t.Repairs}
	if u := t.Usage; u != nil {
		out.Usage = &api.Usage{Input: u.Input, Output: u.Output, Reasoning: u.Reasoning,
			Cache: api.CacheUsage{Read: u.CacheRead, Write: u.CacheWrite}}
	}
	return nil
}

// facts are what the log keeps of runs, by their places.
type facts map[eventlog.Place]event.Event

func createdAt(row *eventlog.RunRow) eventlog.Place {
	return eventlog.Place{Stream: row.SessionID.Stream(), Seq: row.CreatedSeq}
}

func outputAt(row *eventlog.RunRow) eventlog.Place {
	return eventlog.Place{Stream: row.SessionID.Stream(), Seq: row.OutputSeq}
}

// factsOf reads what is shown beside their rows of the first n runs: of as many as the
// log gives at once, and of one at least. There may be half of eventlog.MaxFacts runs.
func factsOf(ctx context.Context, log Log, rows []eventlog.RunRow) (f facts, n int, err error) {
	var places []eventlog.Place
	for i := range rows {
		places = append(places, createdAt(&rows[i]))
		if rows[i].OutputSeq != 0 {
			places = append(places, outputAt(&rows[i]))
		}
	}
	f = make(facts, len(places))
	whole := func(row *eventlog.RunRow) bool {
		_, created := f[createdAt(row)]
		_, answered := f[outputAt(row)]
		return created && (answered || row.OutputSeq == 0)
	}
	for n == 0 && len(places) > 0 {
		events, err := log.Facts(ctx, places)
		switch {
		case errors.Is(err, eventlog.ErrNotFound) && !errors.Is(err, eventlog.ErrClosed): // what was asked for is there; the log is not whole
			return nil, 0, fmt.Errorf("what rows speak of is not in the log: %s", err.Error())
		case err != nil:
			return nil, 0, err
		case len(events) == 0:
			return nil, 0, errors.New("the log gave no event of those that rows speak of")
		}
		for i := range events {
			f[places[i]] = events[i]
		}
		places = places[len(events):]
		for n < len(rows) && whole(&rows[n]) {
			n++
		}
	}
	return f, n, nil
}

// at gives an event. Its Data is nil when it was erased.
func (f facts) at(p eventlog.Place) (event.Event, error) {
	e := f[p]
	return e, e.Decode()
}

// outputs reads the answer of a run, and says to how many targets it went.
func outputs(ctx context.Context, log Log, row *eventlog.RunRow, f facts, whole bool, out *api.Run) (sent int, err error) {
	e, err := f.at(outputAt(row))
	if err != nil {
		return 0, err
	}
	d, ok := e.Data.(*event.OutputEmitted)
	if !ok {
		return 0, nil // erased in between, as its deliveries were
	}
	o := api.Output{OutputKind: d.OutputKind, At: e.Time}
	switch {
	case d.StructuredOutput != nil:
		o.Content, o.StructuredOutput = string(d.StructuredOutput), api.Raw(d.StructuredOutput)
	case d.Content.Ref != "" && !whole:
		o.ContentRef = d.Content.Ref
	default:
		if o.Content, err = text(ctx, log, row.SessionID, d.Content); err != nil {
			return 0, err
		}
		if d.OutputKind == event.OutputStructured {
			o.StructuredOutput = api.Raw(o.Content)
		}
	}
	out.Outputs = append(out.Outputs, o)
	out.StructuredOutput = o.StructuredOutput
	return len(d.Targets), nil
}

// Delivery shows a delivery. One that waits for another attempt is retrying.
func Delivery(row *eventlog.DeliveryRow) (api.Delivery, error) {
	var t Times
	out := api.Delivery{
		ID: string(row.ID), TargetID: string(row.TargetID), SessionID: string(row.SessionID), RunID: string(row.RunID), UserID: row.UserID,
		Type: row.Type, Status: row.Status, Attempts: row.Attempts, CreatedAt: t.At(row.CreatedAt), UpdatedAt: t.At(row.UpdatedAt),
		NextAt: t.Maybe(row.NextAt), LastCode: row.LastCode, LastClass: row.LastClass, LastStatus: row.LastStatus,
		Replays: row.Replays,
	}
	if row.ResolvedAt != "" {
		out.Resolution = &api.Resolution{At: t.At(row.ResolvedAt), Actor: row.ResolvedBy, Reason: row.ResolvedReason}
	}
	if out.Status == api.DeliveryPending && row.LastCode != "" {
		out.Status = api.DeliveryRetrying
	}
	return out, t.Err
}
