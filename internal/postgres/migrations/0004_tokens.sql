-- When a token ends, and the minute in which it was used last; empty: never.
ALTER TABLE tokens ADD COLUMN expires_at text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN last_used text COLLATE "C" NOT NULL DEFAULT '';
