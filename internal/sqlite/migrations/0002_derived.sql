-- The derived tables: what the log says, arranged for those who ask. They are
-- filled by changes computed from events alone, and rebuilt from the log.
CREATE TABLE sessions (
    session_id       TEXT NOT NULL,
    user_id          TEXT NOT NULL DEFAULT '',
    alias            TEXT NOT NULL DEFAULT '',
    thread_id        TEXT NOT NULL DEFAULT '',
    status           TEXT NOT NULL DEFAULT '',
    title            TEXT NOT NULL DEFAULT '',
    created_at       TEXT NOT NULL DEFAULT '',
    updated_at       TEXT NOT NULL DEFAULT '',
    settings_version INTEGER NOT NULL DEFAULT 0,
    instructions     TEXT NOT NULL DEFAULT '',
    metadata         TEXT NOT NULL DEFAULT '',
    tools            TEXT NOT NULL DEFAULT '',
    on_doubt         TEXT NOT NULL DEFAULT '',
    n_max_turns      INTEGER NOT NULL DEFAULT 0,
    n_history_limit  INTEGER NOT NULL DEFAULT 0,
    input_contract   TEXT NOT NULL DEFAULT '',
    output_contract  TEXT NOT NULL DEFAULT '',
    route_policy     TEXT NOT NULL DEFAULT '',
    reply_targets    TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id)
);
-- Ids of sessions and runs sort by the time they were made, so lists go by id.
CREATE INDEX sessions_user ON sessions (user_id, session_id);

CREATE TABLE aliases (
    user_id    TEXT NOT NULL,
    alias      TEXT NOT NULL,
    session_id TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (user_id, alias)
) WITHOUT ROWID;
CREATE INDEX aliases_session ON aliases (session_id);

CREATE TABLE runs (
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
    waiting_on    TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, run_id)
);
CREATE UNIQUE INDEX runs_run ON runs (run_id);
CREATE INDEX runs_user ON runs (user_id, run_id);

CREATE TABLE queue (
    session_id   TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    created_seq  INTEGER NOT NULL DEFAULT 0,
    status       TEXT NOT NULL DEFAULT '',
    submitted_at TEXT NOT NULL DEFAULT '',
    user_id      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, run_id)
) WITHOUT ROWID;

CREATE TABLE outbox (
    target_id     TEXT NOT NULL,
    delivery_id   TEXT NOT NULL,
    lane_seq      INTEGER NOT NULL DEFAULT 0,
    session_id    TEXT NOT NULL DEFAULT '',
    run_id        TEXT NOT NULL DEFAULT '',
    user_id       TEXT NOT NULL DEFAULT '',
    type          TEXT NOT NULL DEFAULT '',
    status        TEXT NOT NULL DEFAULT '',
    body          TEXT NOT NULL DEFAULT '',
    address       TEXT NOT NULL DEFAULT '',
    created_at    TEXT NOT NULL DEFAULT '',
    updated_at    TEXT NOT NULL DEFAULT '',
    next_at       TEXT NOT NULL DEFAULT '',
    n_attempts    INTEGER NOT NULL DEFAULT 0,
    n_cycle       INTEGER NOT NULL DEFAULT 0,
    n_open        INTEGER NOT NULL DEFAULT 0,
    n_open_epoch  INTEGER NOT NULL DEFAULT 0,
    last_code     TEXT NOT NULL DEFAULT '',
    n_last_status INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (target_id, delivery_id)
);
CREATE UNIQUE INDEX outbox_delivery ON outbox (delivery_id);
CREATE INDEX outbox_pending ON outbox (target_id, lane_seq) WHERE status = 'pending';
CREATE INDEX outbox_session ON outbox (session_id, run_id);
CREATE INDEX outbox_created ON outbox (created_at, delivery_id);
CREATE INDEX outbox_user ON outbox (user_id, created_at, delivery_id);

CREATE TABLE idempotency (
    session_id  TEXT NOT NULL,
    operation   TEXT NOT NULL,
    key_hash    TEXT NOT NULL,
    fingerprint TEXT NOT NULL DEFAULT '',
    contract    TEXT NOT NULL DEFAULT '',
    run_id      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, operation, key_hash)
) WITHOUT ROWID;

CREATE TABLE tool_starts (
    session_id TEXT NOT NULL,
    call_id    TEXT NOT NULL,
    run_id     TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, call_id)
) WITHOUT ROWID;
