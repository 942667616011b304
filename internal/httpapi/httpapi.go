// Package httpapi is the HTTP door of the daemon: it reads requests strictly,
// finds out who asks, hands commands to admission, shows rows and the log as
// the types of package api, and follows the log for streams. It decides
// nothing and keeps nothing of its own but open streams.
//
// One table of routes makes the mux, the OpenAPI document and the reference
// page. Handlers return errors; one function renders them as problem details
// (RFC 9457).
package httpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/door"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// Log is what the door reads of the log. It never appends.
type Log interface {
	Head(ctx context.Context, s event.Stream) (eventlog.Head, error)
	Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	Feed(ctx context.Context, after eventlog.Position, limit int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
}

// Views are the lists that the door shows. Single rows come from admission,
// which knows who may see them.
type Views interface {
	Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error)
	Sessions(ctx context.Context, f eventlog.SessionFilter, p eventlog.Page) ([]eventlog.SessionRow, string, error)
	Runs(ctx context.Context, f eventlog.RunFilter, p eventlog.Page) ([]eventlog.RunRow, string, error)
	Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error) // ErrNotFound
	Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error)
	Replays(ctx context.Context, t event.TargetID, id event.DeliveryID, limit int) ([]eventlog.ReplayRow, error)
	Jobs(ctx context.Context, f eventlog.JobFilter, p eventlog.Page) ([]eventlog.JobRow, string, error)
	Target(ctx context.Context, id event.TargetID) (eventlog.TargetRow, error)
	Targets(ctx context.Context, f eventlog.TargetFilter, p eventlog.Page) ([]eventlog.TargetRow, string, error)
	Attempts(ctx context.Context, t event.TargetID, id event.DeliveryID, p eventlog.Page) ([]eventlog.AttemptRow, string, error)
	Now(ctx context.Context) (time.Time, error)
}

// Store is everything that the door reads, and the tokens, which it writes.
type Store interface {
	Log
	Views
	eventlog.Tokens
	ListAssets(ctx context.Context, user string, p eventlog.Page) ([]eventlog.AssetRow, string, error)
	ListNodes(ctx context.Context) ([]eventlog.NodeRow, error)
}

// Config says what the door serves. The zero value of what has a default means it.
type Config struct {
	Store     Store
	Admission *admission.Admission
	Hub       *live.Hub
	Routes    []api.Route // inventory, as shown
	Tools     []api.Tool  // inventory, as shown
	// Connectors take events from outside.
	Connectors Connectors
	Version    string
	// Files compare snapshots of workspaces. Nil: this node has none.
	Files Files
	// Secrets is the room of secret slots. Nil: there are none.
	Secrets Secrets
	// Price gives the price of a route by its name, for timelines. Nil: no price is known.
	Price func(route string) (timeline.Price, bool)
	// SigningKey gives the public keys of a secret that signs with ed25519, the current
	// one first; its error is a *problem.Error. Nil: there are none.
	SigningKey func(ctx context.Context, user, secret string) ([]string, error)
	// Ready says whether the daemon takes work; its error is logged, not
	// shown. Nil: always.
	Ready func() error
	// Live says where live deltas of a stream come from, one of the Live
	// constants of package api. It is asked often and does not block. Nil: from
	// this process, always.
	Live func(s event.Stream) string
	// Metrics gives what the daemon counts, in Prometheus' text format. Nil: nothing is counted.
	Metrics func() ([]byte, error)
	Logger  *slog.Logger // default slog.Default
	// Stopping is closed when the daemon stops: streams and waits end then, and
	// bodies that have not come are waited for no longer than a second, so that
	// http.Server.Shutdown need not wait for them. Nil: never.
	Stopping <-chan struct{}

	Heartbeat time.Duration // between comments of a silent stream; default 15 s
	// WriteTimeout is how long a reader may take for each 32 KiB of an answer
	// or a stream; default 10 s.
	WriteTimeout time.Duration
	MaxWait      time.Duration // ceiling of ?wait=; default 60 s
	MaxBody      int64         // bytes of a request's body; default 2 MiB
	MaxAsset     int64         // bytes of a file that is handed in; default 20 MiB
	MaxUploads   int           // files that are handed in, or read back, at once; others wait; default 8
	BodyTimeout  time.Duration // until a request's body has come; default 30 s
	// UnreadTimeout is how long a body that nobody wants may hold an answer
	// back; the connection ends with that answer then. Default 10 s.
	UnreadTimeout time.Duration
	MaxStreams    int       // open streams and waits; default 20,000
	Random        io.Reader // tokens; safe for concurrent use; default crypto/rand

	// Hosts are the names under which the daemon may be asked besides those of loopback.
	Hosts gate.Hosts
	// Proxies are those through which alone it is asked. Nil: there are none.
	Proxies *gate.Proxies
	// Audit takes records of who was turned away and of changes of tokens. Nil: nobody does.
	Audit eventlog.Auditor

	AuthFailures int // tokens that are not good, from one peer, within a minute; default 10
	PeerRate     int // requests without a token, from one peer, within a second; default 100
	TokenRate    int // requests with one token within a second; default 10,000
	MaxRequests  int // that are answered at once, beside streams and waits; default 1,024
	MaxEvents    int // from outside, whose bodies are read and which are taken at once, a quarter of one peer; others wait; default 64

	// TokenExpiry is how long a token is good that is made without a word on it; 0:
	// for ever. MaxTokenExpiry bounds what may be asked for; 0: nothing does.
	TokenExpiry, MaxTokenExpiry time.Duration
}

func (c *Config) complete() error {
	if c.Store == nil || c.Admission == nil || c.Hub == nil {
		return errors.New("httpapi: store, admission and hub must be given")
	}
	c.Heartbeat = orDefault(c.Heartbeat, 15*time.Second)
	c.WriteTimeout = orDefault(c.WriteTimeout, 10*time.Second)
	c.MaxWait = orDefault(c.MaxWait, 60*time.Second)
	c.BodyTimeout = orDefault(c.BodyTimeout, 30*time.Second)
	c.UnreadTimeout = orDefault(c.UnreadTimeout, 10*time.Second)
	c.MaxBody = orDefault(c.MaxBody, 2<<20)
	c.MaxAsset = orDefault(c.MaxAsset, 20<<20)
	c.MaxUploads = orDefault(c.MaxUploads, 8)
	c.MaxStreams = orDefault(c.MaxStreams, 20_000)
	c.AuthFailures = orDefault(c.AuthFailures, 10)
	c.PeerRate = orDefault(c.PeerRate, 100)
	c.TokenRate = orDefault(c.TokenRate, 10_000)
	c.MaxRequests = orDefault(c.MaxRequests, 1024)
	c.MaxEvents = orDefault(c.MaxEvents, 64)
	if min(c.Heartbeat, c.WriteTimeout, c.MaxWait, c.BodyTimeout, c.UnreadTimeout) < 0 || min(c.MaxBody, c.MaxAsset) < 0 || min(c.MaxStreams, c.AuthFailures, c.PeerRate, c.TokenRate, c.MaxRequests, c.MaxEvents) < 0 {
		return errors.New("httpapi: a bound is negative")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	return nil
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// Handler serves the API. As it is, it wants a token for everything but the
// public operations; Local is the same door for a listener that only the
// daemon's own user can reach.
type Handler struct {
	server *server
	mux    *http.ServeMux
	door   http.Handler
}

// server is what both doors share.
type server struct {
	cfg      Config
	exchange exchange.Config
	entry    *door.Door
	// doorways are the connectors by name.
	doorways map[string]*doorway
	tails    tails
	buffers  sync.Pool              // of *bytes.Buffer, empty
	streams  places                 // of open streams and waits
	uploads  chan struct{}          // one element for each file that comes in
	reads    chan struct{}          // one element for each file that goes out
	readers  atomic.Int64           // of open event streams
	openapi  func() ([]byte, error) // made when somebody asks for it

	senders *gate.Places // one for each event from outside that comes in
}

// New makes the handler. A Config that cannot work is an error.
func New(cfg Config) (*Handler, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &server{cfg: cfg, doorways: newDoorways(cfg.Connectors.List), streams: places{most: cfg.MaxStreams}, uploads: make(chan struct{}, cfg.MaxUploads), reads: make(chan struct{}, cfg.MaxUploads)}
	s.exchange = exchange.Config{WriteTimeout: cfg.WriteTimeout, BodyTimeout: cfg.BodyTimeout, UnreadTimeout: cfg.UnreadTimeout, MaxBody: cfg.MaxBody, Stopping: cfg.Stopping, Logger: cfg.Logger}
	s.entry = door.New(door.Config{
		Tokens: cfg.Store, Hosts: cfg.Hosts, Proxies: cfg.Proxies, Audit: cfg.Audit, Logger: cfg.Logger,
		AuthFailures: cfg.AuthFailures, PeerRate: cfg.PeerRate, TokenRate: cfg.TokenRate, MaxRequests: cfg.MaxRequests,
	})
	s.senders = gate.NewPlaces(cfg.MaxEvents)
	routes := table()
	s.openapi = sync.OnceValues(func() ([]byte, error) { return openapi.Document(operations(routes), cfg.Version) })
	mux := s.newMux(routes, false)
	return &Handler{server: s, mux: mux, door: s.guarded(mux, false)}, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.server.exchange.Timed(h.door, w, r)
}

// Local is the door of a unix socket with mode 0600: who can open it needs no
// token and is an administrator of all users. A token that is sent all the
// same counts, so that a narrower one narrows here too.
func (h *Handler) Local() http.Handler {
	guarded := h.server.guarded(h.server.newMux(table(), true), true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.server.exchange.Timed(guarded, w, r) })
}

// Start begins to write down, beside the requests, what they leave to be noted.
// Without it that stays in memory, in bounded room.
func (h *Handler) Start() { h.server.entry.Start() }

// Stop writes down what is left. The handler goes on answering; what it notes
// from then on is lost.
func (h *Handler) Stop(ctx context.Context) { h.server.entry.Stop(ctx) }

// Subscribers is how many event streams are open now.
func (h *Handler) Subscribers() int { return int(h.server.readers.Load()) }

// places are those of open streams and waits. One token has four fifths of them at
// most, and so has all of the unix socket, so that who keeps all of its own open
// shuts out itself.
type places struct {
	most int

	mu     sync.Mutex
	taken  int
	shares map[string]int // by the hash of the token
}

func (p *places) take(who string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.most:
		return errBusy
	case p.shares[who] >= p.most-p.most/5:
		return errShare
	}
	if p.shares == nil {
		p.shares = map[string]int{}
	}
	p.taken++
	p.shares[who]++
	return nil
}

func (p *places) give(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.shares[who]--; p.shares[who] == 0 {
		delete(p.shares, who)
	}
}

// count is how many are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// acquire takes a place among the open streams and waits; an error when there is none.
func (c *call) acquire() error { return c.streams.take(c.Who.Token()) }

func (c *call) release() { c.streams.give(c.Who.Token()) }
