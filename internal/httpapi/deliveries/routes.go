// Package deliveries answers for what goes out: deliveries and their attempts, what
// people do with dead letters, one by one and in numbers, and the receivers.
package deliveries

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// Store is what is read of deliveries, jobs and targets.
type Store interface {
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error)
	Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error) // ErrNotFound
	Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error)
	Attempts(ctx context.Context, t event.TargetID, id event.DeliveryID, p eventlog.Page) ([]eventlog.AttemptRow, string, error)
	Replays(ctx context.Context, t event.TargetID, id event.DeliveryID, limit int) ([]eventlog.ReplayRow, error)
	Jobs(ctx context.Context, f eventlog.JobFilter, p eventlog.Page) ([]eventlog.JobRow, string, error)
	Target(ctx context.Context, id event.TargetID) (eventlog.TargetRow, error)
	Targets(ctx context.Context, f eventlog.TargetFilter, p eventlog.Page) ([]eventlog.TargetRow, string, error)
	Now(ctx context.Context) (time.Time, error)
}

// Handlers answer for deliveries, jobs and targets.
type Handlers struct {
	Admission *admission.Admission
	Store     Store
	// SigningKey gives the public keys of a secret that signs with ed25519, the current
	// one first; its error is a *problem.Error. Nil: there are none.
	SigningKey func(ctx context.Context, user, secret string) ([]string, error)
}

// Routes are the operations on deliveries, jobs and targets.
func (h *Handlers) Routes() []call.Route {
	return slices.Concat(h.deliveryRoutes(), h.wayRoutes(), h.letterRoutes(), h.attemptRoutes(), h.targetRoutes())
}

func (h *Handlers) deliveryRoutes() []call.Route {
	return []call.Route{
		call.Plain(h.listDeliveries, openapi.Operation{Method: "GET", Path: "/v1/deliveries", ID: "listDeliveries", Role: gate.Reader, Summary: "List deliveries, newest first",
			Params: []openapi.Param{call.Limit, call.Cursor, call.Owner, openapi.Query("status", "string", "`pending`, `retrying`, `delivered`, `dead_lettered` or `resolved`."),
				openapi.Query("session_id", "string", "Only of this session."), openapi.Query("run_id", "string", "Only of this run."), openapi.Query("target_id", "string", "Only to this target."),
				openapi.Query("error_class", "string", "Only those whose last failure is of this class, since they were made or replayed."),
				openapi.Query("unresolved", "string", "`true`: only dead letters that nobody resolved."),
				call.Since, call.Until, call.Order},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Delivery]](200, "A page.")}}),
		call.Plain(h.getDelivery, openapi.Operation{Method: "GET", Path: "/v1/deliveries/{d}", ID: "getDelivery", Role: gate.Reader, Summary: "Read a delivery",
			Answers: []openapi.Answer{openapi.Gives[api.Delivery](200, "The delivery as it is now.")}}),
		call.Plain(h.listTargets, openapi.Operation{Method: "GET", Path: "/v1/targets", ID: "listTargets", Role: gate.Reader, Summary: "List the receivers that deliveries went to",
			Notes: "The order is that of ids, which has no meaning.",
			Params: []openapi.Param{call.Limit, call.Cursor, call.Owner, openapi.Query("type", "string", "Only targets of this type."),
				openapi.Query("status", "string", "Only targets with deliveries of this status: `pending` or `dead_lettered`.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Target]](200, "A page.")}}),
		call.Plain(h.getTarget, openapi.Operation{Method: "GET", Path: "/v1/targets/{target}", ID: "getTarget", Role: gate.Reader, Summary: "Read how deliveries to a receiver stand",
			Answers: []openapi.Answer{openapi.Gives[api.Target](200, "The target as it is now.")}}),
	}
}
