// Package runs answers for runs: submitting, waiting for, stopping and settling them,
// where their time went, and the files that they are given.
package runs

import (
	"context"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// Store is what is read of runs. Single ones come from the intake, which knows who
// may see them.
type Store interface {
	logs.Reader
	views.Log
	Runs(ctx context.Context, f eventlog.RunFilter, p eventlog.Page) ([]eventlog.RunRow, string, error)
	ListAssets(ctx context.Context, user string, p eventlog.Page) ([]eventlog.AssetRow, string, error)
}

// Config says what runs are shown of, and bounds the files.
type Config struct {
	Admission *admission.Admission
	Store     Store
	Hub       *live.Hub
	// Price gives the price of a route by its name, for timelines. Nil: no price is known.
	Price      func(route string) (timeline.Price, bool)
	MaxAsset   int64 // bytes of a file that is handed in
	MaxUploads int   // files that are handed in, or read back, at once; others wait
}

// Handlers answer for runs and assets.
type Handlers struct {
	cfg     Config
	uploads chan struct{} // one element for each file that comes in
	reads   chan struct{} // one element for each file that goes out
}

// New makes them.
func New(cfg Config) *Handlers {
	return &Handlers{cfg: cfg, uploads: make(chan struct{}, cfg.MaxUploads), reads: make(chan struct{}, cfg.MaxUploads)}
}

// Routes are the operations on runs and assets.
func (h *Handlers) Routes() []call.Route { return append(h.runRoutes(), h.assetRoutes()...) }

func (h *Handlers) runRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.submitRun, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/runs", ID: "submitRun", Role: gate.Operator, Summary: "Submit work",
			Notes: "Either `content` or `input_items`. Under an input contract a submission that breaks it is refused (`input_contract_violated`) with the path of the fault, and leaves no run. A session takes a bounded number of runs that are not at their end (`queue_full`). " +
				"With an `Idempotency-Key` the same request gives the same run, whenever it is repeated; another request under the key is a conflict (`idempotency_conflict`).",
			Params: []openapi.Param{call.User, openapi.Header("Idempotency-Key", "string", "1 to 255 visible ASCII characters, unique within the session. Only its digest is stored."),
				openapi.Query("wait", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time, and at once when the daemon stops: the status says which.")},
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "A new run; Location names it."), openapi.Gives[api.Run](200, "The run that this key has already.")}, Fails: []int{409, 410, 429}}),
		call.Plain(h.listRuns, openapi.Operation{Method: "GET", Path: "/v1/runs", ID: "listRuns", Role: gate.Reader, Summary: "List runs, newest first",
			Notes: "An answer of more than 16 KiB is given as `content_ref`; the run itself has it.",
			Params: []openapi.Param{call.Limit, call.Cursor, call.Owner, openapi.Query("session_id", "string", "Only runs of this session (`ses_…`)."),
				openapi.Query("status", "string", "Only runs of this status."), call.Since, call.Until, call.Order},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Run]](200, "A page.")}}),
		call.Plain(h.getRun, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}", ID: "getRun", Role: gate.Reader, Summary: "Read a run, or wait for it",
			Params:  []openapi.Param{openapi.Query("wait", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time, and at once when the daemon stops: the status says which.")},
			Answers: []openapi.Answer{openapi.Gives[api.Run](200, "The run as it is now.")}, Fails: []int{410, 429}}),
		call.Plain(h.runTimeline, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/timeline", ID: "getRunTimeline", Role: gate.Reader, Summary: "Read where the time and the money of a run went",
			Notes:   "The wall time from submission to end (or to now, while it runs) is given to causes that add up to it exactly: queued, model, tools, waiting for a person, waiting for a retry, overhead. Deliveries follow the run and are no part of it.",
			Answers: []openapi.Answer{openapi.Gives[api.Timeline](200, "The timeline as it is now.")}, Fails: []int{410}}),
		call.Takes(h.cancelRun, openapi.Operation{Method: "POST", Path: "/v1/runs/{r}/cancel", ID: "cancelRun", Role: gate.Operator, Summary: "Cancel one run, queued or active",
			Notes:   "The request is recorded; the run's end follows. A run that is at its end is a conflict, unless it was cancelled.",
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "The run as it is now.")}, Fails: []int{409, 410}}),
		call.Takes(h.resolveAttention, openapi.Operation{Method: "POST", Path: "/v1/runs/{r}/attention", ID: "resolveAttention", Role: gate.Operator, Summary: "Settle a tool call whose effect is in doubt",
			Notes:   "`completed`: it happened, and `output` is what the model sees. `failed`: it did not. `retry`: start it again.",
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "The run as it is now.")}, Fails: []int{409, 410}}),
	}
}
