package daemon_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// filesAct: files that are handed in, given to runs, and read back.
type filesAct struct {
	picture, text []byte
	assets        map[string][]byte // by id
}

func (*filesAct) number() int { return 4 }

func (*filesAct) answer(order, _ int, _ chatstub.Request) chatstub.Reply { return done(order) }

// noise is a picture that does not shrink.
func noise(r *round) []byte {
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	rnd := seeded(r.seed ^ 0xa55e7)
	for x := range 64 {
		for y := range 64 {
			img.Set(x, y, color.RGBA{R: uint8(rnd.IntN(256)), G: uint8(rnd.IntN(256)), B: uint8(rnd.IntN(256)), A: 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // to memory
	}
	return b.Bytes()
}

func (a *filesAct) play(ctx context.Context, r *round) error {
	a.picture, a.text = noise(r), []byte(strings.Repeat("a line of a file\n", 2000))
	a.assets = map[string][]byte{}
	ids := map[string]string{}
	for name, data := range map[string][]byte{"picture.png": a.picture, "notes.txt": a.text, "unused.txt": []byte("nobody asks for this")} {
		err := r.c.repeat(ctx, func(c *client.Client) error {
			asset, err := c.CreateAsset(ctx, name, "", bytes.NewReader(data))
			if err == nil {
				a.assets[asset.ID], ids[name] = data, asset.ID
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("hand in %s: %w", name, err)
		}
	}
	if len(a.assets) != 3 {
		r.t.Errorf("equal bytes are one asset: %d for 3 files", len(a.assets))
	}
	inline := base64.StdEncoding.EncodeToString([]byte("a file in the submission"))
	return r.whole(ctx, api.CreateSession{ID: "files"},
		&part{order: 401, session: "files", status: api.RunCompleted, content: "done 401", steps: 1,
			submit: &api.SubmitRun{Content: api.Text("order 401"), Attachments: []string{ids["picture.png"], ids["notes.txt"]}}},
		&part{order: 402, session: "files", status: api.RunCompleted, content: "done 402", steps: 1,
			submit: &api.SubmitRun{InputItems: []api.InputItem{{Type: "text", Text: "order 402"}, {Type: "inline_asset", Data: inline, Name: "inline.txt"}}}})
}

// after: no file that was accepted is lost.
func (a *filesAct) after(ctx context.Context, r *round) {
	for id, want := range a.assets {
		var got []byte
		err := r.c.repeat(ctx, func(c *client.Client) error {
			body, err := c.AssetBytes(ctx, id)
			if err != nil {
				return err
			}
			defer body.Close()
			got, err = io.ReadAll(body)
			return err
		})
		if err != nil || !bytes.Equal(got, want) {
			r.t.Errorf("the asset %s has %d bytes, want %d: %v", id, len(got), len(want), err)
		}
	}
}

// check: the model was shown the bytes themselves.
func (a *filesAct) check(r *round, _ *history) {
	picture := base64.StdEncoding.EncodeToString(a.picture)
	for _, req := range r.w.model.Requests() {
		order, _ := placeOf(req)
		if order/100 == 4 && !strings.Contains(string(req.Body), picture) {
			r.t.Errorf("order %d: the model was not shown the picture", order)
		}
		if order == 402 && !strings.Contains(string(req.Body), "a file in the submission") {
			r.t.Errorf("order %d: the model was not shown the file that came with it", order)
		}
	}
}

// eraseAct: a session with everything in it is erased around deaths.
type eraseAct struct {
	plain
	session string // its ses_… id
	mark    string // stands in all of its content
}

func (*eraseAct) number() int { return 6 }

func (a *eraseAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	if order == 601 && step == 0 {
		return chatstub.Reply{Calls: []chatstub.Call{{Name: "write_file", Arguments: fmt.Sprintf(`{"path":"secret.txt","content":%q}`, a.mark)}}}
	}
	if order == 601 {
		return chatstub.Reply{Text: a.mark + " " + largeOf(order, 1000), Runes: 4096}
	}
	return done(order)
}

func (a *eraseAct) play(ctx context.Context, r *round) error {
	a.mark = fmt.Sprintf("forget-me-%d-%x", r.seed, r.seed*0x9e3779b97f4a7c15)
	first := &part{order: 601, session: "gone", erased: true, status: api.RunCompleted, content: a.mark + " " + largeOf(601, 1000),
		text: "order 601 " + a.mark}
	r.add(first)
	to := func(n int) []api.ReplyTarget {
		return []api.ReplyTarget{{Type: "webhook", URL: fmt.Sprintf("%s/gone-%d", r.w.hookSrv.URL, n)}}
	}
	if err := r.c.createSession(ctx, api.CreateSession{ID: "gone", OnDoubt: "continue", Instructions: a.mark, ReplyTargets: to(1)}); err != nil {
		return err
	}
	if err := r.submit(ctx, first); err != nil {
		return err
	}
	if err := r.finish(ctx, first); err != nil {
		return err
	}
	a.session = first.run.SessionID
	for {
		changed := r.c.k.signal()
		got, err := r.c.do(ctx, http.MethodDelete, "/v1/sessions/"+a.session, nil)
		if err != nil {
			return err
		}
		if got.status == http.StatusNoContent || got.status == http.StatusGone { // gone: by the request that the death cut
			break
		}
		if got.problem().Code != "session_active" {
			return fmt.Errorf("erase: %d %s", got.status, got.body)
		}
		select { // its answer is not delivered yet
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("erase: %s", got.body)
		}
	}
	return r.whole(ctx, api.CreateSession{ID: "gone", ReplyTargets: to(2)}, // the alias is free again
		&part{order: 602, session: "gone", target: "/gone-2", status: api.RunCompleted, content: "done 602", steps: 1})
}

// after: the session answers that it is gone, and no byte of it is in any file.
func (a *eraseAct) after(ctx context.Context, r *round) {
	for path, want := range map[string]int{"/v1/sessions/" + a.session: http.StatusGone, "/v1/sessions/" + a.session + "/events": http.StatusGone} {
		if got, err := r.c.do(ctx, http.MethodGet, path, nil); err != nil || got.status != want {
			r.t.Errorf("GET %s of an erased session: %d %s %v", path, got.status, got.body, err)
		}
	}
	tick := time.NewTicker(20 * time.Millisecond) // moments later, says the manual
	defer tick.Stop()
	for {
		left := r.holding(a.mark)
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.t.Errorf("what was erased is still in %v", left)
			return
		}
	}
}

// holding lists the files of the daemon's directory with a text in them.
func (r *round) holding(mark string) (found []string) {
	err := filepath.WalkDir(r.k.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it may be gone meanwhile
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(mark)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}
	return found
}

// editsAct: files of a workspace are written and edited, and somebody looks at
// them all the time.
type editsAct struct {
	halves map[string]bool // versions that were seen and are none
	seen   map[int]bool
	last   string // when all is over
	looked int
}

func (*editsAct) number() int { return 7 }

func versionOf(n int) string {
	return strings.Repeat(fmt.Sprintf("version %d of this line\n", n), 4000)
}

func (*editsAct) steps() []chatstub.Call {
	write := func(n int) chatstub.Call {
		return chatstub.Call{Name: "write_file", Arguments: string(quoted(map[string]any{"content": versionOf(n), "path": "notes/a.txt"}))}
	}
	return []chatstub.Call{write(1), {Name: "edit_file", Arguments: string(quoted(map[string]any{
		"path": "notes/a.txt", "edits": []any{map[string]any{"old_text": "version 1", "new_text": "version 2", "all": true}}}))}, write(3)}
}

func (a *editsAct) answer(order, step int, _ chatstub.Request) chatstub.Reply {
	if calls := a.steps(); order == 701 && step < len(calls) {
		return chatstub.Reply{Calls: calls[step : step+1], Runes: 8192}
	}
	return done(order)
}

func (a *editsAct) play(ctx context.Context, r *round) error {
	a.halves, a.seen = map[string]bool{}, map[int]bool{}
	over, looks := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looks)
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			a.look(r)
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	}()
	p := &part{order: 701, session: "edits", status: api.RunCompleted, content: done(701).Text, steps: 4}
	for _, c := range a.steps() {
		args, err := canonjson.Canonicalize([]byte(c.Arguments), canonjson.Limits{})
		if err != nil {
			return err
		}
		what := string(args)
		if len(what) > event.InlineLimit {
			what = event.RefOf(args)
		}
		p.calls = append(p.calls, c.Name+" "+what)
	}
	err := r.whole(ctx, api.CreateSession{ID: "edits", OnDoubt: r.toDoubt()}, p)
	close(over)
	<-looks
	return err
}

// look reads the file as it is now.
func (a *editsAct) look(r *round) {
	paths, err := filepath.Glob(filepath.Join(r.k.dir, "work", "*", "*", "notes", "a.txt"))
	if err != nil {
		r.t.Error(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		a.looked++
		version := 0
		for n := 1; n <= 3; n++ {
			if string(data) == versionOf(n) {
				version = n
			}
		}
		if version == 0 {
			a.halves[fmt.Sprintf("%d bytes: %.40q", len(data), data)] = true
		}
		a.seen[version] = true
	}
}

func (a *editsAct) after(_ context.Context, r *round) {
	a.look(r)
	paths, _ := filepath.Glob(filepath.Join(r.k.dir, "work", "*", "*", "notes", "a.txt"))
	if len(paths) == 1 {
		data, err := os.ReadFile(paths[0])
		if err != nil {
			r.t.Error(err)
		}
		a.last = string(data)
	}
}

// check: no version was ever half written, and what the log says was written is there.
func (a *editsAct) check(r *round, h *history) {
	for half := range a.halves {
		r.t.Errorf("a file of the workspace was half written: %s", half)
	}
	for _, p := range r.parts {
		if p.order != 701 {
			continue
		}
		run := h.runByID(p.run.ID)
		if run == nil {
			continue
		}
		for _, c := range run.calls {
			if c.name == "write_file" && c.end == event.TypeToolCompleted && (c.original != "" || c.args == p.calls[2][len("write_file "):]) &&
				c.args != p.calls[0][len("write_file "):] && a.last != versionOf(3) {
				r.t.Errorf("the log says that version 3 was written, and the file has %d bytes: %.40q", len(a.last), a.last)
			}
		}
	}
	r.count("files looked at", a.looked)
}
