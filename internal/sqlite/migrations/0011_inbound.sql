-- Events that connectors took, by the connector's name and the digest of the
-- event's id: one event makes one run, whichever session it goes to.
CREATE TABLE inbound (
    user_id     TEXT NOT NULL,
    connector   TEXT NOT NULL,
    event_hash  TEXT NOT NULL,
    fingerprint TEXT NOT NULL DEFAULT '',
    session_id  TEXT NOT NULL DEFAULT '',
    run_id      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (user_id, connector, event_hash)
) WITHOUT ROWID;
CREATE INDEX inbound_session ON inbound (session_id);
