-- Secret slots: each version of a secret, sealed. They stand outside the log.
CREATE TABLE secrets (
    owner      text COLLATE "C" NOT NULL, -- user; empty: the daemon's own
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    key_id     text COLLATE "C" NOT NULL, -- of the master key that it is sealed under
    sealed     bytea NOT NULL,
    hosts      text NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    until      text COLLATE "C" NOT NULL, -- when it ends to count beside the newer one; empty: the newest
    created_by text NOT NULL,
    PRIMARY KEY (owner, name, version)
);
CREATE INDEX secrets_until ON secrets (until) WHERE until <> '';
