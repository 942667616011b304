ALTER TABLE outbox ADD COLUMN n_replays INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN resolved_at TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN resolved_by TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN resolved_reason TEXT NOT NULL DEFAULT '';
-- The few that wait for another attempt, and what failed, by why.
CREATE INDEX outbox_retried ON outbox (created_at, delivery_id) WHERE status = 'pending' AND last_code <> '';
CREATE INDEX outbox_class ON outbox (last_class, created_at, delivery_id) WHERE last_class <> '';
-- What leaves the ledger is found by when it was settled.
CREATE INDEX outbox_settled ON outbox (status, updated_at, delivery_id) WHERE status IN ('delivered', 'resolved');

-- The replays of the deliveries that the ledger has.
CREATE TABLE replays (
    target_id   TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    replay_seq  INTEGER NOT NULL,
    at          TEXT NOT NULL DEFAULT '',
    actor       TEXT NOT NULL DEFAULT '',
    reason      TEXT NOT NULL DEFAULT '',
    n_forced    INTEGER NOT NULL DEFAULT 0,
    job_id      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (target_id, delivery_id, replay_seq)
) WITHOUT ROWID;

-- Work over many deliveries. There are few of them.
CREATE TABLE jobs (
    job_id      TEXT NOT NULL PRIMARY KEY,
    user_id     TEXT NOT NULL DEFAULT '',
    kind        TEXT NOT NULL DEFAULT '',
    status      TEXT NOT NULL DEFAULT '',
    actor       TEXT NOT NULL DEFAULT '',
    reason      TEXT NOT NULL DEFAULT '',
    created_at  TEXT NOT NULL DEFAULT '',
    updated_at  TEXT NOT NULL DEFAULT '',
    started_at  TEXT NOT NULL DEFAULT '',
    finished_at TEXT NOT NULL DEFAULT '',
    expires_at  TEXT NOT NULL DEFAULT '',
    n_total     INTEGER NOT NULL DEFAULT 0,
    n_done      INTEGER NOT NULL DEFAULT 0,
    n_skipped   INTEGER NOT NULL DEFAULT 0,
    n_limit     INTEGER NOT NULL DEFAULT 0,
    n_force     INTEGER NOT NULL DEFAULT 0,
    n_truncated INTEGER NOT NULL DEFAULT 0,
    filter      TEXT NOT NULL DEFAULT '',
    digest      TEXT NOT NULL DEFAULT '',
    token_hash  TEXT NOT NULL DEFAULT ''
);
CREATE INDEX jobs_made ON jobs (created_at, job_id);
CREATE INDEX jobs_user ON jobs (user_id, created_at, job_id);
CREATE INDEX jobs_status ON jobs (status, created_at, job_id);
