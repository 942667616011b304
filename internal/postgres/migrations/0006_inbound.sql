-- Events that connectors took, by the connector's name and the digest of the
-- event's id: one event makes one run, whichever session it goes to.
CREATE TABLE inbound (
    user_id     text COLLATE "C" NOT NULL,
    connector   text COLLATE "C" NOT NULL,
    event_hash  text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL DEFAULT '',
    session_id  text COLLATE "C" NOT NULL DEFAULT '',
    run_id      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (user_id, connector, event_hash)
);
CREATE INDEX inbound_session ON inbound (session_id);
