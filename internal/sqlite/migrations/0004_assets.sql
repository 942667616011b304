-- Files that users handed in. Their bytes come last, so that lists do not read them.
CREATE TABLE assets (
    asset_id   TEXT NOT NULL PRIMARY KEY,
    user_id    TEXT NOT NULL,
    ref        TEXT NOT NULL,
    media_type TEXT NOT NULL,
    name       TEXT NOT NULL,
    n_bytes    INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    touched_at TEXT NOT NULL, -- when it was handed in last
    bytes      BLOB NOT NULL
);
CREATE INDEX assets_user ON assets (user_id, created_at, asset_id, n_bytes);
CREATE INDEX assets_made ON assets (created_at, asset_id);
CREATE INDEX assets_touched ON assets (touched_at);

-- Which runs use which of them: derived from the log.
CREATE TABLE asset_uses (
    session_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    asset_id   TEXT NOT NULL,
    user_id    TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, run_id, asset_id)
) WITHOUT ROWID;
CREATE INDEX asset_uses_asset ON asset_uses (asset_id);
