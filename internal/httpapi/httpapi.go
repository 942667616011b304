// Package httpapi is the HTTP door of the daemon: it reads requests strictly,
// finds out who asks, hands commands to admission, shows rows and the log as
// the types of package api, and follows the log for streams. It decides
// nothing and keeps nothing of its own but open streams.
//
// One table of routes makes the mux, the OpenAPI document and the reference
// page. It is put together here of what the packages below answer for: an exchange
// is one request and its answer, the door says who is let in, a call is on its way
// to who answers it, and those are sessions, runs, logs, sse (streams), deliveries,
// connectors and admin.
package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/admin"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/httpapi/deliveries"
	"github.com/holdfast-dev/holdfast/internal/httpapi/door"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/runs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sessions"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sse"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// Store is everything that the door reads, and the tokens, which it writes. It
// never appends.
type Store interface {
	sessions.Store
	runs.Store
	logs.Store
	sse.Store
	deliveries.Store
	admin.Store
}

// Config says what the door serves. The zero value of what has a default means it.
type Config struct {
	Store     Store
	Admission *admission.Admission
	Hub       *live.Hub
	Routes    []api.Route // inventory, as shown
	Tools     []api.Tool  // inventory, as shown
	// Connectors take events from outside.
	Connectors connectors.Set
	Version    string
	// Files compare snapshots of workspaces. Nil: this node has none.
	Files sessions.Files
	// Secrets is the room of secret slots. Nil: there are none.
	Secrets admin.Secrets
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
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 10*time.Second)
	c.MaxWait = cmp.Or(c.MaxWait, 60*time.Second)
	c.BodyTimeout = cmp.Or(c.BodyTimeout, 30*time.Second)
	c.UnreadTimeout = cmp.Or(c.UnreadTimeout, 10*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 2<<20)
	c.MaxAsset = cmp.Or(c.MaxAsset, 20<<20)
	c.MaxUploads = cmp.Or(c.MaxUploads, 8)
	c.MaxStreams = cmp.Or(c.MaxStreams, 20_000)
	c.AuthFailures = cmp.Or(c.AuthFailures, 10)
	c.PeerRate = cmp.Or(c.PeerRate, 100)
	c.TokenRate = cmp.Or(c.TokenRate, 10_000)
	c.MaxRequests = cmp.Or(c.MaxRequests, 1024)
	c.MaxEvents = cmp.Or(c.MaxEvents, 64)
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

// Handler serves the API. As it is, it wants a token for everything but the
// public operations; Local is the same door for a listener that only the
// daemon's own user can reach.
type Handler struct {
	rooms
	calls *call.Server
	door  *door.Door
	table []call.Route
	mux   *http.ServeMux
	tcp   http.Handler
}

// New makes the handler. A Config that cannot work is an error.
func New(cfg Config) (*Handler, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	h := &Handler{door: door.New(door.Config{
		Tokens: cfg.Store, Hosts: cfg.Hosts, Proxies: cfg.Proxies, Audit: cfg.Audit, Logger: cfg.Logger,
		AuthFailures: cfg.AuthFailures, PeerRate: cfg.PeerRate, TokenRate: cfg.TokenRate, MaxRequests: cfg.MaxRequests,
	})}
	h.calls = call.New(call.Config{
		Exchange: exchange.Config{WriteTimeout: cfg.WriteTimeout, BodyTimeout: cfg.BodyTimeout, UnreadTimeout: cfg.UnreadTimeout, MaxBody: cfg.MaxBody, Stopping: cfg.Stopping, Logger: cfg.Logger},
		Door:     h.door, MaxWait: cfg.MaxWait, MaxStreams: cfg.MaxStreams,
	})
	h.rooms = rooms{
		sessions:   &sessions.Handlers{Admission: cfg.Admission, Store: cfg.Store, Files: cfg.Files},
		runs:       runs.New(runs.Config{Admission: cfg.Admission, Store: cfg.Store, Hub: cfg.Hub, Price: cfg.Price, MaxAsset: cfg.MaxAsset, MaxUploads: cfg.MaxUploads}),
		logs:       &logs.Handlers{Admission: cfg.Admission, Store: cfg.Store},
		streams:    sse.New(sse.Config{Admission: cfg.Admission, Store: cfg.Store, Hub: cfg.Hub, Live: cfg.Live, Heartbeat: cfg.Heartbeat}),
		deliveries: &deliveries.Handlers{Admission: cfg.Admission, Store: cfg.Store, SigningKey: cfg.SigningKey},
		connectors: connectors.New(connectors.Config{Set: cfg.Connectors, Admission: cfg.Admission, MaxEvents: cfg.MaxEvents}),
		admin: admin.New(admin.Config{
			Store: cfg.Store, Forget: h.door.Forget, Secrets: cfg.Secrets, Routes: cfg.Routes, Tools: cfg.Tools, Version: cfg.Version, Ready: cfg.Ready, Metrics: cfg.Metrics,
			// The document is made when somebody asks for it.
			OpenAPI: sync.OnceValues(func() ([]byte, error) { return openapi.Document(operations(h.table), cfg.Version) }),
			Random:  cfg.Random, TokenExpiry: cfg.TokenExpiry, MaxTokenExpiry: cfg.MaxTokenExpiry,
		}),
	}
	h.table = h.rooms.table()
	h.mux = h.calls.Mux(h.table, false)
	h.tcp = h.calls.Handler(h.mux, false)
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.tcp.ServeHTTP(w, r) }

// Local is the door of a unix socket with mode 0600: who can open it needs no
// token and is an administrator of all users. A token that is sent all the
// same counts, so that a narrower one narrows here too.
func (h *Handler) Local() http.Handler { return h.calls.Handler(h.calls.Mux(h.table, true), true) }

// Start begins to write down, beside the requests, what they leave to be noted.
// Without it that stays in memory, in bounded room.
func (h *Handler) Start() { h.door.Start() }

// Stop writes down what is left. The handler goes on answering; what it notes
// from then on is lost.
func (h *Handler) Stop(ctx context.Context) { h.door.Stop(ctx) }

// Subscribers is how many event streams are open now.
func (h *Handler) Subscribers() int { return h.streams.Readers() }
