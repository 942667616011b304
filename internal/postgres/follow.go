package postgres

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// follower hears what other nodes write. It reads the feed behind its position
// when somebody says that there is something, and every so often. Signals only
// wake it: what it tells is what it read.
type follower struct {
	s      *Store
	cancel context.CancelFunc
	ended  sync.WaitGroup
	heard  atomic.Int64 // when it last read of another's transaction, in ns of Unix
	seen   atomic.Int64 // position of the last transaction that it has read
	wake   chan struct{}
	told   chan struct{} // something was committed that others may want to hear of
}

// channel is the name of the channel of notifications: that of the feed of this
// schema.
func (s *Store) channel() string {
	return "holdfast_" + strconv.FormatUint(uint64(uint32(s.feedLock)), 10)
}

func (s *Store) startFollowing(ctx context.Context) error {
	f := &follower{s: s, wake: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	at, err := oneOf(ctx, s, s.pool, feedEnd, nil, func(n *int64) []any { return []any{n} })
	if err != nil {
		return err
	}
	f.seen.Store(at)
	s.follow = f
	ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.ended.Go(func() { f.run(ctx) })
	if !s.pooled {
		f.ended.Go(func() { f.listen(ctx) })
		f.ended.Go(func() { f.tell(ctx) })
	}
	return nil
}

func (s *Store) stopFollowing() {
	s.follow.cancel()
	s.follow.ended.Wait()
}

// wrote says that something was committed here.
func (f *follower) wrote() { signal(f.told) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run reads the feed for as long as the store is open.
func (f *follower) run(ctx context.Context) {
	timer := time.NewTicker(f.s.cfg.NewsEvery)
	defer timer.Stop()
	failing := false
	for {
		for {
			more, err := f.read(ctx)
			if ctx.Err() != nil {
				return
			}
			switch log := f.s.cfg.Log; {
			case err != nil && !failing:
				log.Warn("what other nodes wrote cannot be read now; it is tried again", "every", f.s.cfg.NewsEvery, "err", err)
			case err == nil && failing:
				log.Info("what other nodes wrote is read again")
			}
			failing = err != nil
			if err != nil || !more {
				break
			}
		}
		select { // what comes meanwhile is read together
		case <-time.After(readEvery):
		case <-ctx.Done():
			return
		}
		quiet := time.Since(time.Unix(0, f.heard.Load()))
		if !failing && quiet >= 0 && quiet < awake {
			select {
			case <-f.wake: // what it tells of is read now
			case <-timer.C:
				f.rewind(ctx)
			default:
			}
			continue
		}
		select {
		case <-f.wake:
		case <-timer.C:
			f.rewind(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// When the feed is read: after a signal, and from then on every readEvery until
// nothing new has been in it for a time. So what others write in a row is seen
// without a signal for each.
const (
	readEvery = 25 * time.Millisecond
	awake     = time.Second
)

const feedEnd = "SELECT coalesce((SELECT pos FROM @.feed ORDER BY pos DESC LIMIT 1), 0)"

// rewind notices that the end of the feed stands before what was read: the
// database is an older one, a standby that had not heard of the last commits. What
// was read of those is not there.
func (f *follower) rewind(ctx context.Context) {
	end, err := oneOf(ctx, f.s, f.s.pool, feedEnd, nil, func(n *int64) []any { return []any{n} })
	if err != nil && ctx.Err() == nil {
		f.s.cfg.Log.Warn("look for the end of the feed", "err", err)
	}
	if err != nil || end >= f.seen.Load() {
		return
	}
	f.s.cfg.Log.Error("the database has lost commits: its log ends before what was read from it; a failover to a standby that lags behind does that",
		"read_to", f.seen.Load(), "ends_at", end)
	f.seen.Store(end)
	f.s.tails.Clear()
}

// newsChunk is how many transactions are read at a time.
const newsChunk = 256

// newsQuery gives the next transactions, with what is told of those that another
// node wrote.
const newsQuery = `SELECT pos, block, node = $2, coalesce(extract(epoch FROM clock_timestamp() - time), 0)::float8,
		CASE WHEN node <> $2 THEN streams END, CASE WHEN node <> $2 THEN heads END, CASE WHEN node <> $2 THEN wakes END
	FROM @.feed WHERE pos > $1 ORDER BY pos LIMIT $3`

// olderNews gives the same from the log, of a transaction whose row has none.
const olderNews = `SELECT stream, first_seq + count - 1, wakes FROM @.log WHERE block = $1 ORDER BY place`

// read tells of the next transactions, and says whether more may follow.
func (f *follower) read(ctx context.Context) (more bool, err error) {
	type transaction struct {
		pos, block int64
		own        bool
		age        float64 // seconds
		streams    []string
		heads      []int64
		wakes      []bool
	}
	list, err := manyOf(ctx, f.s, f.s.pool, newsQuery, []any{f.seen.Load(), string(f.s.cfg.Node), newsChunk}, func(t *transaction) []any {
		return []any{&t.pos, &t.block, &t.own, &t.age, &t.streams, &t.heads, &t.wakes}
	})
	if err != nil || len(list) == 0 {
		return false, err
	}
	var news []News
	oldest := 0.0
	for i := range list {
		t := &list[i]
		switch {
		case t.own:
			continue
		case len(t.streams) == 0 || len(t.heads) != len(t.streams) || len(t.wakes) != len(t.streams):
			older, err := manyOf(ctx, f.s, f.s.pool, olderNews, []any{t.block}, func(n *News) []any { return []any{&n.Stream, &n.Head, &n.Wakes} })
			if err != nil {
				return false, err
			}
			news = append(news, older...)
		default:
			for j, stream := range t.streams {
				news = append(news, News{Stream: event.Stream(stream), Head: t.heads[j], Wakes: t.wakes[j]})
			}
		}
		oldest = max(oldest, t.age)
	}
	for _, n := range news {
		f.s.tails.Drop(n.Stream)
	}
	if len(news) > 0 {
		f.heard.Store(time.Now().UnixNano())
		if f.s.cfg.OnNews != nil {
			f.s.cfg.OnNews(news)
		}
		if f.s.cfg.OnLag != nil {
			f.s.cfg.OnLag(time.Duration(oldest * float64(time.Second)))
		}
	}
	f.seen.Store(list[len(list)-1].pos)
	return len(list) == newsChunk, nil
}

// listen waits for notifications, on a connection of its own, as long as the
// store is open.
func (f *follower) listen(ctx context.Context) {
	told := false
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		heard, err := f.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			wait, told = firstWait, false
		}
		if !told {
			f.s.cfg.Log.Warn("the connection that listens for other nodes ended; they are looked for meanwhile, and it is made again", "err", err)
		}
		told = true
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// The time between two tries to listen: doubling between these.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 10 * time.Second
)

func (f *follower) hear(ctx context.Context) (heard bool, err error) {
	cfg := f.s.pool.Config().ConnConfig
	delete(cfg.RuntimeParams, "idle_in_transaction_session_timeout")
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+f.s.channel()); err != nil {
		return false, err
	}
	signal(f.wake) // what was told before is read now
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return true, err
		}
		signal(f.wake)
	}
}

// notifyEvery is the least time between two notifications of one node. The first
// commit is told of at once; the others are awake from then on, and kept so by the
// next notification or by what they read. A notification is a transaction of its own,
// since in PostgreSQL those that notify are committed one after the other, and appends
// are not to wait for that.
const notifyEvery = awake / 2

// tell notifies the other nodes, while there are some.
func (f *follower) tell(ctx context.Context) {
	others := true
	looked := time.Now()
	for {
		select {
		case <-f.told:
		case <-ctx.Done():
			return
		}
		if time.Since(looked) >= f.s.cfg.NewsEvery {
			looked = time.Now()
			n, err := oneOf(ctx, f.s, f.s.pool, "SELECT count(*) FROM pg_stat_activity WHERE query = $1", []any{"LISTEN " + f.s.channel()},
				func(n *int64) []any { return []any{n} })
			others = err != nil || n > 1
		}
		if others {
			// Who misses it looks by itself. The server makes a commit of it, which need not wait for the disk.
			_, _ = f.s.pool.Exec(ctx, "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')", f.s.channel())
		}
		select {
		case <-time.After(notifyEvery):
		case <-ctx.Done():
			return
		}
	}
}
