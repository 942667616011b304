package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// deltas measures how long a piece of a streamed answer takes from the byte
// that a provider writes to the subscriber that reads it: over loopback there,
// through the daemon, and over loopback back. The provider says in each piece
// when it wrote it.
func deltas(ctx context.Context, b *bench) (err error) {
	route, end, err := startSpeaker(b.n.deltas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	h, err := openHouseWith(ctx, filepath.Join(b.dir, "house"), play{route: route})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	return deltasBetween(h, h, b, "byte of the provider to subscriber", "below 1", "")
}

func deltasBetween(h, reads *house, b *bench, name, target, where string) error {
	for _, n := range []int{1, 16} {
		if err := deltasOf(h, reads, b, n, name, target, where); err != nil {
			return err
		}
	}
	return nil
}

// deltasOf measures n sessions at once, each with one reader. h works on them;
// they are read at another daemon, or at the same.
func deltasOf(h, reads *house, b *bench, n int, name, target, where string) error {
	sessions := make([]string, n)
	for i := range sessions {
		var err error
		if sessions[i], err = h.session(`{}`); err != nil {
			return err
		}
	}
	group, err := follow(strings.TrimPrefix(reads.base, "http://"), n, func(i int) string { return sessions[i] })
	if err != nil {
		return err
	}
	defer group.close()
	late := make([][]time.Duration, n)
	failed := make(chan error, n)
	for i := range sessions {
		go func() { failed <- h.run(sessions[i]) }()
	}
	err = group.each(func(i int) (err error) {
		late[i], err = group.lateness(i)
		return err
	})
	for range sessions {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		return err
	}
	var all []time.Duration
	for _, x := range late {
		all = append(all, x...)
	}
	if len(all) == 0 {
		return errors.New("no delta came")
	}
	note := fmt.Sprintf("%d of %d pieces, 2 ms apart%s", len(all), n*b.n.deltas, where)
	if n > 1 {
		target = ""
	}
	b.row(fmt.Sprintf("%s, %d streams, p50", name, n), ms(quantile(all, .5)), "ms", "", note)
	b.row(fmt.Sprintf("%s, %d streams, p99", name, n), ms(quantile(all, .99)), "ms", target, note)
	return nil
}

// lateness reads a stream to the end of its run, and gives the age of each piece
// at its arrival.
func (g *readers) lateness(i int) ([]time.Duration, error) {
	var late []time.Duration
	if err := g.conns[i].SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	for {
		line, err := g.bufs[i].ReadString('\n')
		if err != nil {
			return nil, err
		}
		now := time.Now()
		if strings.HasPrefix(line, "event: run.completed") {
			return late, nil
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var d struct{ Type, Text string }
		if err := json.Unmarshal([]byte(data), &d); err != nil || !strings.HasPrefix(d.Text, "@") {
			continue
		}
		at, err := strconv.ParseInt(strings.TrimSpace(d.Text[1:]), 10, 64)
		if err != nil {
			continue // two pieces in one: the reader was behind
		}
		late = append(late, now.Sub(time.Unix(0, at)))
	}
}

// startSpeaker starts a provider and gives the route that leads there.
func startSpeaker(pieces int) (route string, end func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	provider := &http.Server{Handler: speaker(pieces, 2*time.Millisecond)}
	done := make(chan error, 1)
	go func() { done <- provider.Serve(l) }()
	route = fmt.Sprintf(`{provider: openai_compatible, base_url: "http://%s/v1", model: m}`, l.Addr())
	return route, func() error {
		if err := errors.Join(provider.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}, nil
}

// speaker is a provider of chat completions whose answer is so many pieces, each
// the time at which it was written.
func speaker(n int, apart time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		out := bufio.NewWriter(w)
		say := func(text string) bool {
			fmt.Fprintf(out, "data: %s\n\n", text)
			return out.Flush() == nil && http.NewResponseController(w).Flush() == nil
		}
		chunk := func(delta, finish string) string {
			return fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`, delta, finish)
		}
		tick := time.NewTicker(apart)
		defer tick.Stop()
		for range n {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			if !say(chunk(fmt.Sprintf(`{"role":"assistant","content":"@%d "}`, time.Now().UnixNano()), "null")) {
				return
			}
		}
		say(chunk(`{}`, `"stop"`))
		say(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}`)
		say("[DONE]")
	})
}
