package httpapi

import (
	"reflect"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// table lists every operation.
func table() []route {
	var all []route
	all = append(all, sessionRoutes()...)
	all = append(all, settingRoutes()...)
	all = append(all, runRoutes()...)
	all = append(all, assetRoutes()...)
	all = append(all, logRoutes()...)
	all = append(all, deliveryRoutes()...)
	all = append(all, connectorRoutes()...)
	all = append(all, wayRoutes()...)
	all = append(all, letterRoutes()...)
	all = append(all, attemptRoutes()...)
	all = append(all, targetRoutes()...)
	all = append(all, secretRoutes()...)
	all = append(all, auditRoutes()...)
	return append(all, adminRoutes()...)
}

// Operations describes every operation of the door.
func Operations() []openapi.Operation { return operations(table()) }

func operations(routes []route) []openapi.Operation {
	list := make([]openapi.Operation, len(routes))
	for i := range routes {
		list[i] = routes[i].Operation
	}
	return list
}

func sessionRoutes() []route {
	return []route{
		takes(createSession, openapi.Operation{Method: "POST", Path: "/v1/sessions", ID: "createSession", Role: gate.Operator, Summary: "Create a session",
			Notes:   "Every member is optional. `id` is the caller's own name for the session, unique per user; the daemon makes the `ses_…` id. Both name the session in paths.",
			Answers: []openapi.Answer{openapi.Gives[api.Session](201, "The session; Location names it.")}, Fails: []int{404, 409, 410}}),
		plain(listSessions, openapi.Operation{Method: "GET", Path: "/v1/sessions", ID: "listSessions", Role: gate.Reader, Summary: "List sessions, newest first",
			Notes: "Instructions of more than 16 KiB are left out here; the session itself has them.",
			Params: []openapi.Param{pLimit, pCursor, pOwner, openapi.Query("status", "string", "`open` or `closed`."),
				openapi.Query("thread_id", "string", "Only sessions of this thread."), pSince, pUntil, pOrder},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Session]](200, "A page.")}}),
		plain(getSession, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}", ID: "getSession", Role: gate.Reader, Summary: "Read a session",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session.")}, Fails: []int{410}}),
		takes(patchSession, openapi.Operation{Method: "PATCH", Path: "/v1/sessions/{s}", ID: "updateSession", Role: gate.Operator, Summary: "Change a session's settings",
			Notes:  "Members that are present change, `null` clears. Runs that exist keep what they captured.",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session as it is now.")}, Fails: []int{409, 410}}),
		plain(eraseSession, openapi.Operation{Method: "DELETE", Path: "/v1/sessions/{s}", ID: "eraseSession", Role: gate.Operator, Summary: "Erase a session's content",
			Notes:  "Its events lose their data and its content is deleted; its hash chain still verifies. Unfinished runs or deliveries forbid it (`session_active`). From then on it answers 410.",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{{Status: 204, Text: "Erased."}}, Fails: []int{409, 410}}),
		takes(closeSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/close", ID: "closeSession", Role: gate.Operator, Summary: "End a session's intake",
			Notes:  "What was accepted still runs. A closed session stays closed.",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[api.Session](200, "The session.")}, Fails: []int{409, 410}}),
		takes(interruptSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/interrupt", ID: "interruptSession", Role: gate.Operator, Summary: "Stop the session's active run",
			Notes:  "Queued runs stay, and the next one starts.",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[api.Interrupt](202, "Whether there was a run to ask.")}, Fails: []int{410}}),
		plain(compactSession, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/compact", ID: "compactSession", Role: gate.Operator, Summary: "Put a summary in the place of a session's older conversation",
			Notes: "For what models are shown from then on; the log keeps everything. Only of a session at rest: a run that is not at its end, or another compaction, is a conflict (`compaction_conflict`). " +
				"Runs that are submitted meanwhile wait for it. Where there is nothing to leave out it fails with `nothing_to_compact`, in the log.",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[api.Compaction](202, "It is accepted; its events tell what comes of it.")}, Fails: []int{409, 410}}),
		plain(getBlob, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/blobs/{ref}", ID: "getBlob", Role: gate.Reader, Summary: "Read content that an event refers to",
			Notes:   "`ref` is the digest that stands in the event (`sha256:…`). Providers' sealed state and bodies of deliveries are not there.",
			Params:  []openapi.Param{pUser},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/plain", Text: "The bytes as text, or as application/json when they are JSON."}}, Fails: []int{410}}),
		plain(sessionDiff, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/diff", ID: "getSessionDiff", Role: gate.Reader, Summary: "Read what changed in the session's workspace",
			Notes: "Between two snapshots of it: by default from before the first step that may have changed files to after the last. What is shown is bounded. " +
				"Snapshots stand in the private store of the node that made them (`snapshot_elsewhere`), the older ones go (`snapshot_gone`), and not every step has them (`no_snapshots`).",
			Params: []openapi.Param{pUser, openapi.Query("run", "string", "Only what this run changed (`run_…`)."), openapi.Query("step", "string", "Only what this step changed (`step_…`)."),
				openapi.Query("from", "string", "Where to begin: a step (`step_…`), before which, or a tree (`sha256:…`) that an event of the session names."),
				openapi.Query("to", "string", "Where to end: a step, after which, or a tree."),
				openapi.Query("stat", "string", "`true`: the files and the numbers of lines, without the differences; `false` when absent.")},
			Answers: []openapi.Answer{openapi.Gives[api.FilesDiff](200, "The files that differ.")}, Fails: []int{409, 410, 429}}),
	}
}

// setting is the three operations on one setting of a session.
func setting[T any](path, id, name string, change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, shown func(*event.Settings) *T, notes string) []route {
	path = "/v1/sessions/{s}/" + path
	return []route{
		getSetting(name, shown, openapi.Operation{Method: "GET", Path: path, ID: "get" + id, Role: gate.Reader, Summary: "Read the session's " + name,
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[T](200, "As it stands.")}, Fails: []int{410}}),
		putSetting(change, shown, openapi.Operation{Method: "PUT", Path: path, ID: "put" + id, Role: gate.Operator, Summary: "Set the session's " + name, Notes: notes,
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{openapi.Gives[T](200, "As it stands now.")}, Fails: []int{409, 410}}),
		deleteSetting(change, of, openapi.Operation{Method: "DELETE", Path: path, ID: "delete" + id, Role: gate.Operator, Summary: "Take the session's " + name + " away",
			Params: []openapi.Param{pUser}, Answers: []openapi.Answer{{Status: 204, Text: "There is none now."}}, Fails: []int{409, 410}}),
	}
}

func settingRoutes() []route {
	all := setting("input-contract", "InputContract", "input contract", (*admission.Admission).SetInputContract, inputContract, inputContract,
		"It binds submissions from then on. The schema is a subset of JSON Schema; what the subset lacks is refused, every finding in `issues`. It is shown in its closed form.")
	all = append(all, setting("output-contract", "OutputContract", "output contract", (*admission.Admission).SetOutputContract, outputContract, outputContract,
		"A run pins it when it starts. `max_repair_attempts` is 3 when absent, 5 at most, 0 for none.")...)
	all = append(all, setting("route-policy", "RoutePolicy", "route policy", (*admission.Admission).SetRoutePolicy, routePolicy, routePolicy,
		"It shapes the runs that are created from then on.")...)
	return append(all, setting("reply-targets", "ReplyTargets", "reply targets", (*admission.Admission).SetReplyTargets, targetsOf, targetsOrNone,
		"Runs that are created from then on and name no targets of their own answer there.")...)
}

func runRoutes() []route {
	return []route{
		takes(submitRun, openapi.Operation{Method: "POST", Path: "/v1/sessions/{s}/runs", ID: "submitRun", Role: gate.Operator, Summary: "Submit work",
			Notes: "Either `content` or `input_items`. Under an input contract a submission that breaks it is refused (`input_contract_violated`) with the path of the fault, and leaves no run. A session takes a bounded number of runs that are not at their end (`queue_full`). " +
				"With an `Idempotency-Key` the same request gives the same run, whenever it is repeated; another request under the key is a conflict (`idempotency_conflict`).",
			Params: []openapi.Param{pUser, openapi.Header("Idempotency-Key", "string", "1 to 255 visible ASCII characters, unique within the session. Only its digest is stored."),
				openapi.Query("wait", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time.")},
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "A new run; Location names it."), openapi.Gives[api.Run](200, "The run that this key has already.")}, Fails: []int{409, 410, 429}}),
		plain(listRuns, openapi.Operation{Method: "GET", Path: "/v1/runs", ID: "listRuns", Role: gate.Reader, Summary: "List runs, newest first",
			Notes: "An answer of more than 16 KiB is given as `content_ref`; the run itself has it.",
			Params: []openapi.Param{pLimit, pCursor, pOwner, openapi.Query("session_id", "string", "Only runs of this session (`ses_…`)."),
				openapi.Query("status", "string", "Only runs of this status."), pSince, pUntil, pOrder},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Run]](200, "A page.")}}),
		plain(getRun, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}", ID: "getRun", Role: gate.Reader, Summary: "Read a run, or wait for it",
			Params:  []openapi.Param{openapi.Query("wait", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time.")},
			Answers: []openapi.Answer{openapi.Gives[api.Run](200, "The run as it is now.")}, Fails: []int{410, 429}}),
		plain(runEvents, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/events", ID: "listRunEvents", Role: gate.Reader, Summary: "Read a run's events",
			Notes:   narrowedNotes,
			Params:  []openapi.Param{pEvents, pAfter, pTypes, pSince, pUntil},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}}),
		plain(runStream, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/stream", ID: "streamRun", Role: gate.Reader, Stream: true, Summary: "Follow a run",
			Notes:   streamNotes + " It ends after the run's last event. When there is nothing left it answers 204, which tells a browser not to connect again.",
			Params:  []openapi.Param{pAfter, pLastID},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/event-stream", Text: "Server-sent events."}, {Status: 204, Text: "The run is over and has no event after the cursor."}}, Fails: []int{410, 429}}),
		plain(runTimeline, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/timeline", ID: "getRunTimeline", Role: gate.Reader, Summary: "Read where the time and the money of a run went",
			Notes:   "The wall time from submission to end (or to now, while it runs) is given to causes that add up to it exactly: queued, model, tools, waiting for a person, waiting for a retry, overhead. Deliveries follow the run and are no part of it.",
			Answers: []openapi.Answer{openapi.Gives[api.Timeline](200, "The timeline as it is now.")}, Fails: []int{410}}),
		takes(cancelRun, openapi.Operation{Method: "POST", Path: "/v1/runs/{r}/cancel", ID: "cancelRun", Role: gate.Operator, Summary: "Cancel one run, queued or active",
			Notes:   "The request is recorded; the run's end follows. A run that is at its end is a conflict, unless it was cancelled.",
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "The run as it is now.")}, Fails: []int{409, 410}}),
		takes(resolveAttention, openapi.Operation{Method: "POST", Path: "/v1/runs/{r}/attention", ID: "resolveAttention", Role: gate.Operator, Summary: "Settle a tool call whose effect is in doubt",
			Notes:   "`completed`: it happened, and `output` is what the model sees. `failed`: it did not. `retry`: start it again.",
			Answers: []openapi.Answer{openapi.Gives[api.Run](202, "The run as it is now.")}, Fails: []int{409, 410}}),
	}
}

const narrowedNotes = "Narrowed, a page may hold fewer events than its limit, or none; go on as long as there is a next_cursor."

const streamNotes = "Server-sent events: `id` is the sequence in the session's stream, `event` the type, `data` the event as one line of JSON. " +
	"Live deltas (`text.delta` and the like) and markers have no `id`. The one `synced` marker says that the replay has reached what was the head when " +
	"the reader came; its `live` says where live deltas come from: `local`, this daemon; `bus`, whichever node does the work; `none`, nowhere, because this daemon does not do the " +
	"work and there is no bus: durable events come all the same. A `live` marker says that this has changed. A `gap` marker says that live deltas are missing at its " +
	"place, because the reader was too slow for them (`slow_reader`), they were lost between nodes (`bus`), or the reader came later (`late`); the `…ended` event that follows has the whole. " +
	"A reader that comes again with `Last-Event-ID` gets every durable event after it once, in order. A cursor past the head waits. " +
	"A silent stream sends a comment every 15 seconds. A reader that takes longer than `limits.stream_write` (10 seconds) for 32 KiB is let go: " +
	"with a `cut` marker, whose `resume_after` says where to go on, if it takes them within half as long again, else without a word. " +
	"A `problem` event, with problem details as its data, ends a stream for good: the session was erased, or the token revoked."

func logRoutes() []route {
	return []route{
		plain(sessionEvents, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/events", ID: "listSessionEvents", Role: gate.Reader, Summary: "Read a session's log",
			Notes:   narrowedNotes,
			Params:  []openapi.Param{pUser, pEvents, pAfter, pTypes, pSince, pUntil},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}, Fails: []int{410}}),
		plain(sessionStream, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/stream", ID: "streamSession", Role: gate.Reader, Stream: true, Summary: "Follow a session",
			Notes: streamNotes, Params: []openapi.Param{pUser, pAfter, pLastID},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/event-stream", Text: "Server-sent events."}}, Fails: []int{410, 429}}),
		plain(feed, openapi.Operation{Method: "GET", Path: "/v1/events", ID: "listEvents", Role: gate.Reader, Summary: "Read the feed over all streams, in the order of commits",
			Notes: "`next_cursor` is always there: it is the `after` of the next page, also when that has nothing yet, and moves past what the filter held back. With `until` the feed has an end: `next_cursor` stays there.",
			Params: []openapi.Param{pEvents, openapi.Query("after", "integer", "The next_cursor of an earlier page; 0, the beginning, when absent."),
				pTypes, pOwner, openapi.Query("session_id", "string", "Only events of this session (`ses_…`), those of its deliveries included."),
				openapi.Query("run_id", "string", "Only events of this run, those of its deliveries included."), pSince, pUntil},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Event]](200, "A page.")}}),
	}
}

func deliveryRoutes() []route {
	return []route{
		plain(listDeliveries, openapi.Operation{Method: "GET", Path: "/v1/deliveries", ID: "listDeliveries", Role: gate.Reader, Summary: "List deliveries, newest first",
			Params: []openapi.Param{pLimit, pCursor, pOwner, openapi.Query("status", "string", "`pending`, `retrying`, `delivered`, `dead_lettered` or `resolved`."),
				openapi.Query("session_id", "string", "Only of this session."), openapi.Query("run_id", "string", "Only of this run."), openapi.Query("target_id", "string", "Only to this target."),
				openapi.Query("error_class", "string", "Only those whose last failure is of this class, since they were made or replayed."),
				openapi.Query("unresolved", "string", "`true`: only dead letters that nobody resolved."),
				pSince, pUntil, pOrder},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Delivery]](200, "A page.")}}),
		plain(getDelivery, openapi.Operation{Method: "GET", Path: "/v1/deliveries/{d}", ID: "getDelivery", Role: gate.Reader, Summary: "Read a delivery",
			Answers: []openapi.Answer{openapi.Gives[api.Delivery](200, "The delivery as it is now.")}}),
		plain(listTargets, openapi.Operation{Method: "GET", Path: "/v1/targets", ID: "listTargets", Role: gate.Reader, Summary: "List the receivers that deliveries went to",
			Notes: "The order is that of ids, which has no meaning.",
			Params: []openapi.Param{pLimit, pCursor, pOwner, openapi.Query("type", "string", "Only targets of this type."),
				openapi.Query("status", "string", "Only targets with deliveries of this status: `pending` or `dead_lettered`.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Target]](200, "A page.")}}),
		plain(getTarget, openapi.Operation{Method: "GET", Path: "/v1/targets/{target}", ID: "getTarget", Role: gate.Reader, Summary: "Read how deliveries to a receiver stand",
			Answers: []openapi.Answer{openapi.Gives[api.Target](200, "The target as it is now.")}}),
	}
}

func adminRoutes() []route {
	return []route{
		takes(createToken, openapi.Operation{Method: "POST", Path: "/v1/tokens", ID: "createToken", Role: gate.Admin, Summary: "Create a token",
			Notes:   "The token is shown this once; only its SHA-256 is stored. An administrator who is bound to a user makes tokens of that user only. A token that has expired is refused with `token_expired`.",
			Answers: []openapi.Answer{openapi.Gives[api.Token](201, "The token.")}}),
		plain(listTokens, openapi.Operation{Method: "GET", Path: "/v1/tokens", ID: "listTokens", Role: gate.Admin, Summary: "List tokens, oldest first",
			Params:  []openapi.Param{pLimit, pCursor, openapi.Query("role", "string", "Only tokens of this role."), openapi.Query("user_id", "string", "Only tokens that are bound to this user.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Token]](200, "A page.")}}),
		plain(deleteToken, openapi.Operation{Method: "DELETE", Path: "/v1/tokens/{t}", ID: "revokeToken", Role: gate.Admin, Summary: "Revoke a token",
			Notes:   "This node forgets it at once, another one within 2 seconds; an open stream ends at its next heartbeat.",
			Answers: []openapi.Answer{{Status: 204, Text: "Revoked."}}}),
		plain(listRoutes, openapi.Operation{Method: "GET", Path: "/v1/routes", ID: "listRoutes", Role: gate.Reader, Summary: "List the configured routes to models",
			Params:  []openapi.Param{pLimit, pCursor, openapi.Query("provider", "string", "Only routes to this provider.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Route]](200, "A page, by name.")}}),
		plain(listTools, openapi.Operation{Method: "GET", Path: "/v1/tools", ID: "listTools", Role: gate.Reader, Summary: "List the configured tools",
			Params:  []openapi.Param{pLimit, pCursor, openapi.Query("source", "string", "Only tools of this source."), openapi.Query("side_effect", "string", "Only tools of this side effect.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Tool]](200, "A page, by name.")}}),
		plain(listNodes, openapi.Operation{Method: "GET", Path: "/v1/nodes", ID: "listNodes", Role: gate.Operator, Summary: "List the nodes that share the store, oldest first",
			Notes:   "Those that are alive, and those that ended a short while ago. A token that is bound to a user is refused (`unbound_token_required`).",
			Params:  []openapi.Param{pLimit, pCursor},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Node]](200, "A page.")}}),
		plain(healthz, openapi.Operation{Method: "GET", Path: "/healthz", ID: "healthz", Summary: "Is the process alive",
			Answers: []openapi.Answer{openapi.Gives[api.Health](200, "It is.")}}),
		plain(readyz, openapi.Operation{Method: "GET", Path: "/readyz", ID: "readyz", Summary: "Does the daemon take work",
			Answers: []openapi.Answer{openapi.Gives[api.Health](200, "It does.")}, Fails: []int{503}}),
		plain(metricsText, openapi.Operation{Method: "GET", Path: "/metrics", ID: "metrics", Role: gate.Reader, Summary: "What the daemon counts, for Prometheus",
			Notes:   "In Prometheus' text format, over all users: a token that is bound to a user is refused (`unbound_token_required`). The metrics reference names each metric.",
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/plain", Text: "Every metric."}}, Fails: []int{404, 503}}),
		plain(openAPI, openapi.Operation{Method: "GET", Path: "/openapi.json", ID: "openapi", Summary: "This interface as an OpenAPI 3.1 document",
			Answers: []openapi.Answer{openapi.Gives[map[string]any](200, "The document.")}}),
	}
}
