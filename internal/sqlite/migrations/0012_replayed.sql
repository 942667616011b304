-- The few that wait once more, by when they were replayed: their age counts anew.
CREATE INDEX outbox_pending_again ON outbox (cycle_at) WHERE status = 'pending' AND n_replays > 0;
