package admission

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Plan is the set of a bulk replay that a dry run shows, and what starts it.
type Plan struct {
	Job   eventlog.JobRow
	Items []event.JobItem
	Token string // shown this once
}

var (
	errNoJob   = problem.New(problem.NotFound, "job_not_found", "there is no such job")
	errNoPlan  = problem.New(problem.Invalid, "invalid_plan_token", "the plan token is not one that a dry run gave to this caller")
	errOldPlan = problem.New(problem.Conflict, "plan_expired", "the plan was not started in time; make another dry run")
)

// FindJob resolves a job that the caller may see: one of all users, a bound
// caller may not (I-34).
func (a *Admission) FindJob(ctx context.Context, c Caller, id event.JobID) (eventlog.JobRow, error) {
	row, err := a.cfg.Store.Job(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Sees(row.UserID) {
		return row, errNoJob
	}
	return row, err
}

// bulk is what a caller asks for, checked.
type bulk struct {
	filter event.JobFilter
	find   eventlog.DeliveryFilter
	limit  int
	force  bool
	reason string
}

// bulkOf checks a request for a bulk replay. A caller who is bound to a user
// chooses among that user's deliveries only (I-34).
func bulkOf(c Caller, req *api.ReplayDeliveries) (b bulk, err error) {
	b.force, b.limit = req.Force, req.Limit
	if b.reason, err = reasonFor(req.Reason, req.Force); err != nil {
		return b, err
	}
	if b.limit == 0 {
		b.limit = job.MaxItems
	}
	if b.limit < 1 || b.limit > job.MaxItems {
		return b, problem.New(problem.Invalid, "invalid_limit", "limit must be a whole number from 1 to %d", job.MaxItems).
			With(problem.Issue{Path: "$.limit", Text: fmt.Sprintf("must be from 1 to %d", job.MaxItems)})
	}
	f := req.Filter
	if f == nil || *f == (api.DeliveryFilter{}) {
		return b, problem.New(problem.Invalid, "filter_required", "a filter with at least one member must say which deliveries are replayed, "+
			`such as {"unresolved": true} for every dead letter`).With(problem.Issue{Path: "$.filter", Text: "must have at least one member"})
	}
	b.filter = event.JobFilter{
		Status: outbox.DeadLettered, SessionID: event.SessionID(f.SessionID), RunID: event.RunID(f.RunID), TargetID: event.TargetID(f.TargetID), ErrorClass: f.ErrorClass,
	}
	bad := func(member, text string) error {
		return problem.New(problem.Invalid, "invalid_filter", "filter.%s %s", member, text).With(problem.Issue{Path: "$.filter." + member, Text: text})
	}
	switch f.Status {
	case "", outbox.DeadLettered:
	case outbox.Resolved:
		b.filter.Status = outbox.Resolved
		switch {
		case f.Unresolved:
			return b, bad("unresolved", "does not go with the status resolved")
		case !req.Force:
			return b, bad("status", "is resolved: a person said that these are done with; force, and a reason, replays them all the same")
		}
	default:
		return b, bad("status", "must be dead_lettered or resolved: only what ended without arriving is replayed in numbers")
	}
	if f.ErrorClass != "" && !slices.Contains(outbox.Classes(), f.ErrorClass) {
		return b, bad("error_class", "must be one of "+strings.Join(outbox.Classes(), ", "))
	}
	for member, v := range map[string]string{"session_id": f.SessionID, "run_id": f.RunID, "target_id": f.TargetID} {
		if len(v) > maxID {
			return b, bad(member, "is no id")
		}
	}
	if f.UserID != "" || c.UserID != "" {
		if b.filter.UserID, err = c.User(f.UserID); err != nil {
			return b, err
		}
	}
	for member, at := range map[string]*time.Time{"since": f.Since, "until": f.Until} {
		if at != nil && !event.Storable(*at) {
			return b, bad(member, "must be a time from 1970 to 9999, in UTC")
		}
	}
	if f.Since != nil { // as it is stored, so that a plan chooses by the same
		b.find.Since, b.filter.Since = f.Since.Truncate(time.Microsecond), event.FormatTime(*f.Since)
	}
	if f.Until != nil {
		b.find.Until, b.filter.Until = f.Until.Truncate(time.Microsecond), event.FormatTime(*f.Until)
	}
	if f.Since != nil && f.Until != nil && !f.Since.Before(*f.Until) {
		return b, bad("until", "must be later than since")
	}
	b.find.Status, b.find.SessionID, b.find.RunID, b.find.TargetID = b.filter.Status, b.filter.SessionID, b.filter.RunID, b.filter.TargetID
	b.find.Class, b.find.UserID, b.find.Asc = b.filter.ErrorClass, b.filter.UserID, true
	return b, nil
}

// maxID bounds ids that a caller names.
const maxID = 128

// choose finds the set: the oldest first.
func (a *Admission) choose(ctx context.Context, b *bulk) (items []event.JobItem, truncated bool, err error) {
	p := eventlog.Page{Limit: 200}
	for {
		rows, next, err := a.cfg.Store.Deliveries(ctx, b.find, p)
		if err != nil {
			return nil, false, err
		}
		for i := range rows {
			if len(items) == b.limit {
				return items, true, nil
			}
			items = append(items, event.JobItem{DeliveryID: rows[i].ID, LaneSeq: rows[i].LaneSeq, TargetID: rows[i].TargetID})
		}
		if next == "" {
			return items, false, nil
		}
		p.Cursor = next
	}
}

// planEvents are the first events of a job.
func planEvents(c Caller, b *bulk, items []event.JobItem, truncated bool) []event.Event {
	datas := []event.Data{&event.JobPlanned{
		Actor: c.Actor, Count: len(items), Digest: job.Digest(items), Filter: b.filter, Force: b.force, Kind: job.Replay, Limit: b.limit, Reason: b.reason, Truncated: truncated,
	}}
	for chunk := range slices.Chunk(items, job.ItemsEvent) {
		datas = append(datas, &event.JobItemsAdded{Items: chunk})
	}
	events := make([]event.Event, len(datas))
	for i, d := range datas {
		events[i] = event.Event{UserID: b.filter.UserID, Data: d}
	}
	return events
}

// PlanReplay is a dry run: it chooses the set, keeps it as a plan, and replays
// nothing. The plan is the caller's, for a while.
func (a *Admission) PlanReplay(ctx context.Context, c Caller, req *api.ReplayDeliveries) (p Plan, err error) {
	b, err := bulkOf(c, req)
	if err != nil {
		return p, err
	}
	var truncated bool
	if p.Items, truncated, err = a.choose(ctx, &b); err != nil {
		return p, err
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return p, err
	}
	select {
	case a.planning <- struct{}{}: // so that many at once do not pass the bound
		defer func() { <-a.planning }()
	case <-ctx.Done():
		return p, ctx.Err()
	}
	if err := a.roomForPlan(ctx, c, now); err != nil {
		return p, err
	}
	id, err := event.NewJobID(a.cfg.Random)
	if err != nil {
		return p, err
	}
	secret := make([]byte, 16)
	if _, err := io.ReadFull(a.cfg.Random, secret); err != nil {
		return p, err
	}
	p.Token = string(id) + "." + hex.EncodeToString(secret)
	events := planEvents(c, &b, p.Items, truncated)
	d := events[0].Data.(*event.JobPlanned)
	d.ExpiresAt, d.TokenHash = event.FormatTime(now.Add(a.cfg.Limits.PlanTime)), hashOf(p.Token)
	if err := a.append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: 0, Events: events}}}); err != nil {
		return p, err
	}
	p.Job, err = a.cfg.Store.Job(ctx, id)
	return p, err
}

// roomForPlan bounds the plans that can be started, each of which has its set in the
// log. One caller has four fifths of them at most. It reads those of the last PlanTime
// alone, and of these as many as there may be.
func (a *Admission) roomForPlan(ctx context.Context, c Caller, now time.Time) error {
	most := a.cfg.Limits.OpenPlans
	rows, _, err := a.cfg.Store.Jobs(ctx, eventlog.JobFilter{Status: job.Planned, Range: eventlog.Range{Since: now.Add(-a.cfg.Limits.PlanTime)}}, eventlog.Page{Limit: most})
	if err != nil {
		return err
	}
	open, own := 0, 0
	for i := range rows {
		if rows[i].ExpiresAt <= event.FormatTime(now) {
			continue
		}
		if open++; rows[i].Actor == c.Actor {
			own++
		}
	}
	if open >= most || own >= most-most/5 {
		return problem.New(problem.Limited, "too_many_plans", "%d plans of bulk replays are open, %d of them of this caller, and delivery.open_plans is %d, of which one caller has four fifths: "+
			"start or cancel one, or let it expire", open, own, most)
	}
	return nil
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// StartReplay replays a set: that of a plan, unless it has drifted since, or
// else the one that the filter chooses now. A plan that is started already is
// the job that it became.
func (a *Admission) StartReplay(ctx context.Context, c Caller, req *api.ReplayDeliveries) (eventlog.JobRow, error) {
	if a.stopped.Load() {
		return eventlog.JobRow{}, errStopping
	}
	if req.PlanToken != "" {
		return a.startPlan(ctx, c, req)
	}
	b, err := bulkOf(c, req)
	if err != nil {
		return eventlog.JobRow{}, err
	}
	items, truncated, err := a.choose(ctx, &b)
	if err != nil {
		return eventlog.JobRow{}, err
	}
	id, err := event.NewJobID(a.cfg.Random)
	if err != nil {
		return eventlog.JobRow{}, err
	}
	events := append(planEvents(c, &b, items, truncated), event.Event{UserID: b.filter.UserID, Data: &event.JobStarted{Actor: c.Actor}})
	err = a.append(ctx, eventlog.Append{Entries: []eventlog.Entry{
		{Stream: id.Stream(), Expect: 0, Events: events}, bulkAudit(c, id, len(items), b.force, b.reason),
	}})
	if err != nil {
		return eventlog.JobRow{}, err
	}
	return a.cfg.Store.Job(ctx, id)
}

func bulkAudit(c Caller, id event.JobID, count int, force bool, reason string) eventlog.Entry {
	return eventlog.AuditEntry(&event.AuditDeliveryReplayed{Actor: c.Actor, Count: int64(count), Forced: force, Job: string(id), Reason: reason})
}

// startPlan starts the plan of a token.
func (a *Admission) startPlan(ctx context.Context, c Caller, req *api.ReplayDeliveries) (row eventlog.JobRow, err error) {
	id, _, _ := strings.Cut(req.PlanToken, ".")
	row, err = a.FindJob(ctx, c, event.JobID(id))
	if problem.Is(err, errNoJob.Code) {
		return row, errNoPlan
	}
	if err != nil {
		return row, err
	}
	if row.TokenHash == "" || subtle.ConstantTimeCompare([]byte(row.TokenHash), []byte(hashOf(req.PlanToken))) != 1 || row.Actor != c.Actor {
		return row, errNoPlan
	}
	if row.Status != job.Planned {
		return row, nil
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return row, err
	}
	if expires, err := event.ParseTime(row.ExpiresAt); err != nil || !now.Before(expires) {
		return row, errOldPlan
	}
	st, err := a.FoldJob(ctx, id)
	if err != nil {
		return row, err
	}
	b, err := a.samePlan(c, &st.Plan, req)
	if err != nil {
		return row, err
	}
	items, truncated, err := a.choose(ctx, &b)
	if err != nil {
		return row, err
	}
	was := make([]event.JobItem, len(st.Items))
	for i := range st.Items {
		was[i] = st.Items[i].JobItem
	}
	if drift := job.Compare(was, items); !drift.None() || truncated != st.Plan.Truncated {
		return row, drifted(drift, truncated && !st.Plan.Truncated)
	}
	err = a.append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{
			{Stream: row.ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: row.UserID, Data: &event.JobStarted{Actor: c.Actor}}}},
			bulkAudit(c, row.ID, len(items), st.Plan.Force, st.Plan.Reason),
		},
		Require: jobIs(row.ID, job.Planned),
	})
	if err != nil && !conflicted(err) { // a conflict: it was started in between, by the same token, or called off
		return row, err
	}
	return a.FindJob(ctx, c, row.ID)
}

// samePlan gives what the plan was made of, which the request must not
// contradict: what it does not name is as the plan has it.
func (a *Admission) samePlan(c Caller, plan *event.JobPlanned, req *api.ReplayDeliveries) (b bulk, err error) {
	f := plan.Filter
	again := api.ReplayDeliveries{Limit: plan.Limit, Force: plan.Force, Reason: plan.Reason, Filter: &api.DeliveryFilter{
		Status: f.Status, SessionID: string(f.SessionID), RunID: string(f.RunID), TargetID: string(f.TargetID), ErrorClass: f.ErrorClass, UserID: f.UserID,
	}}
	for text, to := range map[string]**time.Time{f.Since: &again.Filter.Since, f.Until: &again.Filter.Until} {
		if text == "" {
			continue
		}
		at, err := event.ParseTime(text)
		if err != nil {
			return b, err
		}
		*to = &at
	}
	if b, err = bulkOf(c, &again); err != nil {
		return b, err
	}
	mismatch := func(member string) error {
		return problem.New(problem.Conflict, "plan_mismatch", "%s is not what the plan was made with; leave it out, or make another dry run", member).
			With(problem.Issue{Path: "$." + member, Text: "is not what the plan was made with"})
	}
	switch {
	case req.Limit != 0 && req.Limit != plan.Limit:
		return b, mismatch("limit")
	case req.Force && !plan.Force:
		return b, mismatch("force")
	case req.Reason != "" && strings.TrimSpace(req.Reason) != plan.Reason:
		return b, mismatch("reason")
	case req.Filter != nil:
		named, err := bulkOf(c, &api.ReplayDeliveries{Filter: req.Filter, Force: plan.Force, Reason: plan.Reason})
		if err != nil {
			return b, err
		}
		if named.filter != f {
			return b, mismatch("filter")
		}
	}
	return b, nil
}

// shownDrift bounds the deliveries that a drift names of each kind.
const shownDrift = 20

// drifted says how the set differs from that of the plan.
func drifted(d job.Drift, more bool) error {
	text := fmt.Sprintf("the set is not the one of the plan any more: %d came, %d went, %d were replayed and are dead letters again",
		len(d.Added), len(d.Removed), len(d.Changed))
	if more {
		text += "; and more deliveries pass the filter now than the limit lets in"
	}
	err := problem.New(problem.Conflict, "plan_drifted", "%s; nothing was replayed: make another dry run", text)
	for _, part := range []struct {
		name string
		ids  []event.DeliveryID
	}{{"added", d.Added}, {"removed", d.Removed}, {"changed", d.Changed}} {
		for i, id := range part.ids {
			if i == shownDrift {
				err = err.With(problem.Issue{Path: part.name, Text: fmt.Sprintf("and %d more", len(part.ids)-i)})
				break
			}
			err = err.With(problem.Issue{Path: part.name, Text: string(id)})
		}
	}
	return err
}

// jobIs requires the status of a job.
func jobIs(id event.JobID, status ...any) []eventlog.Condition {
	return []eventlog.Condition{{Table: derived.Jobs, Where: []derived.Col{{Name: "job_id", Value: string(id)}}, Column: "status", In: status}}
}

// CancelJob asks for the end of a job. What it did stays; its owner ends it.
func (a *Admission) CancelJob(ctx context.Context, c Caller, row eventlog.JobRow, reason string) error {
	reason, err := reasonFor(reason, false)
	if err != nil {
		return err
	}
	if row.Status == job.Cancelling || row.Status == job.Cancelled {
		return nil
	}
	err = a.append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{{Stream: row.ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{
			{UserID: row.UserID, Data: &event.JobCancelRequested{Actor: c.Actor, Reason: reason}}}}},
		Require: jobIs(row.ID, job.Planned, job.Running),
	})
	var ce *eventlog.ConditionError
	if !errors.As(err, &ce) {
		return err
	}
	if ce.Found == job.Cancelling || ce.Found == job.Cancelled {
		return nil // by a request in between
	}
	return problem.New(problem.Conflict, "job_state_conflict", "the job is at its end already")
}

// readAtOnce bounds the events of one read.
const readAtOnce = 256

// FoldJob reads a job whole: its set, and what came of each delivery.
func (a *Admission) FoldJob(ctx context.Context, id string) (*job.State, error) {
	st := &job.State{ID: event.JobID(id)}
	for {
		events, err := a.cfg.Store.ReadBounded(ctx, st.ID.Stream(), st.Head, readAtOnce)
		if err != nil || len(events) == 0 {
			return st, err
		}
		for i := range events {
			if err := events[i].Decode(); err != nil {
				return st, err
			}
			if err := st.Apply(&events[i]); err != nil {
				return st, err
			}
		}
	}
}
