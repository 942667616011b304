-- Sessions as they are folded from their events up to a head: what saves a
-- reader those. They follow from the log, and are content of their session.
CREATE TABLE snapshots (
    session_id TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    head       INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    state      BLOB NOT NULL
);
