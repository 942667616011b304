package api

// Compaction is the answer of POST /v1/sessions/{s}/compact. The events of the
// compaction have ID as their step_id; the last is context.compacted or
// context.compaction.failed.
type Compaction struct {
	ID        string `json:"id"`
	SessionID string `json:"session_id"`
	Seq       int64  `json:"seq"` // of the request, in the session's stream
}
