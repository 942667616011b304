package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// storage measures what runs leave on the disk, one client at a time: events,
// rows and transactions of a run, the bytes that it adds to the database, and
// the bytes that were written for it.
func storage(ctx context.Context, b *bench) error {
	const tokens = 1000
	long := oneStep()
	long.script = "rules: [{reply: {chunk: 4, text: '" + strings.Repeat("word", tokens) + "', usage: {input: 10, output: 1000}}}]"
	for _, x := range []struct {
		name, dir, session string
		play               play
		runs               int
	}{
		{"a one-step run", "one", `{}`, oneStep(), b.n.stored},
		{"a five-turn run", "five", `{"tools":["look","note"]}`, fiveTurns(), b.n.stored / 2},
		{"a run with an answer of 1,000 tokens", "tokens", `{}`, long, b.n.stored / 4},
	} {
		d, err := leaves(ctx, filepath.Join(b.dir, x.dir), x.play, x.session, x.runs)
		if err != nil {
			return err
		}
		n := float64(x.runs)
		b.row(x.name+": events", d.events/n, "", "", "")
		b.row(x.name+": rows of the log", d.rows/n, "", "", "an append in a stream is a row")
		b.row(x.name+": commits", d.commits/n, "", "", "one sync of the disk each; a checkpoint, every 16 MB, takes two more")
		b.row(x.name+": bytes in the log and its blobs", d.content/n, "B", "", "")
		b.row(x.name+": bytes of the database", d.file/n, "B", "", "with derived rows and indices, at rest")
		if d.written > 0 {
			b.row(x.name+": bytes written to the disk", d.written/n, "B", "", "with the write-ahead log; pages of 4 KiB")
		} else {
			b.skip(x.name+": bytes written to the disk", unknownHere)
		}
		if x.dir == "tokens" {
			b.row("a token of it: bytes in the log and its blobs", d.content/n/tokens, "B", "", "four letters; deltas are not stored")
		}
	}
	return onePrompt(ctx, b)
}

// use is what is used of a disk, or the difference.
type use struct {
	events, rows, commits, content, file, written float64
}

func (u use) sub(v use) use {
	return use{u.events - v.events, u.rows - v.rows, u.commits - v.commits, u.content - v.content, u.file - v.file, u.written - v.written}
}

// leaves says what so many runs of one session, one after the other, add.
func leaves(ctx context.Context, dir string, p play, session string, runs int) (use, error) {
	var before use
	for i, n := range []int{20, runs} { // the first ones make the pages that every database has
		counts := i == 1
		h, err := openHouseWith(ctx, dir, p)
		if err != nil {
			return use{}, err
		}
		if counts {
			if before, err = diskUse(h, dir); err != nil {
				return use{}, errors.Join(err, h.close(ctx))
			}
		}
		id, err := h.session(session)
		for left := n; left > 0 && err == nil; left-- {
			err = h.run(id)
		}
		var after use
		if err == nil {
			after, err = diskUse(h, dir)
		}
		if err = errors.Join(err, h.close(ctx)); err != nil {
			return use{}, err
		}
		if counts {
			after.file = fileSize(dir)
			return after.sub(before), nil
		}
	}
	return use{}, nil
}

// diskUse reads what a running daemon has used. The size of the file is that of
// its last rest.
func diskUse(h *house, dir string) (u use, err error) {
	text, err := h.text("/metrics")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "holdfast_store_commit_duration_seconds_count "); ok {
			if u.commits, err = strconv.ParseFloat(strings.TrimSpace(rest), 64); err != nil {
				return u, err
			}
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "holdfast-data", "holdfast.db")+"?mode=ro")
	if err != nil {
		return u, err
	}
	defer db.Close()
	var blobs float64
	err = db.QueryRow(`SELECT sum(count), count(*), sum(length(meta) + coalesce(length(data), 0)) FROM log`).Scan(&u.events, &u.rows, &u.content)
	if err == nil {
		err = db.QueryRow(`SELECT coalesce(sum(length(bytes)), 0) FROM blobs`).Scan(&blobs)
	}
	u.content += blobs
	u.file, u.written = fileSize(dir), written()
	return u, err
}

func fileSize(dir string) float64 {
	info, err := os.Stat(filepath.Join(dir, "holdfast-data", "holdfast.db"))
	if err != nil {
		return 0
	}
	return float64(info.Size())
}

// written is what this process had the disk write; 0: not known on this system.
func written() float64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			if n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64); err == nil {
				return n
			}
		}
	}
	return 0
}

// text reads what is no JSON.
func (c *caller) text(path string) (string, error) {
	req, err := http.NewRequest("GET", c.base+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return string(data), err
}

// onePrompt checks that a prompt is stored once, however many turns it is sent in.
func onePrompt(ctx context.Context, b *bench) (err error) {
	const size = 100_000
	dir := filepath.Join(b.dir, "prompt")
	h, err := openHouseWith(ctx, dir, fiveTurns())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	id, err := h.session(`{"tools":["look","note"]}`)
	if err != nil {
		return err
	}
	var at [3]use
	for i, text := range []string{"hello", "hello", strings.Repeat("a prompt. ", size/10)} {
		if err := h.say(id, text); err != nil {
			return err
		}
		if at[i], err = diskUse(h, dir); err != nil {
			return err
		}
	}
	grown := at[2].content - at[1].content - (at[1].content - at[0].content)
	b.row("a prompt of 100,000 bytes in a run of five turns", grown, "B", "once", "in the log and its blobs, beyond a run with a short one")
	if grown > 1.1*size {
		return fmt.Errorf("a prompt of %d bytes took %.0f", size, grown)
	}
	return nil
}
