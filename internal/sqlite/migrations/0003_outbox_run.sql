-- The deliveries of a run are asked for by the run alone.
CREATE INDEX outbox_run ON outbox (run_id, created_at, delivery_id);
