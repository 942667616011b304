// Package door says who is let in: under which names and for which pages the
// daemon is asked, who asks, how often they may, and what stands on record of those
// who were turned away. What they ask for is not its matter.
package door

import (
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// Config says who is let in. No number may be zero.
type Config struct {
	Tokens eventlog.Tokens
	// Hosts are the names under which the daemon may be asked besides those of loopback.
	Hosts gate.Hosts
	// Proxies are those through which alone it is asked. Nil: there are none.
	Proxies *gate.Proxies
	// Audit takes records of who was turned away, and of changes. Nil: nobody does.
	Audit  eventlog.Auditor
	Logger *slog.Logger

	AuthFailures int // tokens that are not good, from one peer, within a minute
	PeerRate     int // requests without a token, from one peer, within a second
	TokenRate    int // requests with one token within a second
	MaxRequests  int // that are answered at once
}

const (
	// maxPeers and maxRated bound the tables of rates.
	maxPeers = 8192
	maxRated = 8192
	// rateBurst is how many seconds' worth may come at once.
	rateBurst = 2
	// penaltyLookups is how many tokens are looked up at once for peers with too many failures.
	penaltyLookups = 2
)

// Door is what all requests pass. It is safe for concurrent use.
type Door struct {
	cfg       Config
	tokens    tokens.Cache
	requests  chan struct{}           // one element for each request that is answered
	lookups   chan struct{}           // one element for each token that is looked up of a peer with too many failures
	failures  *gate.Rates[netip.Addr] // tokens that are not good, by peer
	strangers *gate.Rates[netip.Addr] // requests without a token, by peer
	rates     *gate.Rates[string]     // requests with a token, by its id
	refusals  gate.Refusals
	keeper    keeper
}

// New makes a door.
func New(cfg Config) *Door {
	now := time.Now()
	return &Door{
		cfg: cfg, requests: make(chan struct{}, cfg.MaxRequests), lookups: make(chan struct{}, penaltyLookups),
		failures:  gate.NewRates[netip.Addr](time.Minute, cfg.AuthFailures, cfg.AuthFailures, maxPeers, now),
		strangers: gate.NewRates[netip.Addr](time.Second, cfg.PeerRate, rateBurst*cfg.PeerRate, maxPeers, now),
		rates:     gate.NewRates[string](time.Second, cfg.TokenRate, rateBurst*cfg.TokenRate, maxRated, now),
		keeper:    keeper{woken: make(chan struct{}, 1), stop: make(chan struct{})},
	}
}

// Forget takes a token that was revoked out of what is known, at once.
func (d *Door) Forget(id string) { d.tokens.Forget(id) }

// Caller is who asks, and what they may do.
type Caller struct {
	admission.Caller
	Role  gate.Role
	token tokens.Presented // zero: they came by the unix socket, without one
}

// Token tells callers apart who hold the same places: the digest of the token, or
// nothing for all of the unix socket.
func (c *Caller) Token() string { return c.token.Hash }

// Visit is one request at the door, and who came with it.
type Visit struct {
	// Who is known from Authenticate on. Of a token that was refused it is the actor, for the record.
	Who Caller
	// Why says for the record what a refusal does not tell whom it refuses.
	Why string

	door   *Door
	r      *http.Request
	local  bool // it came by the unix socket, which no browser and no other host can reach
	inside bool // it has a place among the requests
}

// Visit begins a visit. local: it came by the unix socket.
func (d *Door) Visit(r *http.Request, local bool) Visit { return Visit{door: d, r: r, local: local} }
