// Package doctor looks at everything that a daemon needs before it runs, and at
// one that runs: configuration, secrets, data directory, disk, clock, listener,
// database, bus and the way to the models. Each finding says what to do. It changes
// nothing but a file of its own in the data directory, which it takes away again,
// and no secret is in what it tells.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// Level says how a check came out.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, and may not be meant so
	Fail Level = "fail" // it does not work
)

// Finding is the outcome of one check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what to do about it
}

// Input is what is looked at.
type Input struct {
	Config *config.Config
	// Warnings and Mistakes are what a check of the configuration found, beyond
	// the form of its file.
	Warnings, Mistakes []string
	Private            []string // further files that nobody else may read, where they exist
	// Vendors is the way to the vendors' servers; nil: to public addresses only.
	Vendors     http.RoundTripper
	Online      bool   // ask vendors for their models, with the key
	Version     string // of this program
	RowsVersion int    // of the derived rows that this program makes
	// Running asks the daemon that holds the data directory for its version. Nil: it is not asked.
	Running func(context.Context) (version string, err error)

	SyncCount int           // syncs to measure; default 200
	Timeout   time.Duration // of one exchange with a server, or of all with the database; default 10 s
}

// patient is one examination.
type patient struct {
	Input
	cfg    *config.Config
	dir    string
	glance sqlite.Glance
	client *wire.Client
	found  []Finding
}

// vendors is the way to vendors; nil: public addresses only.
func vendors(way http.RoundTripper) *http.Client {
	if way == nil {
		return nil
	}
	return &http.Client{Transport: way}
}

// Examine makes all checks, in the order in which they are told.
func Examine(ctx context.Context, in Input) []Finding {
	if in.SyncCount == 0 {
		in.SyncCount = 200
	}
	if in.Timeout == 0 {
		in.Timeout = 10 * time.Second
	}
	p := &patient{Input: in, cfg: in.Config, dir: in.Config.Path(in.Config.DataDir), client: wire.NewClient(vendors(in.Vendors), wire.Limits{FirstByte: in.Timeout})}
	p.configuration()
	p.secrets()
	p.connectors()
	p.directory()
	began := time.Now()
	p.space()
	if p.cfg.DatabaseURL.Set() {
		p.shared(ctx)
	} else {
		p.sync()
		p.database(ctx)
	}
	p.clock(began, time.Now())
	p.daemon(ctx)
	p.listener()
	p.certificate()
	p.bus(ctx)
	p.routes(ctx)
	return p.found
}

// Worst is the worst level of findings.
func Worst(found []Finding) Level {
	worst := OK
	for _, f := range found {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func (p *patient) add(check string, level Level, do, format string, args ...any) {
	p.found = append(p.found, Finding{check, level, fmt.Sprintf(format, args...), do})
}

func (p *patient) configuration() {
	for _, m := range p.Mistakes {
		p.add("configuration", Fail, "mend the file at that place; docs/reference/config.md has every key", "%s", m)
	}
	for _, w := range p.Warnings {
		if !ofSecrets(w) && !p.told(w) && !strings.HasPrefix(w, "connectors.") {
			p.add("configuration", Warn, "change it if that is not meant; the daemon starts with it", "%s", w)
		}
	}
	if len(p.Mistakes) == 0 {
		p.add("configuration", OK, "", "%s is good; routes: %d, tools: %d", p.cfg.File(), len(p.cfg.Routes), len(p.cfg.Tools))
	}
}

// database says what is there, and whether this program may use it.
func (p *patient) database(ctx context.Context) {
	var err error
	p.glance, err = sqlite.Look(ctx, p.dir)
	g := &p.glance
	var damaged *sqlite.DamagedError
	switch {
	case errors.As(err, &damaged) && !g.Exists:
		p.add("database", Fail, damaged.Advice(), "%s: %s", sqlite.DatabaseFile, damaged.What)
	case damaged != nil:
		p.add("database", Fail, "keep the directory as it is and restore the newest backup into another one; docs/operate.md, Damage, has the steps", "%v", err)
	case err != nil:
		p.add("database", Fail, "see that the directory and its files belong to the daemon's user; then stop the daemon and run holdfast verify", "%v", err)
	case !g.Exists:
		p.add("database", OK, "", "there is none yet; the first start makes it")
	case g.Schema > g.KnownSchema || g.Rows > p.RowsVersion:
		p.add("database", Fail, "run the newer program; an older one must not touch what a newer one has written",
			"a newer version of holdfast has written it (tables %d, rows %d; this program knows %d and %d)", g.Schema, g.Rows, g.KnownSchema, p.RowsVersion)
	case g.Schema < g.KnownSchema || g.Rows < p.RowsVersion:
		p.add("database", Warn, "make a backup before the next start, which brings it up to date; older programs cannot use it afterwards",
			"an older version of holdfast has written it (tables %d, rows %d; this program makes %d and %d)", g.Schema, g.Rows, g.KnownSchema, p.RowsVersion)
	default:
		p.add("database", OK, "", "its tables are of version %d, as this program makes them", g.Schema)
	}
}

// NotReadyError says that a daemon answers and why it takes no work.
type NotReadyError struct{ Why string }

func (e *NotReadyError) Error() string { return e.Why }

// daemon says whether one runs.
func (p *patient) daemon(ctx context.Context) {
	if !p.glance.Held {
		p.add("daemon", OK, "", "none runs on this data directory")
		return
	}
	who := "a process"
	if p.glance.PID != 0 {
		who = fmt.Sprintf("the process with pid %d", p.glance.PID)
	}
	if p.Running == nil {
		p.add("daemon", OK, "", "%s uses the data directory", who)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	v, err := p.Running(ctx)
	var not *NotReadyError
	switch {
	case errors.As(err, &not):
		p.add("daemon", Warn, "do what it says; until then it answers, and begins nothing new", "%s runs and is not ready: %s", who, not.Why)
	case err != nil:
		p.add("daemon", Warn, "look into its log; if it is another command of holdfast, such as verify, wait for it", "%s uses the data directory and does not answer: %v", who, err)
	case v != p.Version:
		p.add("daemon", Warn, "restart it when you mean to run this version", "%s runs version %s and is ready; this program is %s", who, v, p.Version)
	default:
		p.add("daemon", OK, "", "%s runs, is of this version, and is ready", who)
	}
}
