package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// desk is a workspace of one number, which tools count up, and its snapshots.
type desk struct {
	mu      sync.Mutex
	value   int
	asked   []string // what was asked of the snapshots, and of the tools
	capture func(ctx context.Context) error
	changes error
}

func (d *desk) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, fmt.Sprintf(format, args...))
}

func (d *desk) Capture(ctx context.Context, user string, id event.SessionID) (*event.FileSnapshot, error) {
	d.mu.Lock()
	tree := fmt.Sprint("tree ", d.value)
	hook := d.capture
	d.mu.Unlock()
	d.note("capture %s", tree)
	if hook != nil {
		if err := hook(ctx); err != nil {
			return nil, err
		}
	}
	return &event.FileSnapshot{Node: "here", Tree: tree}, nil
}

func (d *desk) Changes(_ context.Context, _ event.SessionID, from, to *event.FileSnapshot) (*event.FileChanges, error) {
	if d.changes != nil {
		return nil, d.changes
	}
	return &event.FileChanges{List: []event.FileChange{{Change: event.FileModified, Path: from.Tree + " → " + to.Tree}}}, nil
}

// adds is a tool that counts the desk up.
func (d *desk) adds(name string, change func(*tool.Definition)) *fake {
	f := newFake(name, tool.Write, func(context.Context, tool.Call) (tool.Result, error) {
		d.note("run %s", name)
		d.mu.Lock()
		d.value++
		d.mu.Unlock()
		return tool.Result{Output: "added"}, nil
	})
	f.def.Confined = true
	if change != nil {
		change(&f.def)
	}
	return f
}

// filed is an engine with snapshots of a desk.
func (h *house) filed(owner string, d *desk, tools ...tool.Tool) *engine.Engine {
	h.t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		h.t.Fatal(err)
	}
	return engine.New(engine.Config{
		Log: h.store, Hub: &h.hub, Tools: set, Node: eventlog.NodeID(owner), Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil }, Files: d,
	})
}

// told gives "before→after changes" of each step that ended, and "-" for what is absent.
func (h *house) told(id event.SessionID) []string {
	h.t.Helper()
	var out []string
	before := "-"
	for _, e := range h.events(id.Stream()) {
		switch d := e.Data.(type) {
		case *event.StepStarted:
			before = "-"
		case *event.ToolStarted:
			if d.Snapshot != nil {
				if before != "-" {
					h.t.Errorf("two calls of a step name the snapshot before it")
				}
				before = d.Snapshot.Tree
			}
		case *event.StepEnded:
			text := before + "→-"
			if d.Snapshot != nil {
				text = before + "→" + d.Snapshot.Tree
			}
			if d.Files != nil {
				text += " " + d.Files.List[0].Path
			}
			out = append(out, text)
		}
	}
	return out
}

// A step that changes files names them; a snapshot is made before the first
// such call and after the last, and none for a step without one.
func TestFilesOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		add := d.adds("add", nil)
		look := newFake("look", tool.Read, func(context.Context, tool.Call) (tool.Result, error) {
			d.note("run look")
			return tool.Result{Output: "seen"}, nil
		})
		look.def.Confined = true
		h, _ := staged(t, []step{call("look", "{}"), call("add", "{}", "add", "{}"), call("add", "{}"), say("done")}, add, look)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(h.filed("gen_2", d, add, look), s.ID)
		h.status(id, "completed")
		if got, want := h.told(s.ID), []string{"-→-", "tree 0→tree 2 tree 0 → tree 2", "tree 2→tree 3 tree 2 → tree 3", "-→-"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		if got, want := strings.Join(d.asked, ", "), "run look, capture tree 0, run add, run add, capture tree 2, capture tree 2, run add, capture tree 3"; got != want {
			t.Errorf("in the order %s", got)
		}
		h.verify()
	})
}

// Which calls may change files: those with an effect that run here, of runs
// that have a workspace.
func TestWhichCallsAreWatched(t *testing.T) {
	for name, row := range map[string]struct {
		change    func(*tool.Definition)
		workspace bool
		want      bool
	}{
		"confined":                {nil, false, true},
		"local, not confined":     {func(d *tool.Definition) { d.Confined = false }, true, true},
		"over MCP":                {func(d *tool.Definition) { d.Confined, d.Source = false, tool.MCP }, true, true},
		"a service":               {func(d *tool.Definition) { d.Confined, d.Source = false, tool.HTTP }, true, false},
		"local without workspace": {func(d *tool.Definition) { d.Confined = false }, false, false},
		"reads":                   {func(d *tool.Definition) { d.Level = tool.Read }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{}
				add := d.adds("add", row.change)
				tools := []tool.Tool{add}
				if row.workspace {
					look := newFake("look", tool.Read, gives("seen"))
					look.def.Confined = true
					tools = append(tools, look)
				}
				h, _ := staged(t, []step{call("add", "{}"), say("done")}, tools...)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.filed("gen_2", d, tools...), s.ID)
				h.status(id, "completed")
				if got := h.told(s.ID)[0] != "-→-"; got != row.want {
					t.Errorf("%q", h.told(s.ID))
				}
			})
		})
	}
}

// Without a snapshot a step goes on as if there were none to make.
func TestNoSnapshotNeverFailsAStep(t *testing.T) {
	for name, row := range map[string]struct {
		capture func(*int) func(context.Context) error
		changes error
		want    string
	}{
		"none before": {func(*int) func(context.Context) error {
			return func(context.Context) error { return errors.New("too large") }
		}, nil, "-→-"},
		"none after": {func(n *int) func(context.Context) error {
			return func(context.Context) error {
				if *n++; *n > 1 {
					return errors.New("disk full")
				}
				return nil
			}
		}, nil, "tree 0→-"},
		"a panic": {func(*int) func(context.Context) error {
			return func(context.Context) error { panic("at the snapshot") }
		}, nil, "-→-"},
		"no comparison": {func(*int) func(context.Context) error { return nil }, errors.New("gone"), "tree 0→tree 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{changes: row.changes, capture: row.capture(new(int))}
				add := d.adds("add", nil)
				h, _ := staged(t, []step{call("add", "{}"), say("done")}, add)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.filed("gen_2", d, add), s.ID)
				h.status(id, "completed")
				if got := h.told(s.ID)[0]; got != row.want || add.runs() != 1 {
					t.Errorf("%q, %d runs", got, add.runs())
				}
			})
		})
	}
}

// The daemon dies between the snapshots of a step: the one before is in the
// log, and the next life compares with it. Killed before the first call began,
// the next life makes it anew.
func TestDeathBetweenSnapshots(t *testing.T) {
	for name, row := range map[string]struct {
		hang func(d *desk, n int) bool // at which capture the process dies
		want string
	}{
		"in the first":  {func(_ *desk, n int) bool { return n == 1 }, "tree 5→tree 6 tree 5 → tree 6"},
		"in the second": {func(_ *desk, n int) bool { return n == 2 }, "tree 0→tree 6 tree 0 → tree 6"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{}
				n := 0
				d.capture = func(ctx context.Context) error {
					if n++; row.hang(d, n) {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}
				add := d.adds("add", nil)
				h, _ := staged(t, []step{call("add", "{}"), say("done")}, add)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				l := h.begin(h.filed("gen_2", d, add), s.ID)
				synctest.Wait()
				l.kill()
				d.mu.Lock()
				d.value = 5 + add.runs() // somebody else works there meanwhile
				d.mu.Unlock()
				h.drive(h.filed("gen_3", d, add), s.ID)
				h.status(id, "completed")
				if got := h.told(s.ID)[0]; got != row.want || add.runs() != 1 {
					t.Errorf("%q, %d runs", got, add.runs())
				}
				h.verify()
			})
		})
	}
	// The effect began and nobody knows how it was before: no snapshot is invented.
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		add := d.adds("add", nil)
		h, _ := staged(t, []step{call("add", "{}"), say("done")}, add)
		defer h.close()
		s := h.session(&api.CreateSession{OnDoubt: "continue"})
		id := h.submit(s, "go")
		wait := waits(time.Hour, "late")
		slow := d.adds("add", nil)
		slow.run = wait
		l := h.begin(h.other("gen_2", slow), s.ID) // a life without snapshots
		synctest.Wait()
		l.kill()
		h.drive(h.filed("gen_3", d, add), s.ID)
		h.status(id, "completed")
		if got := h.told(s.ID)[0]; got != "-→-" || len(d.asked) != 0 {
			t.Errorf("%q, asked %q", got, d.asked)
		}
	})
}

// A run that is stopped does not wait for a snapshot, and the log does not
// either: an interrupt ends a snapshot that hangs.
func TestStopDuringSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		ended := 0
		d.capture = func(ctx context.Context) error { <-ctx.Done(); ended++; return ctx.Err() }
		add := d.adds("add", nil)
		h, _ := staged(t, []step{call("add", "{}"), say("done")}, add)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		l := h.begin(h.filed("gen_2", d, add), s.ID)
		synctest.Wait()
		began := time.Now()
		h.stop(s, id, false)
		l.ring()
		synctest.Wait()
		h.status(id, "cancelled")
		if time.Since(began) != 0 || add.runs() != 0 || ended != 1 {
			t.Errorf("after %v, %d runs, %d snapshots ended", time.Since(began), add.runs(), ended)
		}
		next := h.submit(s, "again")
		d.mu.Lock()
		d.capture = nil
		d.mu.Unlock()
		l.ring()
		synctest.Wait()
		h.status(next, "completed")
		l.kill()
	})
}

// A store that fails at the append that records a snapshot gets the same one
// again, and nothing is captured twice.
func TestSnapshotOverStoreFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		add := d.adds("add", nil)
		h, _ := staged(t, []step{call("add", "{}"), say("done")}, add)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		set, err := tool.NewSet(add)
		if err != nil {
			t.Fatal(err)
		}
		f := &faulty{Log: h.store}
		failed := map[event.Type]bool{}
		f.set(func(a eventlog.Append) (error, error) {
			for _, typ := range []event.Type{event.TypeToolStarted, event.TypeStepEnded} {
				if has(a, typ) && !failed[typ] {
					failed[typ] = true
					return errFault, nil
				}
			}
			return nil, nil
		}, nil)
		eng := engine.New(engine.Config{
			Log: f, Hub: &h.hub, Tools: set, Node: "gen_2", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
			Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil }, Files: d,
		})
		h.drive(eng, s.ID)
		h.status(id, "completed")
		if got := h.told(s.ID)[0]; got != "tree 0→tree 1 tree 0 → tree 1" || len(failed) != 2 {
			t.Errorf("%q", got)
		}
		if got := strings.Join(d.asked, ", "); got != "capture tree 0, run add, capture tree 1" {
			t.Errorf("%s", got)
		}
	})
}
