-- A stream is one of a session, of a target or of a job.
ALTER TABLE streams ADD COLUMN kind text COLLATE "C";
UPDATE streams SET kind = CASE WHEN target THEN 'target' ELSE 'session' END;
ALTER TABLE streams ALTER COLUMN kind SET NOT NULL;
DROP INDEX streams_ready;
ALTER TABLE streams DROP COLUMN target;
CREATE INDEX streams_ready ON streams (kind, holder, ready_since, stream) WHERE ready_since IS NOT NULL;

ALTER TABLE outbox ADD COLUMN n_replays bigint NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN resolved_at text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN resolved_by text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN resolved_reason text COLLATE "C" NOT NULL DEFAULT '';
-- The few that wait for another attempt, and what failed, by why.
CREATE INDEX outbox_retried ON outbox (created_at, delivery_id) WHERE status = 'pending' AND last_code <> '';
CREATE INDEX outbox_class ON outbox (last_class, created_at, delivery_id) WHERE last_class <> '';
-- What leaves the ledger is found by when it was settled.
CREATE INDEX outbox_settled ON outbox (status, updated_at, delivery_id) WHERE status IN ('delivered', 'resolved');

-- The replays of the deliveries that the ledger has.
CREATE TABLE replays (
    target_id   text COLLATE "C" NOT NULL,
    delivery_id text COLLATE "C" NOT NULL,
    replay_seq  bigint NOT NULL,
    at          text COLLATE "C" NOT NULL DEFAULT '',
    actor       text COLLATE "C" NOT NULL DEFAULT '',
    reason      text COLLATE "C" NOT NULL DEFAULT '',
    n_forced    bigint NOT NULL DEFAULT 0,
    job_id      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (target_id, delivery_id, replay_seq)
);

-- Work over many deliveries. There are few of them.
CREATE TABLE jobs (
    job_id      text COLLATE "C" NOT NULL PRIMARY KEY,
    user_id     text COLLATE "C" NOT NULL DEFAULT '',
    kind        text COLLATE "C" NOT NULL DEFAULT '',
    status      text COLLATE "C" NOT NULL DEFAULT '',
    actor       text COLLATE "C" NOT NULL DEFAULT '',
    reason      text COLLATE "C" NOT NULL DEFAULT '',
    created_at  text COLLATE "C" NOT NULL DEFAULT '',
    updated_at  text COLLATE "C" NOT NULL DEFAULT '',
    started_at  text COLLATE "C" NOT NULL DEFAULT '',
    finished_at text COLLATE "C" NOT NULL DEFAULT '',
    expires_at  text COLLATE "C" NOT NULL DEFAULT '',
    n_total     bigint NOT NULL DEFAULT 0,
    n_done      bigint NOT NULL DEFAULT 0,
    n_skipped   bigint NOT NULL DEFAULT 0,
    n_limit     bigint NOT NULL DEFAULT 0,
    n_force     bigint NOT NULL DEFAULT 0,
    n_truncated bigint NOT NULL DEFAULT 0,
    filter      text COLLATE "C" NOT NULL DEFAULT '',
    digest      text COLLATE "C" NOT NULL DEFAULT '',
    token_hash  text COLLATE "C" NOT NULL DEFAULT ''
);
CREATE INDEX jobs_made ON jobs (created_at, job_id);
CREATE INDEX jobs_user ON jobs (user_id, created_at, job_id);
CREATE INDEX jobs_status ON jobs (status, created_at, job_id);
