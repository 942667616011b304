package httpapi

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/httpapi/admin"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/httpapi/deliveries"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/runs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sessions"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sse"
)

// contents is the order of the operations on the reference page.
var contents = strings.Fields(`
createSession listSessions getSession updateSession eraseSession closeSession interruptSession compactSession getBlob getSessionDiff getInputContract
putInputContract deleteInputContract getOutputContract putOutputContract deleteOutputContract getRoutePolicy putRoutePolicy deleteRoutePolicy
getReplyTargets putReplyTargets deleteReplyTargets submitRun listRuns getRun listRunEvents streamRun getRunTimeline cancelRun resolveAttention
createAsset listAssets getAsset getAssetBytes listSessionEvents streamSession listEvents listDeliveries getDelivery listTargets getTarget receiveEvent
listConnectors testConnector testTarget getSigningKey replayDeliveries replayDelivery resolveDelivery listJobs getJob listJobDeliveries cancelJob
listAttempts pauseTarget resumeTarget resetTarget putSecret listSecrets getSecret deleteSecret rekeySecrets listAudit createToken listTokens
revokeToken listRoutes listTools listNodes healthz readyz metrics openapi
`)

// rooms answer for the operations of the interface.
type rooms struct {
	sessions   *sessions.Handlers
	runs       *runs.Handlers
	logs       *logs.Handlers
	streams    *sse.Handlers
	deliveries *deliveries.Handlers
	connectors *connectors.Handlers
	admin      *admin.Handlers
}

// table lists every operation, in the order of contents.
func (r *rooms) table() []call.Route {
	all := slices.Concat(r.sessions.Routes(), r.runs.Routes(), r.logs.Routes(), r.streams.Routes(), r.deliveries.Routes(), r.connectors.Routes(), r.admin.Routes())
	slices.SortStableFunc(all, func(a, b call.Route) int {
		return slices.Index(contents, a.ID) - slices.Index(contents, b.ID)
	})
	return all
}

// Operations describes every operation of the door, in the order of the reference page.
func Operations() []openapi.Operation {
	r := rooms{
		sessions: &sessions.Handlers{}, runs: runs.New(runs.Config{}), logs: &logs.Handlers{}, streams: sse.New(sse.Config{}),
		deliveries: &deliveries.Handlers{}, connectors: connectors.New(connectors.Config{}), admin: admin.New(admin.Config{}),
	}
	return operations(r.table())
}

func operations(routes []call.Route) []openapi.Operation {
	list := make([]openapi.Operation, len(routes))
	for i := range routes {
		list[i] = routes[i].Operation
	}
	return list
}
