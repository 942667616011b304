-- Text is compared byte by byte, whatever the database's own order is.

-- The end of each stream, and who works on it. The row is locked from the check
-- of an append until its commit, so that sequences have no gaps. A row with head
-- 0 stands only in an open transaction.
CREATE TABLE streams (
    stream      text COLLATE "C" PRIMARY KEY,
    target      boolean NOT NULL,                    -- of a target; else of a session
    head        bigint NOT NULL,
    epoch       bigint NOT NULL,
    hash        bytea NOT NULL,
    holder      text COLLATE "C" NOT NULL DEFAULT '', -- node; empty: nobody
    ready_since timestamptz,                         -- since when it wants work; null: it is at rest
    roots       text[] NOT NULL DEFAULT '{}',        -- workspace roots that it needs
    version     integer NOT NULL DEFAULT 0           -- of the newest program whose node owned it
) WITH (fillfactor = 70);
CREATE INDEX streams_ready ON streams (target, holder, ready_since, stream) WHERE ready_since IS NOT NULL;

-- One row holds all events of one append in one stream. block is drawn once a
-- transaction, behind the locks of its streams, so that the rows of one stream
-- ascend; it is not the order of commits: that is the feed's. data and salt are null
-- when the content was erased; digests is null until then.
CREATE SEQUENCE log_blocks;
CREATE TABLE log (
    block      bigint NOT NULL,
    place      integer NOT NULL, -- in the transaction, from 0
    stream     text COLLATE "C" NOT NULL,
    first_seq  bigint NOT NULL,
    count      integer NOT NULL,
    epoch      bigint NOT NULL,
    time       timestamptz NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    wakes      boolean NOT NULL,
    meta       bytea NOT NULL,
    data       bytea,
    salt       bytea,
    digests    bytea,
    prev       bytea NOT NULL,
    hash       bytea NOT NULL,
    PRIMARY KEY (block, place)
);
CREATE UNIQUE INDEX log_stream ON log (stream, first_seq);

-- The order of commits over all streams: a row for each transaction. Its rows of
-- the log have the positions up to pos, without a gap. Who inserts here holds a
-- lock until the commit, so that what commits later stands behind.
CREATE TABLE feed (
    pos   bigint PRIMARY KEY,
    rows  integer NOT NULL,
    block bigint NOT NULL,
    node  text COLLATE "C" NOT NULL -- that wrote it
);

-- A row for each life of a node.
CREATE TABLE nodes (
    node_id  text COLLATE "C" PRIMARY KEY,
    name     text NOT NULL,
    version  text NOT NULL,
    roots    text[] NOT NULL,
    active   integer NOT NULL,
    most     integer NOT NULL,
    draining boolean NOT NULL,
    since    timestamptz NOT NULL,
    until    timestamptz NOT NULL,
    released boolean NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE blobs (
    owner text COLLATE "C" NOT NULL,
    ref   text COLLATE "C" NOT NULL,
    kind  text COLLATE "C" NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (owner, ref)
);

CREATE TABLE tokens (
    id         text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    role       text NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    hash       text COLLATE "C" NOT NULL UNIQUE,
    created_at text COLLATE "C" NOT NULL
);

-- What the programs that wrote the database said of themselves.
CREATE TABLE facts (
    name  text COLLATE "C" PRIMARY KEY,
    value integer NOT NULL
);

-- Files that users handed in.
CREATE TABLE assets (
    asset_id   text COLLATE "C" PRIMARY KEY,
    user_id    text COLLATE "C" NOT NULL,
    ref        text COLLATE "C" NOT NULL,
    media_type text NOT NULL,
    name       text NOT NULL,
    n_bytes    bigint NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    touched_at text COLLATE "C" NOT NULL, -- when it was handed in last
    bytes      bytea NOT NULL
);
CREATE INDEX assets_user ON assets (user_id, created_at, asset_id) INCLUDE (n_bytes);
CREATE INDEX assets_made ON assets (created_at, asset_id);
CREATE INDEX assets_touched ON assets (touched_at);

-- Sessions as they are folded from their events up to a head.
CREATE TABLE snapshots (
    session_id text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    head       bigint NOT NULL,
    epoch      bigint NOT NULL,
    hash       bytea NOT NULL,
    state      bytea NOT NULL
);

-- The derived tables: what the log says, arranged for those who ask.
CREATE TABLE sessions (
    session_id       text COLLATE "C" NOT NULL,
    user_id          text COLLATE "C" NOT NULL DEFAULT '',
    alias            text COLLATE "C" NOT NULL DEFAULT '',
    thread_id        text COLLATE "C" NOT NULL DEFAULT '',
    status           text COLLATE "C" NOT NULL DEFAULT '',
    title            text COLLATE "C" NOT NULL DEFAULT '',
    created_at       text COLLATE "C" NOT NULL DEFAULT '',
    updated_at       text COLLATE "C" NOT NULL DEFAULT '',
    settings_version bigint NOT NULL DEFAULT 0,
    instructions     text COLLATE "C" NOT NULL DEFAULT '',
    metadata         text COLLATE "C" NOT NULL DEFAULT '',
    tools            text COLLATE "C" NOT NULL DEFAULT '',
    on_doubt         text COLLATE "C" NOT NULL DEFAULT '',
    n_max_turns      bigint NOT NULL DEFAULT 0,
    n_history_limit  bigint NOT NULL DEFAULT 0,
    input_contract   text COLLATE "C" NOT NULL DEFAULT '',
    output_contract  text COLLATE "C" NOT NULL DEFAULT '',
    route_policy     text COLLATE "C" NOT NULL DEFAULT '',
    reply_targets    text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (session_id)
);
-- Lists go by the time at which their rows were made, and by the id where two
-- were made at once: an index has both behind what narrows it. A status that nearly
-- every row comes to has no place in an index by status.
CREATE INDEX sessions_made ON sessions (created_at, session_id);
CREATE INDEX sessions_user ON sessions (user_id, created_at, session_id);
CREATE INDEX sessions_status ON sessions (status, created_at, session_id) WHERE status <> 'open';
CREATE INDEX sessions_thread ON sessions (thread_id, created_at, session_id) WHERE thread_id <> '';

CREATE TABLE aliases (
    user_id    text COLLATE "C" NOT NULL,
    alias      text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (user_id, alias)
);
CREATE INDEX aliases_session ON aliases (session_id);

-- An update finds room on the page of its row and touches no index, but where
-- the status changes.
CREATE TABLE runs (
    session_id    text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    user_id       text COLLATE "C" NOT NULL DEFAULT '',
    status        text COLLATE "C" NOT NULL DEFAULT '',
    kind          text COLLATE "C" NOT NULL DEFAULT '',
    submitted_at  text COLLATE "C" NOT NULL DEFAULT '',
    updated_at    text COLLATE "C" NOT NULL DEFAULT '',
    started_at    text COLLATE "C" NOT NULL DEFAULT '',
    finished_at   text COLLATE "C" NOT NULL DEFAULT '',
    created_seq   bigint NOT NULL DEFAULT 0,
    output_seq    bigint NOT NULL DEFAULT 0,
    source        text COLLATE "C" NOT NULL DEFAULT '',
    actor         text COLLATE "C" NOT NULL DEFAULT '',
    text_preview  text COLLATE "C" NOT NULL DEFAULT '',
    route         text COLLATE "C" NOT NULL DEFAULT '',
    provider      text COLLATE "C" NOT NULL DEFAULT '',
    model         text COLLATE "C" NOT NULL DEFAULT '',
    error_code    text COLLATE "C" NOT NULL DEFAULT '',
    error_message text COLLATE "C" NOT NULL DEFAULT '',
    totals        text COLLATE "C" NOT NULL DEFAULT '',
    waiting_on    text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX runs_run ON runs (run_id);
CREATE INDEX runs_made ON runs (submitted_at, run_id);
CREATE INDEX runs_user ON runs (user_id, submitted_at, run_id);
CREATE INDEX runs_session ON runs (session_id, submitted_at, run_id);
CREATE INDEX runs_status ON runs (status, submitted_at, run_id) WHERE status <> 'completed';

CREATE TABLE queue (
    session_id   text COLLATE "C" NOT NULL,
    run_id       text COLLATE "C" NOT NULL,
    created_seq  bigint NOT NULL DEFAULT 0,
    status       text COLLATE "C" NOT NULL DEFAULT '',
    submitted_at text COLLATE "C" NOT NULL DEFAULT '',
    user_id      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, run_id)
) WITH (fillfactor = 50);

CREATE TABLE outbox (
    target_id     text COLLATE "C" NOT NULL,
    delivery_id   text COLLATE "C" NOT NULL,
    lane_seq      bigint NOT NULL DEFAULT 0,
    session_id    text COLLATE "C" NOT NULL DEFAULT '',
    run_id        text COLLATE "C" NOT NULL DEFAULT '',
    user_id       text COLLATE "C" NOT NULL DEFAULT '',
    type          text COLLATE "C" NOT NULL DEFAULT '',
    status        text COLLATE "C" NOT NULL DEFAULT '',
    body          text COLLATE "C" NOT NULL DEFAULT '',
    address       text COLLATE "C" NOT NULL DEFAULT '',
    created_at    text COLLATE "C" NOT NULL DEFAULT '',
    updated_at    text COLLATE "C" NOT NULL DEFAULT '',
    next_at       text COLLATE "C" NOT NULL DEFAULT '',
    n_attempts    bigint NOT NULL DEFAULT 0,
    n_cycle       bigint NOT NULL DEFAULT 0,
    n_open        bigint NOT NULL DEFAULT 0,
    n_open_epoch  bigint NOT NULL DEFAULT 0,
    last_code     text COLLATE "C" NOT NULL DEFAULT '',
    n_last_status bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (target_id, delivery_id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX outbox_delivery ON outbox (delivery_id);
CREATE INDEX outbox_pending ON outbox (target_id, lane_seq) WHERE status = 'pending';
CREATE INDEX outbox_dead ON outbox (target_id) WHERE status = 'dead_lettered';
CREATE INDEX outbox_oldest ON outbox (created_at) WHERE status = 'pending';
CREATE INDEX outbox_created ON outbox (created_at, delivery_id);
CREATE INDEX outbox_user ON outbox (user_id, created_at, delivery_id);
CREATE INDEX outbox_session ON outbox (session_id, created_at, delivery_id);
CREATE INDEX outbox_run ON outbox (run_id, created_at, delivery_id);
CREATE INDEX outbox_target ON outbox (target_id, created_at, delivery_id);
CREATE INDEX outbox_status ON outbox (status, created_at, delivery_id) WHERE status <> 'delivered';

CREATE TABLE idempotency (
    session_id  text COLLATE "C" NOT NULL,
    operation   text COLLATE "C" NOT NULL,
    key_hash    text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL DEFAULT '',
    contract    text COLLATE "C" NOT NULL DEFAULT '',
    run_id      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, operation, key_hash)
);

CREATE TABLE tool_starts (
    session_id text COLLATE "C" NOT NULL,
    call_id    text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, call_id)
);

CREATE TABLE asset_uses (
    session_id text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    asset_id   text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, run_id, asset_id)
);
CREATE INDEX asset_uses_asset ON asset_uses (asset_id);
