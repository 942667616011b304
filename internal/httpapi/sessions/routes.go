// Package sessions answers for sessions: making, changing, closing and erasing them,
// what they are set to, the content that their events refer to, and what changed in
// their workspaces.
package sessions

import (
	"context"
	"reflect"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
)

// Store is what is read of sessions. Single ones come from the intake, which knows
// who may see them.
type Store interface {
	logs.Reader
	views.Log
	Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error)
	Sessions(ctx context.Context, f eventlog.SessionFilter, p eventlog.Page) ([]eventlog.SessionRow, string, error)
}

// Handlers answer for sessions.
type Handlers struct {
	Admission *admission.Admission
	Store     Store
	Files     Files // nil: this node has none
}

// Routes are the operations on sessions.
func (h *Handlers) Routes() []call.Route { return append(h.sessionRoutes(), h.settingRoutes()...) }

func (h *Handlers) sessionRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.createSession, openapi.Operation{Method: "POST", Path: "/v1/sessions", ID: "createSession", Role: gate.Operator, Summary: "Create a session",
			Notes:   "Every member is optional. `id` is the caller's own name for the session, unique per user; the daemon makes the `ses_…` id. Both name the session in paths.",
			Answers: []openapi.Answer{openapi.Gives[api.Session](201, "The session; Location names it.")}, Fails: []int{404, 409, 410}}),
		call.Plain(h.listSessions, openapi.Operation{Method: "GET", Path: "/v1/sessions", ID: "listSessions", Role: gate.Reader, Summary: "List sessions, newest first",
			Notes: "Instructions of more than 16 KiB are left out here; the session itself has them.",
			Params: []openapi.Param{call.Limit, call.Cursor, call.Owner, openapi.Query("status", "string", "`open` or `closed`."),
				openapi.Query("thread_id", "string", "Only sessions of this thread."), call.Since, call.Until, call.Order},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Session]](200, "A page.")}}),
		call.Plain(h.getSession, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}", ID: "getSession", Role: gate.Reader, Summary: "Read a session",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session.")}, Fails: []int{410}}),
		call.Takes(h.patchSession, openapi.Operation{Method: "PATCH", Path: "/v1/sessions/{s}", ID: "updateSession", Role: gate.Operator, Summary: "Change a session's settings",
			Notes:  "Members that are present change, `null` clears. Runs that exist keep what they captured.",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session as it is now.")}, Fails: []int{409, 410}}),
		call.Plain(h.eraseSession, openapi.Operation{Method: "DELETE", Path: "/v1/sessions/{s}", ID: "eraseSession", Role: gate.Operator, Summary: "Erase a session's content",
			Notes:  "Its events lose their data and its content is deleted; its hash chain still verifies. Unfinished runs or deliveries forbid it (`session_active`). From then on it answers 410.",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{{Status: 204, Text: "Erased."}}, Fails: []int{409, 410}}),
		call.Takes(h.closeSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/close", ID: "closeSession", Role: gate.Operator, Summary: "End a session's intake",
			Notes:  "What was accepted still runs. A closed session stays closed.",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session.")}, Fails: []int{409, 410}}),
		call.Takes(h.interruptSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/interrupt", ID: "interruptSession", Role: gate.Operator, Summary: "Stop the session's active run",
			Notes:  "Queued runs stay, and the next one starts.",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[api.Interrupt](202, "Whether there was a run to ask.")}, Fails: []int{410}}),
		call.Plain(h.compactSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/compact", ID: "compactSession", Role: gate.Operator, Summary: "Put a summary in the place of a session's older conversation",
			Notes: "For what models are shown from then on; the log keeps everything. Only of a session at rest: a run that is not at its end, or another compaction, is a conflict (`compaction_conflict`). " +
				"Runs that are submitted meanwhile wait for it. Where there is nothing to leave out it fails with `nothing_to_compact`, in the log.",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[api.Compaction](202, "It is accepted; its events tell what comes of it.")}, Fails: []int{409, 410}}),
		call.Plain(h.getBlob, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/blobs/{ref}", ID: "getBlob", Role: gate.Reader, Summary: "Read content that an event refers to",
			Notes:   "`ref` is the digest that stands in the event (`sha256:…`). Providers' sealed state and bodies of deliveries are not there.",
			Params:  []openapi.Param{call.User},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/plain", Text: "The bytes as text, or as application/json when they are JSON."}}, Fails: []int{410}}),
		call.Plain(h.sessionDiff, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/diff", ID: "getSessionDiff", Role: gate.Reader, Summary: "Read what changed in the session's workspace",
			Notes: "Between two snapshots of it: by default from before the first step that may have changed files to after the last. What is shown is bounded. " +
				"Snapshots stand in the private store of the node that made them (`snapshot_elsewhere`), the older ones go (`snapshot_gone`), and not every step has them (`no_snapshots`).",
			Params: []openapi.Param{call.User, openapi.Query("run", "string", "Only what this run changed (`run_…`)."), openapi.Query("step", "string", "Only what this step changed (`step_…`)."),
				openapi.Query("from", "string", "Where to begin: a step (`step_…`), before which, or a tree (`sha256:…`) that an event of the session names."),
				openapi.Query("to", "string", "Where to end: a step, after which, or a tree."),
				openapi.Query("stat", "string", "`true`: the files and the numbers of lines, without the differences; `false` when absent.")},
			Answers: []openapi.Answer{openapi.Gives[api.FilesDiff](200, "The files that differ.")}, Fails: []int{409, 410, 429}}),
	}
}

// setting is the three operations on one setting of a session.
func setting[T any](h *Handlers, path, id, name string, change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, shown func(*event.Settings) *T, notes string) []call.Route {
	path = "/v1/sessions/{s}/" + path
	return []call.Route{
		getSetting(h, name, shown, openapi.Operation{Method: "GET", Path: path, ID: "get" + id, Role: gate.Reader, Summary: "Read the session's " + name,
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[T](200, "As it stands.")}, Fails: []int{410}}),
		putSetting(h, change, shown, openapi.Operation{Method: "PUT", Path: path, ID: "put" + id, Role: gate.Operator, Summary: "Set the session's " + name, Notes: notes,
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{openapi.Gives[T](200, "As it stands now.")}, Fails: []int{409, 410}}),
		deleteSetting(h, change, of, openapi.Operation{Method: "DELETE", Path: path, ID: "delete" + id, Role: gate.Operator, Summary: "Take the session's " + name + " away",
			Params: []openapi.Param{call.User}, Answers: []openapi.Answer{{Status: 204, Text: "There is none now."}}, Fails: []int{409, 410}}),
	}
}

func (h *Handlers) settingRoutes() []call.Route {
	all := setting(h, "input-contract", "InputContract", "input contract", (*admission.Admission).SetInputContract, views.InputContract, views.InputContract,
		"It binds submissions from then on. The schema is a subset of JSON Schema; what the subset lacks is refused, every finding in `issues`. It is shown in its closed form.")
	all = append(all, setting(h, "output-contract", "OutputContract", "output contract", (*admission.Admission).SetOutputContract, views.OutputContract, views.OutputContract,
		"A run pins it when it starts. `max_repair_attempts` is 3 when absent, 5 at most, 0 for none.")...)
	all = append(all, setting(h, "route-policy", "RoutePolicy", "route policy", (*admission.Admission).SetRoutePolicy, views.RoutePolicy, views.RoutePolicy,
		"It shapes the runs that are created from then on.")...)
	return append(all, setting(h, "reply-targets", "ReplyTargets", "reply targets", (*admission.Admission).SetReplyTargets, targetsOf, targetsOrNone,
		"Runs that are created from then on and name no targets of their own answer there.")...)
}
