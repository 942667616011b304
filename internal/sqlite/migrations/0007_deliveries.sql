-- How receivers fare, and the attempts that the rows of deliveries do not tell.
-- A target has a row from the first event of its stream on; as long as all is well
-- nothing writes it again.
ALTER TABLE outbox ADD COLUMN cycle_at TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN last_class TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN last_at TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN n_last_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN n_delivered INTEGER NOT NULL DEFAULT 0;
-- outbox_status has it too, and every delivery would be written to both.
DROP INDEX outbox_oldest;
-- Of the few that wait for another attempt; what is delivered at once is never in it.
CREATE INDEX outbox_retrying ON outbox (target_id) WHERE status = 'pending' AND last_code <> '';

CREATE TABLE attempts (
    target_id     TEXT NOT NULL,
    delivery_id   TEXT NOT NULL,
    n_attempt     INTEGER NOT NULL,
    ended_at      TEXT NOT NULL DEFAULT '',
    code          TEXT NOT NULL DEFAULT '',
    class         TEXT NOT NULL DEFAULT '',
    n_status      INTEGER NOT NULL DEFAULT 0,
    n_duration_ms INTEGER NOT NULL DEFAULT 0,
    excerpt       TEXT NOT NULL DEFAULT '',
    retry_at      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (target_id, delivery_id, n_attempt)
) WITHOUT ROWID;

CREATE TABLE targets (
    target_id    TEXT NOT NULL,
    user_id      TEXT NOT NULL DEFAULT '',
    type         TEXT NOT NULL DEFAULT '',
    created_at   TEXT NOT NULL DEFAULT '',
    updated_at   TEXT NOT NULL DEFAULT '',
    circuit      TEXT NOT NULL DEFAULT '',
    n_failures   INTEGER NOT NULL DEFAULT 0,
    n_opens      INTEGER NOT NULL DEFAULT 0,
    open_until   TEXT NOT NULL DEFAULT '',
    held_until   TEXT NOT NULL DEFAULT '',
    last_code    TEXT NOT NULL DEFAULT '',
    last_class   TEXT NOT NULL DEFAULT '',
    failed_at    TEXT NOT NULL DEFAULT '',
    n_paused     INTEGER NOT NULL DEFAULT 0,
    paused_at    TEXT NOT NULL DEFAULT '',
    paused_by    TEXT NOT NULL DEFAULT '',
    paused_code  TEXT NOT NULL DEFAULT '',
    pause_reason TEXT NOT NULL DEFAULT '',
    resumed_at   TEXT NOT NULL DEFAULT '',
    reset_at     TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (target_id)
) WITHOUT ROWID;
CREATE INDEX targets_circuit ON targets (circuit) WHERE circuit <> '';
CREATE INDEX targets_paused ON targets (target_id) WHERE n_paused = 1;
