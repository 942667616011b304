package sse

import (
	"reflect"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

const streamNotes = "Server-sent events: `id` is the sequence in the session's stream, `event` the type, `data` the event as one line of JSON. " +
	"Live deltas (`text.delta` and the like) and markers have no `id`. The one `synced` marker says that the replay has reached what was the head when " +
	"the reader came; its `live` says where live deltas come from: `local`, this daemon; `bus`, whichever node does the work; `none`, nowhere, because this daemon does not do the " +
	"work and there is no bus: durable events come all the same. A `live` marker says that this has changed. A `gap` marker says that live deltas are missing at its " +
	"place, because the reader was too slow for them (`slow_reader`), they were lost between nodes (`bus`), or the reader came later (`late`); the `…ended` event that follows has the whole. " +
	"A reader that comes again with `Last-Event-ID` gets every durable event after it once, in order. A cursor past the head waits. " +
	"A silent stream sends a comment every 15 seconds. A reader that takes longer than `limits.stream_write` (10 seconds) for 32 KiB is let go: " +
	"with a `cut` marker, whose `resume_after` says where to go on, if it takes them within half as long again, else without a word. " +
	"A `problem` event, with problem details as its data, ends a stream for good: the session was erased, or the token revoked."

func (h *Handlers) streamRoutes() []call.Route {
	return []call.Route{
		call.Plain(h.runStream, openapi.Operation{Method: "GET", Path: "/v1/runs/{r}/stream", ID: "streamRun", Role: gate.Reader, Stream: true, Summary: "Follow a run",
			Notes:   streamNotes + " It ends after the run's last event. When there is nothing left it answers 204, which tells a browser not to connect again.",
			Params:  []openapi.Param{call.AfterSeq, call.LastID},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/event-stream", Text: "Server-sent events."}, {Status: 204, Text: "The run is over and has no event after the cursor."}}, Fails: []int{410, 429}}),
		call.Plain(h.sessionStream, openapi.Operation{Method: "GET", Path: "/v1/sessions/{s}/stream", ID: "streamSession", Role: gate.Reader, Stream: true, Summary: "Follow a session",
			Notes: streamNotes, Params: []openapi.Param{call.User, call.AfterSeq, call.LastID},
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/event-stream", Text: "Server-sent events."}}, Fails: []int{410, 429}}),
	}
}
