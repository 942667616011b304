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

-- A run is found by its id alone, and the runs of a session by the order of their
-- list: an index by both, as the table had it, is one write more for each run.
CREATE TABLE runs_new (
    session_id    TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    user_id       TEXT NOT NULL DEFAULT '',
    status        TEXT NOT NULL DEFAULT '',
    kind          TEXT NOT NULL DEFAULT '',
    submitted_at  TEXT NOT NULL DEFAULT '',
    updated_at    TEXT NOT NULL DEFAULT '',
    started_at    TEXT NOT NULL DEFAULT '',
    finished_at   TEXT NOT NULL DEFAULT '',
    created_seq   INTEGER NOT NULL DEFAULT 0,
    output_seq    INTEGER NOT NULL DEFAULT 0,
    source        TEXT NOT NULL DEFAULT '',
    actor         TEXT NOT NULL DEFAULT '',
    text_preview  TEXT NOT NULL DEFAULT '',
    route         TEXT NOT NULL DEFAULT '',
    provider      TEXT NOT NULL DEFAULT '',
    model         TEXT NOT NULL DEFAULT '',
    error_code    TEXT NOT NULL DEFAULT '',
    error_message TEXT NOT NULL DEFAULT '',
    totals        TEXT NOT NULL DEFAULT '',
    waiting_on    TEXT NOT NULL DEFAULT ''
);
INSERT INTO runs_new SELECT * FROM runs ORDER BY rowid;
DROP TABLE runs;
ALTER TABLE runs_new RENAME TO runs;
CREATE UNIQUE INDEX runs_run ON runs (run_id);
CREATE INDEX runs_made ON runs (submitted_at, run_id);
CREATE INDEX runs_user ON runs (user_id, submitted_at, run_id);
CREATE INDEX runs_session ON runs (session_id, submitted_at, run_id);
CREATE INDEX runs_status ON runs (status, submitted_at, run_id) WHERE status <> 'completed';

DROP INDEX outbox_session;
CREATE INDEX outbox_session ON outbox (session_id, created_at, delivery_id);
CREATE INDEX outbox_target ON outbox (target_id, created_at, delivery_id);
CREATE INDEX outbox_status ON outbox (status, created_at, delivery_id) WHERE status <> 'delivered';
CREATE INDEX outbox_dead ON outbox (target_id) WHERE status = 'dead_lettered';
-- The oldest of what waits is found without a look at what does not.
CREATE INDEX outbox_oldest ON outbox (created_at) WHERE status = 'pending';
