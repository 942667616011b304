-- What is not at its end is counted without a look at what is: each of these
-- holds the backlog only, so that a count costs what waits and not what was.
CREATE INDEX runs_unfinished ON runs (status, submitted_at) WHERE finished_at = '';
CREATE INDEX outbox_oldest ON outbox (created_at) WHERE status = 'pending';
CREATE INDEX outbox_dead_made ON outbox (created_at) WHERE status = 'dead_lettered';
