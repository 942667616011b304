-- What the other nodes are told of a transaction stands beside its place: for each of
-- its rows of the log, in their order, the stream, where that ends now, and whether
-- somebody is to look at it. Rows of programs that did not know of it have none; theirs
-- is read from the log.
ALTER TABLE feed
    ADD COLUMN time    timestamptz,
    ADD COLUMN streams text[] COLLATE "C",
    ADD COLUMN heads   bigint[],
    ADD COLUMN wakes   boolean[];
