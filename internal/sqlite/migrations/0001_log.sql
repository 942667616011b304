-- The end of each stream. It follows from the log; it stands here so that the
-- expectation and the fence of an append are one look-up.
CREATE TABLE streams (
    stream TEXT PRIMARY KEY,
    head   INTEGER NOT NULL,
    epoch  INTEGER NOT NULL,
    hash   BLOB NOT NULL
) WITHOUT ROWID;

-- One row holds all events of one append in one stream. The id is the order of
-- commits over all streams. data and salt are null when the content was
-- erased; digests is null until then.
CREATE TABLE log (
    id         INTEGER PRIMARY KEY,
    stream     TEXT NOT NULL,
    first_seq  INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    time       TEXT NOT NULL,
    session_id TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    meta       BLOB NOT NULL,
    data       BLOB,
    salt       BLOB,
    digests    BLOB,
    prev       BLOB NOT NULL,
    hash       BLOB NOT NULL
);
CREATE UNIQUE INDEX log_stream ON log (stream, first_seq);

-- Content that stands outside the log, keyed by owner and digest.
CREATE TABLE blobs (
    owner TEXT NOT NULL,
    ref   TEXT NOT NULL,
    kind  TEXT NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (owner, ref)
);

CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL
) WITHOUT ROWID;

-- What the code that wrote the database said of itself.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
