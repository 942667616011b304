-- How receivers fare, and the attempts that the rows of deliveries do not tell.
-- A target has a row from the first event of its stream on; as long as all is well
-- nothing writes it again.
ALTER TABLE outbox ADD COLUMN cycle_at text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN last_class text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN last_at text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN n_last_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN n_delivered bigint NOT NULL DEFAULT 0;
-- outbox_status has it too, and every delivery would be written to both.
DROP INDEX outbox_oldest;
-- Of the few that wait for another attempt; what is delivered at once is never in it.
CREATE INDEX outbox_retrying ON outbox (target_id) WHERE status = 'pending' AND last_code <> '';

CREATE TABLE attempts (
    target_id     text COLLATE "C" NOT NULL,
    delivery_id   text COLLATE "C" NOT NULL,
    n_attempt     bigint NOT NULL,
    ended_at      text COLLATE "C" NOT NULL DEFAULT '',
    code          text COLLATE "C" NOT NULL DEFAULT '',
    class         text COLLATE "C" NOT NULL DEFAULT '',
    n_status      bigint NOT NULL DEFAULT 0,
    n_duration_ms bigint NOT NULL DEFAULT 0,
    excerpt       text COLLATE "C" NOT NULL DEFAULT '',
    retry_at      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (target_id, delivery_id, n_attempt)
);

CREATE TABLE targets (
    target_id    text COLLATE "C" NOT NULL,
    user_id      text COLLATE "C" NOT NULL DEFAULT '',
    type         text COLLATE "C" NOT NULL DEFAULT '',
    created_at   text COLLATE "C" NOT NULL DEFAULT '',
    updated_at   text COLLATE "C" NOT NULL DEFAULT '',
    circuit      text COLLATE "C" NOT NULL DEFAULT '',
    n_failures   bigint NOT NULL DEFAULT 0,
    n_opens      bigint NOT NULL DEFAULT 0,
    open_until   text COLLATE "C" NOT NULL DEFAULT '',
    held_until   text COLLATE "C" NOT NULL DEFAULT '',
    last_code    text COLLATE "C" NOT NULL DEFAULT '',
    last_class   text COLLATE "C" NOT NULL DEFAULT '',
    failed_at    text COLLATE "C" NOT NULL DEFAULT '',
    n_paused     bigint NOT NULL DEFAULT 0,
    paused_at    text COLLATE "C" NOT NULL DEFAULT '',
    paused_by    text COLLATE "C" NOT NULL DEFAULT '',
    paused_code  text COLLATE "C" NOT NULL DEFAULT '',
    pause_reason text COLLATE "C" NOT NULL DEFAULT '',
    resumed_at   text COLLATE "C" NOT NULL DEFAULT '',
    reset_at     text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (target_id)
);
CREATE INDEX targets_circuit ON targets (circuit) WHERE circuit <> '';
CREATE INDEX targets_paused ON targets (target_id) WHERE n_paused = 1;
