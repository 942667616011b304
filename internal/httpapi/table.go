package httpapi

import (
	"reflect"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
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

func sessionRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/sessions", id: "createSession", role: gate.Operator, summary: "Create a session",
			notes:  "Every member is optional. `id` is the caller's own name for the session, unique per user; the daemon makes the `ses_…` id. Both name the session in paths.",
			action: takes(createSession), answers: []answer{gives[api.Session](201, "The session; Location names it.")}, fails: []int{404, 409, 410}},
		{method: "GET", path: "/v1/sessions", id: "listSessions", role: gate.Reader, summary: "List sessions, newest first",
			notes: "Instructions of more than 16 KiB are left out here; the session itself has them.",
			params: []param{pLimit, pCursor, pOwner, {"status", "query", "string", "`open` or `closed`."},
				{"thread_id", "query", "string", "Only sessions of this thread."}, pSince, pUntil, pOrder},
			action: plain(listSessions), answers: []answer{gives[api.List[api.Session]](200, "A page.")}},
		{method: "GET", path: "/v1/sessions/{s}", id: "getSession", role: gate.Reader, summary: "Read a session",
			params: []param{pUser}, action: plain(getSession), answers: []answer{gives[api.Session](200, "The session.")}, fails: []int{410}},
		{method: "PATCH", path: "/v1/sessions/{s}", id: "updateSession", role: gate.Operator, summary: "Change a session's settings",
			notes:  "Members that are present change, `null` clears. Runs that exist keep what they captured.",
			params: []param{pUser}, action: takes(patchSession), answers: []answer{gives[api.Session](200, "The session as it is now.")}, fails: []int{409, 410}},
		{method: "DELETE", path: "/v1/sessions/{s}", id: "eraseSession", role: gate.Operator, summary: "Erase a session's content",
			notes:  "Its events lose their data and its content is deleted; its hash chain still verifies. Unfinished runs or deliveries forbid it (`session_active`). From then on it answers 410.",
			params: []param{pUser}, action: plain(eraseSession), answers: []answer{{status: 204, text: "Erased."}}, fails: []int{409, 410}},
		{method: "POST", path: "/v1/sessions/{s}/close", id: "closeSession", role: gate.Operator, summary: "End a session's intake",
			notes:  "What was accepted still runs. A closed session stays closed.",
			params: []param{pUser}, action: takes(closeSession), answers: []answer{gives[api.Session](200, "The session.")}, fails: []int{409, 410}},
		{method: "POST", path: "/v1/sessions/{s}/interrupt", id: "interruptSession", role: gate.Operator, summary: "Stop the session's active run",
			notes:  "Queued runs stay, and the next one starts.",
			params: []param{pUser}, action: takes(interruptSession), answers: []answer{gives[api.Interrupt](202, "Whether there was a run to ask.")}, fails: []int{410}},
		{method: "POST", path: "/v1/sessions/{s}/compact", id: "compactSession", role: gate.Operator, summary: "Put a summary in the place of a session's older conversation",
			notes: "For what models are shown from then on; the log keeps everything. Only of a session at rest: a run that is not at its end, or another compaction, is a conflict (`compaction_conflict`). " +
				"Runs that are submitted meanwhile wait for it. Where there is nothing to leave out it fails with `nothing_to_compact`, in the log.",
			params: []param{pUser}, action: plain(compactSession), answers: []answer{gives[api.Compaction](202, "It is accepted; its events tell what comes of it.")}, fails: []int{409, 410}},
		{method: "GET", path: "/v1/sessions/{s}/blobs/{ref}", id: "getBlob", role: gate.Reader, summary: "Read content that an event refers to",
			notes:  "`ref` is the digest that stands in the event (`sha256:…`). Providers' sealed state and bodies of deliveries are not there.",
			params: []param{pUser}, action: plain(getBlob),
			answers: []answer{{status: 200, body: reflect.TypeFor[string](), media: "text/plain", text: "The bytes as text, or as application/json when they are JSON."}}, fails: []int{410}},
		{method: "GET", path: "/v1/sessions/{s}/diff", id: "getSessionDiff", role: gate.Reader, summary: "Read what changed in the session's workspace",
			notes: "Between two snapshots of it: by default from before the first step that may have changed files to after the last. What is shown is bounded. " +
				"Snapshots stand in the private store of the node that made them (`snapshot_elsewhere`), the older ones go (`snapshot_gone`), and not every step has them (`no_snapshots`).",
			params: []param{pUser, {"run", "query", "string", "Only what this run changed (`run_…`)."}, {"step", "query", "string", "Only what this step changed (`step_…`)."},
				{"from", "query", "string", "Where to begin: a step (`step_…`), before which, or a tree (`sha256:…`) that an event of the session names."},
				{"to", "query", "string", "Where to end: a step, after which, or a tree."},
				{"stat", "query", "string", "`true`: the files and the numbers of lines, without the differences; `false` when absent."}},
			action: plain(sessionDiff), answers: []answer{gives[api.FilesDiff](200, "The files that differ.")}, fails: []int{409, 410, 429}},
	}
}

// setting is the three operations on one setting of a session.
func setting[T any](path, id, name string, change func(*admission.Admission, *T) (admission.Change, error), of func(*event.Settings) *T, shown func(*event.Settings) *T, notes string) []route {
	path = "/v1/sessions/{s}/" + path
	return []route{
		{method: "GET", path: path, id: "get" + id, role: gate.Reader, summary: "Read the session's " + name,
			params: []param{pUser}, action: getSetting(name, shown), answers: []answer{gives[T](200, "As it stands.")}, fails: []int{410}},
		{method: "PUT", path: path, id: "put" + id, role: gate.Operator, summary: "Set the session's " + name, notes: notes,
			params: []param{pUser}, action: putSetting(change, shown), answers: []answer{gives[T](200, "As it stands now.")}, fails: []int{409, 410}},
		{method: "DELETE", path: path, id: "delete" + id, role: gate.Operator, summary: "Take the session's " + name + " away",
			params: []param{pUser}, action: deleteSetting(change, of), answers: []answer{{status: 204, text: "There is none now."}}, fails: []int{409, 410}},
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
		{method: "POST", path: "/v1/sessions/{s}/runs", id: "submitRun", role: gate.Operator, summary: "Submit work",
			notes: "Either `content` or `input_items`. Under an input contract a submission that breaks it is refused (`input_contract_violated`) with the path of the fault, and leaves no run. A session takes a bounded number of runs that are not at their end (`queue_full`). " +
				"With an `Idempotency-Key` the same request gives the same run, whenever it is repeated; another request under the key is a conflict (`idempotency_conflict`).",
			params: []param{pUser, {"Idempotency-Key", "header", "string", "1 to 255 visible ASCII characters, unique within the session. Only its digest is stored."},
				{"wait", "query", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time."}},
			action: takes(submitRun), answers: []answer{gives[api.Run](202, "A new run; Location names it."), gives[api.Run](200, "The run that this key has already.")}, fails: []int{409, 410, 429}},
		{method: "GET", path: "/v1/runs", id: "listRuns", role: gate.Reader, summary: "List runs, newest first",
			notes: "An answer of more than 16 KiB is given as `content_ref`; the run itself has it.",
			params: []param{pLimit, pCursor, pOwner, {"session_id", "query", "string", "Only runs of this session (`ses_…`)."},
				{"status", "query", "string", "Only runs of this status."}, pSince, pUntil, pOrder},
			action: plain(listRuns), answers: []answer{gives[api.List[api.Run]](200, "A page.")}},
		{method: "GET", path: "/v1/runs/{r}", id: "getRun", role: gate.Reader, summary: "Read a run, or wait for it",
			params: []param{{"wait", "query", "string", "A duration up to `60s`: answer when the run is at its end or waits for a person, at the latest after this time."}},
			action: plain(getRun), answers: []answer{gives[api.Run](200, "The run as it is now.")}, fails: []int{410, 429}},
		{method: "GET", path: "/v1/runs/{r}/events", id: "listRunEvents", role: gate.Reader, summary: "Read a run's events",
			notes:  narrowedNotes,
			params: []param{pEvents, pAfter, pTypes, pSince, pUntil}, action: plain(runEvents),
			answers: []answer{gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}},
		{method: "GET", path: "/v1/runs/{r}/stream", id: "streamRun", role: gate.Reader, stream: true, summary: "Follow a run",
			notes:  streamNotes + " It ends after the run's last event. When there is nothing left it answers 204, which tells a browser not to connect again.",
			params: []param{pAfter, pLastID}, action: plain(runStream),
			answers: []answer{{status: 200, body: reflect.TypeFor[string](), media: "text/event-stream", text: "Server-sent events."}, {status: 204, text: "The run is over and has no event after the cursor."}}, fails: []int{410, 429}},
		{method: "GET", path: "/v1/runs/{r}/timeline", id: "getRunTimeline", role: gate.Reader, summary: "Read where the time and the money of a run went",
			notes:  "The wall time from submission to end (or to now, while it runs) is given to causes that add up to it exactly: queued, model, tools, waiting for a person, waiting for a retry, overhead. Deliveries follow the run and are no part of it.",
			action: plain(runTimeline), answers: []answer{gives[api.Timeline](200, "The timeline as it is now.")}, fails: []int{410}},
		{method: "POST", path: "/v1/runs/{r}/cancel", id: "cancelRun", role: gate.Operator, summary: "Cancel one run, queued or active",
			notes:  "The request is recorded; the run's end follows. A run that is at its end is a conflict, unless it was cancelled.",
			action: takes(cancelRun), answers: []answer{gives[api.Run](202, "The run as it is now.")}, fails: []int{409, 410}},
		{method: "POST", path: "/v1/runs/{r}/attention", id: "resolveAttention", role: gate.Operator, summary: "Settle a tool call whose effect is in doubt",
			notes:  "`completed`: it happened, and `output` is what the model sees. `failed`: it did not. `retry`: start it again.",
			action: takes(resolveAttention), answers: []answer{gives[api.Run](202, "The run as it is now.")}, fails: []int{409, 410}},
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
		{method: "GET", path: "/v1/sessions/{s}/events", id: "listSessionEvents", role: gate.Reader, summary: "Read a session's log",
			notes:  narrowedNotes,
			params: []param{pUser, pEvents, pAfter, pTypes, pSince, pUntil}, action: plain(sessionEvents),
			answers: []answer{gives[api.List[api.Event]](200, "Events in ascending order; next_cursor is the `after` of the next page, when there is one.")}, fails: []int{410}},
		{method: "GET", path: "/v1/sessions/{s}/stream", id: "streamSession", role: gate.Reader, stream: true, summary: "Follow a session",
			notes: streamNotes, params: []param{pUser, pAfter, pLastID}, action: plain(sessionStream),
			answers: []answer{{status: 200, body: reflect.TypeFor[string](), media: "text/event-stream", text: "Server-sent events."}}, fails: []int{410, 429}},
		{method: "GET", path: "/v1/events", id: "listEvents", role: gate.Reader, summary: "Read the feed over all streams, in the order of commits",
			notes: "`next_cursor` is always there: it is the `after` of the next page, also when that has nothing yet, and moves past what the filter held back. With `until` the feed has an end: `next_cursor` stays there.",
			params: []param{pEvents, {"after", "query", "integer", "The next_cursor of an earlier page; 0, the beginning, when absent."},
				pTypes, pOwner, {"session_id", "query", "string", "Only events of this session (`ses_…`), those of its deliveries included."},
				{"run_id", "query", "string", "Only events of this run, those of its deliveries included."}, pSince, pUntil},
			action: plain(feed), answers: []answer{gives[api.List[api.Event]](200, "A page.")}},
	}
}

func deliveryRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/deliveries", id: "listDeliveries", role: gate.Reader, summary: "List deliveries, newest first",
			params: []param{pLimit, pCursor, pOwner, {"status", "query", "string", "`pending`, `retrying`, `delivered`, `dead_lettered` or `resolved`."},
				{"session_id", "query", "string", "Only of this session."}, {"run_id", "query", "string", "Only of this run."}, {"target_id", "query", "string", "Only to this target."},
				{"error_class", "query", "string", "Only those whose last failure is of this class, since they were made or replayed."},
				{"unresolved", "query", "string", "`true`: only dead letters that nobody resolved."},
				pSince, pUntil, pOrder},
			action: plain(listDeliveries), answers: []answer{gives[api.List[api.Delivery]](200, "A page.")}},
		{method: "GET", path: "/v1/deliveries/{d}", id: "getDelivery", role: gate.Reader, summary: "Read a delivery",
			action: plain(getDelivery), answers: []answer{gives[api.Delivery](200, "The delivery as it is now.")}},
		{method: "GET", path: "/v1/targets", id: "listTargets", role: gate.Reader, summary: "List the receivers that deliveries went to",
			notes: "The order is that of ids, which has no meaning.",
			params: []param{pLimit, pCursor, pOwner, {"type", "query", "string", "Only targets of this type."},
				{"status", "query", "string", "Only targets with deliveries of this status: `pending` or `dead_lettered`."}},
			action: plain(listTargets), answers: []answer{gives[api.List[api.Target]](200, "A page.")}},
		{method: "GET", path: "/v1/targets/{target}", id: "getTarget", role: gate.Reader, summary: "Read how deliveries to a receiver stand",
			action: plain(getTarget), answers: []answer{gives[api.Target](200, "The target as it is now.")}},
	}
}

func adminRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/tokens", id: "createToken", role: gate.Admin, summary: "Create a token",
			notes:  "The token is shown this once; only its SHA-256 is stored. An administrator who is bound to a user makes tokens of that user only. A token that has expired is refused with `token_expired`.",
			action: takes(createToken), answers: []answer{gives[api.Token](201, "The token.")}},
		{method: "GET", path: "/v1/tokens", id: "listTokens", role: gate.Admin, summary: "List tokens, oldest first",
			params: []param{pLimit, pCursor, {"role", "query", "string", "Only tokens of this role."}, {"user_id", "query", "string", "Only tokens that are bound to this user."}},
			action: plain(listTokens), answers: []answer{gives[api.List[api.Token]](200, "A page.")}},
		{method: "DELETE", path: "/v1/tokens/{t}", id: "revokeToken", role: gate.Admin, summary: "Revoke a token",
			notes:  "This node forgets it at once, another one within 2 seconds; an open stream ends at its next heartbeat.",
			action: plain(deleteToken), answers: []answer{{status: 204, text: "Revoked."}}},
		{method: "GET", path: "/v1/routes", id: "listRoutes", role: gate.Reader, summary: "List the configured routes to models",
			params: []param{pLimit, pCursor, {"provider", "query", "string", "Only routes to this provider."}},
			action: plain(listRoutes), answers: []answer{gives[api.List[api.Route]](200, "A page, by name.")}},
		{method: "GET", path: "/v1/tools", id: "listTools", role: gate.Reader, summary: "List the configured tools",
			params: []param{pLimit, pCursor, {"source", "query", "string", "Only tools of this source."}, {"side_effect", "query", "string", "Only tools of this side effect."}},
			action: plain(listTools), answers: []answer{gives[api.List[api.Tool]](200, "A page, by name.")}},
		{method: "GET", path: "/v1/nodes", id: "listNodes", role: gate.Operator, summary: "List the nodes that share the store, oldest first",
			notes:  "Those that are alive, and those that ended a short while ago. A token that is bound to a user is refused (`unbound_token_required`).",
			params: []param{pLimit, pCursor},
			action: plain(listNodes), answers: []answer{gives[api.List[api.Node]](200, "A page.")}},
		{method: "GET", path: "/healthz", id: "healthz", summary: "Is the process alive",
			action: plain(healthz), answers: []answer{gives[api.Health](200, "It is.")}},
		{method: "GET", path: "/readyz", id: "readyz", summary: "Does the daemon take work",
			action: plain(readyz), answers: []answer{gives[api.Health](200, "It does.")}, fails: []int{503}},
		{method: "GET", path: "/metrics", id: "metrics", role: gate.Reader, summary: "What the daemon counts, for Prometheus",
			notes:  "In Prometheus' text format, over all users: a token that is bound to a user is refused (`unbound_token_required`). The metrics reference names each metric.",
			action: plain(metricsText), answers: []answer{{status: 200, body: reflect.TypeFor[string](), media: "text/plain", text: "Every metric."}}, fails: []int{404, 503}},
		{method: "GET", path: "/openapi.json", id: "openapi", summary: "This interface as an OpenAPI 3.1 document",
			action: plain(openAPI), answers: []answer{gives[map[string]any](200, "The document.")}},
	}
}
