// Package daemon is the wiring: it alone knows all rooms and adapters, makes
// them from the configuration, and starts and stops them in order.
package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/bus"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/headroom"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sessions"
	"github.com/holdfast-dev/holdfast/internal/jobs"
	"github.com/holdfast-dev/holdfast/internal/lane"
	"github.com/holdfast-dev/holdfast/internal/ledger"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/otlp"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/snapshot"
	"github.com/holdfast-dev/holdfast/internal/tenure"
	"github.com/holdfast-dev/holdfast/internal/tool"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// Store is what the rooms share.
type Store interface {
	eventlog.Log
	eventlog.Views
	eventlog.Tokens
	eventlog.Secrets
	eventlog.Assets
	eventlog.Snapshots
	eventlog.Nodes
}

// backend is a store as the daemon opened it.
type backend interface {
	Store
	Waiting() int // appends that wait
	Close(ctx context.Context) error
}

// Options are what a test or a door adds to the configuration.
type Options struct {
	Logger *slog.Logger
	// Random is the one source of ids, salts, tokens and jitter; safe for
	// concurrent use. Default crypto/rand.
	Random io.Reader
	// WrapStore puts something between the rooms and the store: faults, in tests.
	WrapStore func(Store) Store
	// WrapTerm puts something between the work and the lease that it asks: counts, and faults, in tests.
	WrapTerm func(eventlog.Term) eventlog.Term
	// Store is a store that is open already, and that several daemons of one
	// process may share; it is not closed. Whoever gives it calls Committed and
	// Heard. Lease is then how long a lease runs.
	Store Store
	Lease time.Duration
	// Model and Send replace the adapters of models and the sender of webhooks,
	// SnapshotEvery the number of events between two snapshots of a session, in tests.
	Model         func(event.Route) (llm.Model, error)
	Send          delivery.Sender
	SnapshotEvery int64
	// Far is a way to other nodes for live deltas in place of a bus, in tests.
	Far func(*live.Hub) live.Far
	// ModelTransport and Dial replace the network, in tests.
	ModelTransport http.RoundTripper
	Dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	// Free replaces the question to the disk for its free bytes, in tests.
	Free func() (uint64, bool)
	// Resolver replaces the system's name service in all guarded ways out, in tests.
	Resolver *net.Resolver
	// Tools are added to the configured ones.
	Tools []tool.Tool
	// Stdout is where targets of type stdout write; default the process's own. Roots
	// are the authorities that mail servers are trusted by; default the system's.
	Stdout io.Writer
	Roots  *x509.CertPool
}

// Daemon is one process life of a node.
type Daemon struct {
	cfg       *config.Config
	log       *slog.Logger
	random    io.Reader
	backend   backend // nil: the store is somebody else's
	store     Store
	node      eventlog.Node // this process life
	tenure    *tenure.Tenure
	room      *headroom.Room
	hub       live.Hub
	lane      *lane.Lane
	snapshots *snapshot.Room
	files     *files // nil: no snapshots of workspaces are made
	delivery  *delivery.Room
	jobs      *jobs.Room
	ledger    *ledger.Ledger
	routes    *routes
	secrets   *slots.Room
	intake    *admission.Admission
	closers   []func()
	http      *httpapi.Handler
	stopping  chan struct{}
	chores    chores
	metrics   *metrics.Metrics
	exporter  *otlp.Exporter // nil: nothing is sent
	bus       *bus.Bus       // nil: there is none
	far       bool           // deltas go another way than over a bus
	wired     atomic.Bool    // the rooms are made; until then there is nobody to tell

	// Of a cluster: other nodes use the store too.
	shared bool

	mu      sync.Mutex
	ready   bool
	closed  bool // the door: no listener is answered any more
	servers []*http.Server
	conns   conns
	serving sync.WaitGroup

	ending  bool          // Stop was called
	ended   chan struct{} // closed when it is done
	stopErr error
}

// Open locks the data directory, opens the log and wires the rooms. Nothing
// works yet: see Start. A directory that another daemon holds is refused with
// its process id.
func Open(ctx context.Context, cfg *config.Config, opt Options) (*Daemon, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Random == nil {
		opt.Random = rand.Reader
	}
	d := &Daemon{log: opt.Logger, random: opt.Random, stopping: make(chan struct{}), ended: make(chan struct{})}
	d.watched(cfg)
	d.metrics = d.newMetrics()
	if err := d.newNode(opt); err != nil {
		return nil, err
	}
	if err := d.openStore(ctx, opt); err != nil {
		return nil, err
	}
	err := d.openSecrets(ctx, opt)
	if err == nil {
		err = d.wire(ctx, opt)
	}
	if err != nil {
		for _, c := range d.closers {
			c()
		}
		return nil, errors.Join(err, d.closeStore(ctx))
	}
	d.wired.Store(true)
	return d, nil
}

// wire makes the rooms.
func (d *Daemon) wire(ctx context.Context, opt Options) error {
	guard, err := targetGuard(d.cfg, &opt)
	if err != nil {
		return fmt.Errorf("network guard: %w", err)
	}
	tools, closers, err := makeTools(d.cfg, &opt)
	if err != nil {
		return err
	}
	d.closers = closers
	set, err := tool.NewSet(append(tools, opt.Tools...)...)
	if err != nil {
		return err
	}
	if d.routes, err = newRoutes(d.cfg, &opt); err != nil {
		return err
	}
	d.closers = append(d.closers, d.routes.closeIdle)
	seed, err := seed(opt.Random)
	if err != nil {
		return err
	}
	d.newTenure(opt, tools)
	if d.exporter, err = d.newExporter(opt); err != nil {
		return err
	}
	if err := d.openBus(opt); err != nil {
		return err
	}
	l := d.cfg.Limits
	d.snapshots = snapshot.New(snapshot.Config{Store: d.store, Logger: d.log, Every: opt.SnapshotEvery})
	if d.files, err = newFiles(d.cfg, &opt); err != nil {
		return err
	}
	var filed engine.Files
	var shown sessions.Files
	if d.files != nil {
		d.closers = append(d.closers, d.files.store.Close)
		shown = d.files
		if d.files.makes {
			filed = d.files
		}
	}
	model := d.routes.get
	if opt.Model != nil {
		model = opt.Model
	}
	leased := leased{d.tenure, opt.WrapTerm}
	eng := engine.New(engine.Config{
		Log: d.store, Snapshots: d.snapshots, Files: filed, Hub: &d.hub, Tools: set, Model: model, Takes: d.routes.takes, Node: d.tenure.Node(),
		Rand: mathrand.New(seed()), Logger: d.log, Held: d.room.Held,
		ModelTimeout: l.ModelTimeout.Or(0), ToolTimeout: l.ToolTimeout.Or(0),
		MaxAnswer: l.AnswerBytes, MaxToolOutput: l.ToolOutputBytes, MaxParallel: l.ParallelTools,
	})
	d.lane = lane.New(lane.Config{
		Driver: eng, Tenure: leased, Take: d.store.Take, Logger: d.log, MaxActive: l.ActiveSessions, CacheSize: l.CachedSessions, CacheBytes: l.CachedBytes,
	})
	ways, err := newWays(d.cfg, guard, d.store, d.secrets.Use, &opt)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, ways.close)
	waiting, err := ways.pinFallback(ctx)
	if err != nil {
		return err
	}
	for _, f := range waiting {
		d.log.Warn("a fallback waits for its secret; runs that would use it are refused until it is set with holdfast secrets set", "key", f.key, "secret", f.slot, "why", f.why)
	}
	send := ways.send
	if opt.Send != nil {
		send = opt.Send
	}
	d.delivery = delivery.New(deliveryConfig(d.cfg, delivery.Config{
		Store: d.store, Tenure: leased, Send: send, Rand: mathrand.New(seed()), Logger: d.log, Held: d.room.Held,
	}))
	d.newLetters(leased, ways)
	compaction, err := d.routes.compaction()
	if err != nil {
		return err
	}
	d.intake = admission.New(admission.Config{
		Store: d.store, Tools: set, Route: d.routes.resolve, Takes: d.routes.takes, Compaction: compaction, CheckTarget: ways.usable, Fallback: ways.fallback, TryTarget: ways.try, Forget: forget(d.cfg, d.files), Owner: d.lane, Random: opt.Random,
		Limits: admission.Limits{InputBytes: l.InputBytes, ParallelTools: l.ParallelTools, QueuedRuns: l.QueuedRuns, PlanTime: d.cfg.Delivery.PlanTime.Or(0), OpenPlans: d.cfg.Delivery.OpenPlans, Hops: d.cfg.Targets.MaxHops, AssetBytes: int64(l.AssetBytes), UserAssetBytes: int64(l.UserAssetBytes)},
	})
	ways.answer = d.intake.Answer // before anything is sent
	d.conns.most = cmp.Or(l.Connections, defaultConnections)
	hosts, cerr := d.cfg.Hosts()
	if cerr != nil {
		return cerr
	}
	proxies, cerr := d.cfg.Proxied()
	if cerr != nil {
		return cerr
	}
	connectors, err := d.makeConnectors(ctx)
	if err != nil {
		return err
	}
	d.http, err = httpapi.New(httpapi.Config{
		Store: d.store, Admission: d.intake, Hub: &d.hub, Connectors: connectors, Routes: d.routes.list(), Tools: listTools(set), Version: version.String(),
		SigningKey: ways.signingKey, Live: d.whereLive, WriteTimeout: l.StreamWrite.Or(0),
		Ready: d.isReady, Metrics: d.metrics.Text, Files: shown, Secrets: d.secrets, Price: d.price, Logger: d.log, Stopping: d.stopping, MaxBody: int64(l.RequestBytes), MaxAsset: int64(l.AssetBytes), MaxStreams: l.Streams, Random: opt.Random,
		Hosts: hosts, Proxies: proxies, Audit: eventlog.Audited{Log: d.store}, BodyTimeout: l.BodyTimeout.Or(0),
		AuthFailures: l.AuthFailures, PeerRate: l.PeerRate, TokenRate: l.TokenRate, MaxRequests: l.Requests, MaxEvents: l.Events,
		TokenExpiry: d.cfg.Tokens.Expiry.Or(0), MaxTokenExpiry: d.cfg.Tokens.MaxExpiry.Or(0),
	})
	return err
}

// seed gives sources of jitter, seeded from the one source of chance.
func seed(random io.Reader) (func() mathrand.Source, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return nil, fmt.Errorf("draw seed: %w", err)
	}
	hi, lo := binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
	return func() mathrand.Source { lo++; return mathrand.NewPCG(hi, lo) }, nil
}

func (d *Daemon) isReady() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.ready:
		return errors.New("starting or stopping")
	case !d.tenure.Held():
		return errors.New("the lease has no time left: the database cannot be reached, or this process was held up")
	}
	return d.room.Ready()
}

// Start begins the work: recovery goes on in the background.
func (d *Daemon) Start(ctx context.Context) error {
	if d.exporter != nil {
		d.exporter.Start()
	}
	if err := d.tenure.Start(ctx); err != nil {
		return fmt.Errorf("register the node: %w", err)
	}
	d.room.State() // tells of a disk that is full before anybody asks
	d.lane.Start()
	d.delivery.Start()
	d.jobs.Start()
	d.chores.start(d)
	d.startBus()
	d.missSlots(ctx)
	d.http.Start()
	d.mu.Lock()
	d.ready = true
	d.mu.Unlock()
	return nil
}

// Handler is the HTTP door. local: for a listener that wants no token.
func (d *Daemon) Handler(local bool) http.Handler {
	if local {
		return d.http.Local()
	}
	return d.http
}

// Serve answers a listener until Stop. It returns at once. local: only the
// daemon's own user can reach it.
func (d *Daemon) Serve(l net.Listener, local bool) { d.serve(l, local, nil) }

// ServeTLS is Serve of a listener that speaks TLS, HTTP/2 too.
func (d *Daemon) ServeTLS(l net.Listener, conf *tls.Config) { d.serve(l, false, conf) }

// defaultHeader is what of a request's header is read, in bytes.
const defaultHeader = 64 << 10

func (d *Daemon) serve(l net.Listener, local bool, conf *tls.Config) {
	lim := d.cfg.Limits
	srv := &http.Server{
		Handler: d.Handler(local), ReadHeaderTimeout: lim.HeaderTimeout.Or(10 * time.Second), IdleTimeout: 2 * time.Minute, MaxHeaderBytes: cmp.Or(lim.HeaderBytes, defaultHeader),
		ConnState: d.conns.track, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug), TLSConfig: conf,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		l.Close()
		return
	}
	d.servers = append(d.servers, srv)
	d.serving.Go(func() {
		serve := srv.Serve
		if conf != nil {
			serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("serve", "err", err)
		}
	})
}

// doorPatience is how long answers that are being written hold up a stop, once
// work, streams and waits are over.
const doorPatience = 3 * time.Second

// Stop ends in order: readiness, then work within the drain, then streams and
// waits, then the door, then the log. While work drains the door answers: who
// follows a run sees it end. Work that is cut is in doubt, exactly as after a
// crash; nothing is cancelled. Another Stop waits for the first and gives its
// error.
func (d *Daemon) Stop(ctx context.Context) error {
	d.mu.Lock()
	first := !d.ending
	d.ending = true
	d.mu.Unlock()
	if first {
		d.stopErr = d.stop(ctx)
		close(d.ended)
	}
	<-d.ended
	return d.stopErr
}

func (d *Daemon) stop(ctx context.Context) error {
	d.mu.Lock()
	d.ready = false
	d.mu.Unlock()
	d.intake.Stop()
	d.tenure.Drain()
	drain, cancel := context.WithTimeout(ctx, d.cfg.Shutdown.Drain.Or(20*time.Second))
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { d.lane.Stop(drain) })
	work.Go(func() { d.delivery.Stop(drain) })
	work.Go(func() { d.jobs.Stop(drain) })
	work.Wait()
	d.chores.stop()
	d.tenure.Stop(context.WithoutCancel(ctx)) // what is left belongs to whoever comes
	d.snapshots.Stop(drain)
	d.hub.Wait()
	d.stopBus()
	d.closeDoor(ctx)
	d.http.Stop(context.WithoutCancel(ctx))
	for _, c := range d.closers {
		c()
	}
	d.stopExporter(ctx)
	return d.closeStore(ctx)
}

// closeDoor ends streams and waits, then the servers when they have answered.
func (d *Daemon) closeDoor(ctx context.Context) {
	close(d.stopping)
	d.mu.Lock()
	d.closed = true
	servers := d.servers
	d.mu.Unlock()
	d.conns.close()
	patience, cancel := context.WithTimeout(ctx, doorPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			if s.Shutdown(patience) != nil {
				s.Close()
			}
		})
	}
	wg.Wait()
	d.serving.Wait()
}
