-- Lists that are narrowed. A status that nearly every row comes to has no place
-- in an index by status: what is asked for are the others, and they are few.
CREATE INDEX sessions_status ON sessions (status, session_id) WHERE status <> 'open';
CREATE INDEX sessions_thread ON sessions (thread_id, session_id) WHERE thread_id <> '';
CREATE INDEX runs_status ON runs (status, run_id) WHERE status <> 'completed';
CREATE INDEX outbox_status ON outbox (status, created_at, delivery_id) WHERE status <> 'delivered';
CREATE INDEX outbox_target ON outbox (target_id, created_at, delivery_id);
-- The order of the list stands in the index.
DROP INDEX outbox_session;
CREATE INDEX outbox_session ON outbox (session_id, created_at, delivery_id);
