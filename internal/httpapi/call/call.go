// Package call is a request on its way to who answers it: which operation it asks
// for, whether the caller's role allows it, its parameters, and a place among the
// streams and waits. A table of routes makes the mux; a route's function is given
// the call and answers it, or returns an error, which becomes problem details here.
package call

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/door"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
)

// Config says how calls are made.
type Config struct {
	Exchange   exchange.Config
	Door       *door.Door
	MaxWait    time.Duration // ceiling of ?wait=
	MaxStreams int           // open streams and waits
}

// Server is what all calls share.
type Server struct {
	cfg     Config
	streams places // of open streams and waits
}

// New makes a server.
func New(cfg Config) *Server { return &Server{cfg: cfg, streams: places{most: cfg.MaxStreams}} }

// Places are how many streams and waits are open now.
func (s *Server) Places() int { return s.streams.count() }

// Session finds the session that the path names as {s}, for who asks.
func (c *Call) Session(a *admission.Admission) (eventlog.SessionRow, error) {
	return a.Find(c.Ctx(), c.Who.Caller, c.R.PathValue("s"), c.Query["user_id"])
}

// Place finds the session of a submission, that the path names as {s}, for who asks.
func (c *Call) Place(a *admission.Admission) (admission.Place, error) {
	return a.PlaceFor(c.Ctx(), c.Who.Caller, c.R.PathValue("s"), c.Query["user_id"])
}

// Run finds the run that the path names as {r}, for who asks.
func (c *Call) Run(a *admission.Admission) (eventlog.RunRow, error) {
	return a.FindRun(c.Ctx(), c.Who.Caller, event.RunID(c.R.PathValue("r")))
}

// NonNil is list, or an empty one: what has no items is [] on the wire.
func NonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
