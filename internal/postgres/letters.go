package postgres

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// Replays implements eventlog.Views.
func (s *Store) Replays(ctx context.Context, t event.TargetID, id event.DeliveryID, limit int) ([]eventlog.ReplayRow, error) {
	return many(ctx, s, "list replays", "SELECT replay_seq, at, actor, reason, n_forced <> 0, job_id FROM @.replays "+
		"WHERE target_id = ? AND delivery_id = ? ORDER BY replay_seq LIMIT ?", []any{string(t), string(id), limit},
		func(r *eventlog.ReplayRow) []any {
			return []any{&r.Seq, &r.At, &r.Actor, &r.Reason, &r.Forced, &r.JobID}
		})
}

// settledQuery has the condition of its index, as that has it.
const settledQuery = deliveryQuery + " WHERE status IN ('delivered', 'resolved') AND status = ? AND updated_at < ? ORDER BY updated_at, delivery_id LIMIT ?"

// SettledDeliveries implements eventlog.Views.
func (s *Store) SettledDeliveries(ctx context.Context, status string, before time.Time, limit int) ([]eventlog.DeliveryRow, error) {
	return many(ctx, s, "list settled deliveries", settledQuery, []any{status, storecore.StoredFrom(before), limit}, deliveryDest)
}

const jobQuery = `SELECT job_id, user_id, kind, status, actor, reason, created_at, updated_at, started_at, finished_at, expires_at,
	n_total, n_done, n_skipped, n_limit, n_force <> 0, n_truncated <> 0, filter, digest, token_hash FROM @.jobs`

func jobDest(r *eventlog.JobRow) []any {
	return []any{&r.ID, &r.UserID, &r.Kind, &r.Status, &r.Actor, &r.Reason, &r.CreatedAt, &r.UpdatedAt, &r.StartedAt, &r.FinishedAt, &r.ExpiresAt,
		&r.Total, &r.Done, &r.Skipped, &r.Limit, &r.Force, &r.Truncated, &r.Filter, &r.Digest, &r.TokenHash}
}

// Job implements eventlog.Views.
func (s *Store) Job(ctx context.Context, id event.JobID) (eventlog.JobRow, error) {
	return one(ctx, s, "read job", jobQuery+" WHERE job_id = ?", []any{string(id)}, jobDest)
}

func jobList(f eventlog.JobFilter) *storecore.List {
	l := &storecore.List{Hide: hidden, Kind: "jobs", From: jobQuery, Order: []string{"created_at", "job_id"}}
	l.Match("status", f.Status)
	l.Beside("user_id", f.UserID, f.Status != "")
	l.MadeAt("created_at", f.Range)
	return l
}

// Jobs implements eventlog.Views.
func (s *Store) Jobs(ctx context.Context, f eventlog.JobFilter, p eventlog.Page) ([]eventlog.JobRow, string, error) {
	return page(ctx, s, "list jobs", jobList(f), p, jobDest, func(r *eventlog.JobRow) []string { return []string{r.CreatedAt, string(r.ID)} })
}

// UnfinishedJobs implements eventlog.Views.
func (s *Store) UnfinishedJobs(ctx context.Context) ([]event.JobID, error) {
	return many(ctx, s, "list unfinished jobs", "SELECT job_id FROM @.jobs WHERE status IN ('"+job.Running+"', '"+job.Cancelling+"') ORDER BY created_at, job_id", nil,
		func(id *event.JobID) []any { return []any{id} })
}
