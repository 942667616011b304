package main

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
)

// doors measures the same two logs as clients see them: whole daemons, over HTTP.
// Before each read a run is made, so that the log lives. The stores are closed.
func doors(ctx context.Context, b *bench, kind string, both []*filled) (err error) {
	houses, own := make([]*house, len(both)), make([]string, len(both))
	for i, s := range both {
		if err := s.close(ctx); err != nil {
			return err
		}
		s.Store = nil
		p := oneStep()
		p.more = s.yaml
		h, err := openHouseWith(ctx, filepath.Join(b.dir, fmt.Sprintf("%s-door-%d", kind, i)), p)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.close(ctx)) }()
		houses[i] = h
		if own[i], err = h.session("{}"); err != nil {
			return err
		}
	}
	run := func(i int) error { return houses[i].run(own[i]) }
	if err := b.inTurn(kind+", over HTTP: a one-step run, to its end", "below 1.2", func(int) error { return nil }, run); err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		path func(s *filled) string
	}{
		{"a session", func(s *filled) string { return "/v1/sessions/" + string(s.any()) }},
		{"64 events of a session", func(s *filled) string { return "/v1/sessions/" + string(s.any()) + "/events?after=69&limit=64" }},
		{"the newest 50 sessions", func(*filled) string { return "/v1/sessions?limit=50" }},
		{"50 sessions of a user", func(s *filled) string { return "/v1/sessions?limit=50&user_id=" + userOf(mathrand.IntN(len(s.ids))) }},
		{"50 runs of a user", func(s *filled) string { return "/v1/runs?limit=50&user_id=" + userOf(mathrand.IntN(len(s.ids))) }},
		{"the runs of a session", func(s *filled) string { return "/v1/runs?limit=50&session_id=" + string(s.any()) }},
	} {
		err := b.inTurn(kind+", over HTTP: "+x.name, "below 1.2", run, func(i int) error {
			_, err := houses[i].text(x.path(both[i]))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
