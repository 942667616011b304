package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/replyto"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// times reads stored times; the first that cannot be read is its error.
type times struct{ err error }

func (t *times) at(s string) time.Time {
	v, err := event.ParseTime(s)
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("stored time: %w", err)
	}
	return v
}

func (t *times) maybe(s string) *time.Time {
	if s == "" {
		return nil
	}
	v := t.at(s)
	return &v
}

// text gives the whole text of a content, from the blob store if need be.
func (s *server) text(ctx context.Context, owner event.SessionID, c event.Content) (string, error) {
	if c.Ref == "" {
		return c.Text, nil
	}
	b, _, err := s.cfg.Store.Blob(ctx, owner, c.Ref)
	return string(b), err
}

// session shows a session. In a list, instructions that stand in the blob
// store are left out, so that a page stays bounded.
func (s *server) session(ctx context.Context, row *eventlog.SessionRow, whole bool) (api.Session, error) {
	set, err := row.Settings()
	if err != nil {
		return api.Session{}, err
	}
	var t times
	out := api.Session{
		ID: string(row.ID), Alias: row.Alias, UserID: row.UserID, ThreadID: row.ThreadID, Status: row.Status,
		Title: set.Title, Metadata: api.Raw(set.Metadata), Tools: set.Tools, OnDoubt: string(set.OnDoubt),
		MaxTurns: orDefault(set.MaxTurns, session.DefaultMaxTurns), HistoryLimit: orDefault(set.HistoryLimit, session.DefaultHistoryLimit),
		InputContract: inputContract(&set), OutputContract: outputContract(&set), RoutePolicy: routePolicy(&set),
		SettingsVersion: row.SettingsVersion, CreatedAt: t.at(row.CreatedAt), UpdatedAt: t.at(row.UpdatedAt),
	}
	if len(set.ReplyTargets) > 0 {
		out.ReplyTargets = replyTargets(&set)
	}
	if whole || set.Instructions.Ref == "" {
		if out.Instructions, err = s.text(ctx, row.ID, set.Instructions); err != nil {
			return out, err
		}
	}
	return out, t.err
}

func inputContract(set *event.Settings) *api.InputContract {
	if set.InputContract == nil {
		return nil
	}
	return &api.InputContract{Schema: api.Raw(set.InputContract.Schema)}
}

func outputContract(set *event.Settings) *api.OutputContract {
	if set.OutputContract == nil {
		return nil
	}
	return &api.OutputContract{Schema: api.Raw(set.OutputContract.Schema), MaxRepairAttempts: set.OutputContract.MaxRepairAttempts}
}

func routePolicy(set *event.Settings) *api.RoutePolicy {
	if set.RoutePolicy == nil {
		return nil
	}
	return &api.RoutePolicy{Route: set.RoutePolicy.Route, Model: set.RoutePolicy.Model}
}

func replyTargets(set *event.Settings) []api.ReplyTarget {
	out := make([]api.ReplyTarget, len(set.ReplyTargets))
	for i := range set.ReplyTargets {
		out[i] = replyto.Show(&set.ReplyTargets[i])
	}
	return out
}

// run shows a run: its row, and from the log its metadata and answer. In a
// list, answers that stand in the blob store are given as a reference.
func (s *server) run(ctx context.Context, row *eventlog.RunRow, whole bool) (api.Run, error) {
	var t times
	out := api.Run{
		ID: string(row.ID), SessionID: string(row.SessionID), UserID: row.UserID, Kind: row.Kind, Status: row.Status,
		SubmittedAt: t.at(row.SubmittedAt), UpdatedAt: t.at(row.UpdatedAt), StartedAt: t.maybe(row.StartedAt), FinishedAt: t.maybe(row.FinishedAt),
		QueuePosition: row.Position,
		Request: api.RunRequest{Source: row.Source, Actor: row.Actor, TextPreview: row.TextPreview,
			Route: row.Route, Provider: row.Provider, Model: row.Model},
		InputAttachments: []api.Attachment{}, Outputs: []api.Output{}, Deliveries: []api.Delivery{},
	}
	if t.err != nil {
		return out, t.err
	}
	if row.ErrorCode != "" || row.ErrorMessage != "" {
		out.Error = &api.RunError{Code: orDefault(row.ErrorCode, row.Status), Message: row.ErrorMessage}
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
	created, err := s.fact(ctx, row, row.CreatedSeq)
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
	sent, err := s.outputs(ctx, row, whole, &out)
	if err != nil || sent == 0 {
		return out, err
	}
	rows, _, err := s.cfg.Store.Deliveries(ctx, eventlog.DeliveryFilter{SessionID: row.SessionID, RunID: row.ID}, eventlog.Page{Limit: maxPage})
	if err != nil {
		return out, err
	}
	for i := range rows {
		d, err := delivery(&rows[i])
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

// fact reads one event of the run's session. Its Data is nil when it was erased.
func (s *server) fact(ctx context.Context, row *eventlog.RunRow, seq int64) (event.Event, error) {
	events, err := s.cfg.Store.Read(ctx, row.SessionID.Stream(), seq-1, 1)
	if err != nil {
		return event.Event{}, err
	}
	if len(events) != 1 || events[0].Seq != seq {
		return event.Event{}, fmt.Errorf("run %s: its event %d is not in the log", row.ID, seq)
	}
	e := events[0]
	return e, e.Decode()
}

// outputs reads the answer of a run, and says to how many targets it went.
func (s *server) outputs(ctx context.Context, row *eventlog.RunRow, whole bool, out *api.Run) (sent int, err error) {
	e, err := s.fact(ctx, row, row.OutputSeq)
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
		if o.Content, err = s.text(ctx, row.SessionID, d.Content); err != nil {
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

// delivery shows a delivery. One that waits for another attempt is retrying.
func delivery(row *eventlog.DeliveryRow) (api.Delivery, error) {
	var t times
	out := api.Delivery{
		ID: string(row.ID), TargetID: string(row.TargetID), SessionID: string(row.SessionID), RunID: string(row.RunID), UserID: row.UserID,
		Type: row.Type, Status: row.Status, Attempts: row.Attempts, CreatedAt: t.at(row.CreatedAt), UpdatedAt: t.at(row.UpdatedAt),
		NextAt: t.maybe(row.NextAt), LastCode: row.LastCode, LastClass: row.LastClass, LastStatus: row.LastStatus,
		Replays: row.Replays,
	}
	if row.ResolvedAt != "" {
		out.Resolution = &api.Resolution{At: t.at(row.ResolvedAt), Actor: row.ResolvedBy, Reason: row.ResolvedReason}
	}
	if out.Status == api.DeliveryPending && row.LastCode != "" {
		out.Status = api.DeliveryRetrying
	}
	return out, t.err
}
