-- When a token ends, and the minute in which it was used last; empty: never.
ALTER TABLE tokens ADD COLUMN expires_at TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN last_used TEXT NOT NULL DEFAULT '';
