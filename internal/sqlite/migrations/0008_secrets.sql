-- Secret slots: each version of a secret, sealed. They stand outside the log.
CREATE TABLE secrets (
    owner      TEXT NOT NULL,    -- user; empty: the daemon's own
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    key_id     TEXT NOT NULL,    -- of the master key that it is sealed under
    sealed     BLOB NOT NULL,
    hosts      TEXT NOT NULL,
    created_at TEXT NOT NULL,
    until      TEXT NOT NULL,    -- when it ends to count beside the newer one; empty: the newest
    created_by TEXT NOT NULL,
    PRIMARY KEY (owner, name, version)
);
CREATE INDEX secrets_until ON secrets (until) WHERE until <> '';
