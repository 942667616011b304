-- Lists go by the time at which their rows were made, and by the id where two
-- were made at once: an index has both behind what narrows it, so that a range of
-- times is a range of it and nothing is sorted. A status that nearly every row
-- comes to has no place in an index by status: what is asked for are the others,
-- and they are few.
DROP INDEX sessions_user;
CREATE INDEX sessions_made ON sessions (created_at, session_id);
CREATE INDEX sessions_user ON sessions (user_id, created_at, session_id);
CREATE INDEX sessions_status ON sessions (status, created_at, session_id) WHERE status <> 'open';
CREATE INDEX sessions_thread ON sessions (thread_id, created_at, session_id) WHERE thread_id <> '';
DROP INDEX runs_user;
CREATE INDEX runs_made ON runs (submitted_at, run_id);
CREATE INDEX runs_user ON runs (user_id, submitted_at, run_id);
CREATE INDEX runs_session ON runs (session_id, submitted_at, run_id);
CREATE INDEX runs_status ON runs (status, submitted_at, run_id) WHERE status <> 'completed';
DROP INDEX outbox_session;
CREATE INDEX outbox_session ON outbox (session_id, created_at, delivery_id);
CREATE INDEX outbox_target ON outbox (target_id, created_at, delivery_id);
CREATE INDEX outbox_status ON outbox (status, created_at, delivery_id) WHERE status <> 'delivered';
CREATE INDEX outbox_dead ON outbox (target_id) WHERE status = 'dead_lettered';
