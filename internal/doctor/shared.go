package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// slowCommit is a commit from which on a run is felt to wait for it: it makes a
// good ten of them.
const slowCommit = 20 * time.Millisecond

// shared looks at the database that several nodes share.
func (p *patient) shared(ctx context.Context) {
	var err error
	if p.glance.PID, p.glance.Held, err = dirlock.Holder(p.dir); err != nil {
		p.add("data directory", Fail, "see that it belongs to the daemon's user", "%v", err)
	}
	const check = "database"
	address, err := p.cfg.Database()
	if err != nil {
		p.add(check, Fail, "set what database_url refers to", "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	mode := postgres.SyncFull
	if p.cfg.Store.Sync == "normal" {
		mode = postgres.SyncNormal
	}
	g, err := postgres.Look(ctx, postgres.Config{URL: address, Sync: mode, Rows: eventlog.Rows, Generation: p.RowsVersion})
	var wrong *postgres.SetupError
	switch {
	case errors.As(err, &wrong):
		p.add(check, Fail, "mend that, or name another database in database_url", "%v", wrong)
		return
	case errors.As(err, new(*postgres.UnreachableError)):
		p.add(check, Fail, "see that database_url is right, that the server runs, and that this machine may reach it; a start waits store.wait for it", "%v", err)
		return
	case err != nil:
		p.add(check, Fail, "see the server's log", "%v", err)
		return
	}
	p.tables(&g)
	p.settings(&g)
	p.commits(&g)
	p.news(&g)
	p.skew(&g)
	p.nodes(&g)
	p.roots(&g)
}

// tables says whether this program may use what is there.
func (p *patient) tables(g *postgres.Glance) {
	where := fmt.Sprintf("PostgreSQL %s at %s, schema %s", g.Server, g.At, g.Schema)
	const check = "database"
	switch {
	case g.Tables == 0:
		p.add(check, OK, "", "%s: there are no tables yet; the first start makes them", where)
	case g.Tables > g.KnownTables || g.Rows > p.RowsVersion:
		p.add(check, Fail, "run the newer program; an older one must not touch what a newer one has written",
			"%s: a newer version of holdfast has written it (tables %d, rows %d; this program knows %d and %d)", where, g.Tables, g.Rows, g.KnownTables, p.RowsVersion)
	case g.Tables < g.KnownTables || g.Rows < p.RowsVersion:
		p.add(check, Warn, "make a backup before the first node of this version starts, which brings it up to date; nodes of the older one end their work then",
			"%s: an older version of holdfast has written it (tables %d, rows %d; this program makes %d and %d)", where, g.Tables, g.Rows, g.KnownTables, p.RowsVersion)
	default:
		p.add(check, OK, "", "%s: its tables are of version %d, as this program makes them", where, g.Tables)
	}
}

// settings says what the server promises.
func (p *patient) settings(g *postgres.Glance) {
	const check = "database"
	text := fmt.Sprintf("synchronous_commit %s, fsync %s, encoding %s, default isolation %s (every transaction of holdfast says its own)", g.Sync, g.Fsync, g.Encoding, g.Isolation)
	switch {
	case g.Fsync != "on":
		p.add(check, Warn, "turn fsync on, unless all of it may be lost", "%s: a crash of the server's machine may destroy it", text)
	case p.cfg.Store.Sync == "normal":
		p.add(check, Warn, "take store.sync: normal out if that may not be", "%s; with store.sync: normal a crash of the server may take what was acknowledged last", text)
	default:
		p.add(check, OK, "", "%s", text)
	}
	if !p.glance.Held && g.Free < g.PerNode {
		p.add("connections", Warn, "raise max_connections, lower pool_max_conns in database_url, or put a pooler before the server",
			"of %d connections of the server about %d are free; a node takes up to %d", g.Conns, max(g.Free, 0), g.PerNode)
	} else {
		p.add("connections", OK, "", "of %d connections of the server about %d are free; a node takes up to %d", g.Conns, max(g.Free, 0), g.PerNode)
	}
}

// commits says what a commit costs.
func (p *patient) commits(g *postgres.Glance) {
	text := fmt.Sprintf("half of the commits took at most %s, the longest %s. One client alone gets up to %d a second; many at once share them",
		short(g.Median), short(g.Longest), perSecond(g.Median))
	if g.Median > slowCommit {
		p.add("commit", Warn, "bring the nodes nearer to the database, or look at its disk and at synchronous standbys", "%s", text)
		return
	}
	p.add("commit", OK, "", "%s", text)
}

// news says how a node hears of the others.
func (p *patient) news(g *postgres.Glance) {
	const check = "news"
	switch {
	case g.Pooled:
		p.add(check, OK, "", "a connection pooler stands before the server: nothing is announced through it, and nodes look for each other's work once a second")
	case g.HeardErr != nil:
		p.add(check, Warn, "see whether something between here and the server cuts connections that are quiet; nodes look for each other's work once a second meanwhile",
			"LISTEN does not work: %v", g.HeardErr)
	default:
		p.add(check, OK, "", "LISTEN works: a notification came in %s", short(g.Heard))
	}
}

// skew says how far the clocks are apart. Leases do not go by it.
func (p *patient) skew(g *postgres.Glance) {
	const check = "database clock"
	const harmless = "leases do not mind, they go by the database's clock there and by time that passes here"
	switch off := g.Ahead.Abs(); {
	case off > skewNote:
		how := "ahead of"
		if g.Ahead < 0 {
			how = "behind"
		}
		p.add(check, Warn, "set both clocks, and keep them right (NTP): times in lists and logs do not fit each other, and signatures and planned retries go by them",
			"it is %s %s this machine's; %s", off.Round(time.Second), how, harmless)
	default:
		p.add(check, OK, "", "within %s of this machine's; %s", max(off.Round(time.Millisecond), time.Millisecond), harmless)
	}
}

// nodes says who lives.
func (p *patient) nodes(g *postgres.Glance) {
	const check = "nodes"
	var alive, versions []string
	lost := 0
	for i := range g.Nodes {
		switch n := &g.Nodes[i]; {
		case n.Alive:
			alive = append(alive, fmt.Sprintf("%s (%s, %d of %d sessions)", n.Name, n.Version, n.Active, n.Most))
			if !slices.Contains(versions, n.Version) {
				versions = append(versions, n.Version)
			}
		case !n.Released:
			lost++
		}
	}
	text := "none is there now"
	if len(alive) > 0 {
		text = fmt.Sprintf("%d there: %s", len(alive), strings.Join(alive, ", "))
	}
	if lost > 0 {
		p.add(check, Warn, "see their logs; holdfast nodes names them", "%s; in the last hour %d ended without giving their lease back", text, lost)
		return
	}
	if len(versions) > 1 {
		p.add(check, Warn, "end the upgrade: an older node is handed no session that a newer one has owned", "%s; they are of different versions", text)
		return
	}
	p.add(check, OK, "", "%s; a lease runs %s", text, p.cfg.Lease.TTL.Or(config.DefaultLease))
}

// roots says which nodes see the files of each workspace, and whether work waits
// for one that does.
func (p *patient) roots(g *postgres.Glance) {
	const check = "workspaces"
	if g.Rootless > 0 {
		p.add(check, Warn, "start a node that has them, or give one the folder with its file .holdfast-root",
			"sessions with work whose files no node sees that is there: %d; they wait", g.Rootless)
	}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Tools)) {
		t := p.cfg.Tools[name]
		if t.Type != "workspace" {
			continue
		}
		id, err := workspace.Identity(p.cfg.Path(t.Root))
		if err != nil {
			p.add(check, Fail, "delete the file, and a new one is made: sessions that worked there then go on nowhere; or put the right one back", "%s: %v", name, err)
			continue
		}
		var without []string
		with := 0
		for i := range g.Nodes {
			switch n := &g.Nodes[i]; {
			case !n.Alive:
			case id != "" && slices.Contains(n.Roots, id):
				with++
			default:
				without = append(without, n.Name)
			}
		}
		switch {
		case id == "":
			p.add(check, OK, "", "%s: the root is new; the first start gives it an identity", name)
		case len(without) > 0:
			p.add(check, Warn, "share the folder, with its file .holdfast-root, if those nodes are to go on with such sessions",
				"%s: %d of %d nodes see these files; sessions that worked in them are not handed to %s", name, with, with+len(without), strings.Join(without, ", "))
		case with == 0:
			p.add(check, OK, "", "%s: no node is there now", name)
		default:
			p.add(check, OK, "", "%s: every node sees these files (%d)", name, with)
		}
	}
}
