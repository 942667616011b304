package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// run serves the queue until it is closed and empty, then closes the store.
func (s *Store) run() {
	defer close(s.done)
	patient := make(chan struct{})
	go func() {
		defer close(patient)
		for r := range s.slow {
			s.commitAlone(r)
		}
	}()
	var beat pace
	var left []*request // for the next transaction, before all others
	for {
		if len(left) > 0 {
			left = s.commit(left)
			continue
		}
		if wait := beat.wait(time.Now(), time.Unix(0, s.follow.heard.Load())); wait > 0 && s.queue.Waiting() < s.cfg.MaxBatch { // a full batch gains nothing by waiting
			select {
			case <-time.After(wait):
			case <-s.queue.Closing():
			}
		}
		if beat.many > 1 { // who is about to append may come along, which costs nobody time
			runtime.Gosched()
		}
		batch, open := s.queue.Take(s.cfg.MaxBatch, s.cfg.MaxBatchBytes, nil)
		if !open {
			break
		}
		if batch[0].Alone() { // it may take long, which is nobody's else to wait for
			select {
			case s.slow <- batch[0]:
				continue
			default:
			}
		}
		began := time.Now()
		left = s.commit(batch)
		beat = pace{ended: time.Now(), took: time.Since(began), many: len(batch)}
	}
	close(s.slow)
	<-patient
	s.stopFollowing()
	s.working.Wait()
	s.pool.Close()
	s.prime.Close()
}

// pace is how fast transactions follow each other. A node alone takes what came
// while the last one was committed. Nodes that write beside each other have less to
// take each, pay as much for each transaction, and commit one after the other: there
// a node that has work for several lets more of it come together.
type pace struct {
	ended time.Time     // the last transaction
	took  time.Duration // that one
	many  int           // appends in it
}

const (
	// From the end of a transaction to the next one: half of what that took, within
	// these. Where the machine is busy, transactions are slow, and more of them in flight
	// make them slower.
	gatherLeast = 2 * time.Millisecond
	gatherMost  = 10 * time.Millisecond

	beside = time.Second // how long a node that was heard of counts as one that writes
)

// wait gives the time until the next transaction may begin.
func (p pace) wait(now, heard time.Time) time.Duration {
	if since := now.Sub(heard); p.many < 2 || since < 0 || since > beside { // a clock that was set back is no neighbour
		return 0
	}
	return max(0, p.ended.Add(min(max(p.took/2, gatherLeast), gatherMost)).Sub(now))
}

// commit commits a batch as one transaction, and gives what is for the next
// one. When that does not work, each of its appends is tried alone, so that only the
// guilty fails; where the connection is at fault, once more as a whole.
func (s *Store) commit(batch []*request) (left []*request) {
	err := s.attempt(batch, false)
	var unknown *commitError
	if err != nil && broken(err) && !errors.As(err, &unknown) {
		err = s.attempt(batch, false)
	}
	switch {
	case err == nil:
		for _, r := range batch {
			switch r.fate {
			case later:
				left = append(left, r)
			case slow:
				select {
				case s.slow <- r:
				default: // so many wait there that this one does not go by
					s.commitAlone(r)
				}
			default:
				close(r.done)
			}
		}
	case broken(err) || len(batch) == 1 && !again(err) && codeOf(err) != codeUnique:
		for _, r := range batch {
			r.fail(err)
		}
	default:
		for _, r := range batch {
			s.commitAlone(r)
		}
	}
	return left
}

// commitAlone commits one append, waiting for whoever has locked its streams.
func (s *Store) commitAlone(r *request) {
	one := []*request{r}
	err := s.attempt(one, true)
	for try := 0; err != nil && try < retries && (again(err) || codeOf(err) == codeUnique); try++ {
		err = s.attempt(one, true)
	}
	if err != nil {
		r.fail(err)
		return
	}
	close(r.done)
}

// fail tells who waits that the transaction failed.
func (r *request) fail(err error) {
	err = trouble(err)
	if code := codeOf(err); len(code) == 5 && (code[:2] == "22" || code[:2] == "23" || code[:2] == "54") {
		// What the database refuses for what it is: values that it cannot take,
		// rows that exist already, or that are too large.
		err = eventlog.Malformed(err, "the database refuses it")
	}
	r.stamps, r.err = nil, fmt.Errorf("append: %w", err)
	close(r.done)
}

// commitError says that the connection ended between the commit and its
// confirmation.
type commitError struct{ err error }

func (e *commitError) Error() string {
	return "the connection to PostgreSQL ended during the commit, whose outcome is not known: " + e.err.Error()
}
func (e *commitError) Unwrap() error { return e.err }

// attempt runs one transaction over the appends of a batch. Refused ones get
// their error and take no part. An error means that nothing was committed, or is a
// *commitError, and that the verdicts are void. An attempt that is patient waits
// for streams that another process has locked.
func (s *Store) attempt(batch []*request, patient bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), wholeTx)
	defer cancel()
	began := time.Now()
	for _, r := range batch {
		r.fate, r.stamps, r.err = decided, nil, r.ctx.Err() // nobody waits for it any more
	}
	conn, err := s.prime.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Release()
	t := newTransaction(ctx, s, conn.Conn(), patient)
	if err = t.begin(batch); err == nil {
		err = t.decide(batch)
	}
	if err != nil || t.empty() {
		t.rollback()
		if err == nil {
			s.told(batch, began, nil)
		}
		return err
	}
	s.between.Store(true)
	s.commits.Lock()
	defer s.commits.Unlock()
	s.between.Store(false)
	s.tails.Move(t.moved(), t.erase != "")
	if err = t.commit(); err != nil {
		s.tails.Stay(t.moved())
		t.rollback()
		s.told(batch, began, err)
		return err
	}
	if err := t.afterwards(); err != nil {
		s.cfg.Log.Error("look after a snapshot", "err", err)
	}
	for stream := range t.moved() {
		s.known.add(stream)
	}
	var stamps []eventlog.Stamp
	for _, r := range batch {
		stamps = append(stamps, r.stamps...)
	}
	s.tails.Land(t.moved(), stamps)
	if len(stamps) > 0 {
		s.follow.wrote()
		if s.cfg.OnCommit != nil {
			s.cfg.OnCommit(stamps)
		}
	}
	s.told(batch, began, nil)
	return nil
}

// told says how a transaction went. What is for later is told of later.
func (s *Store) told(batch []*request, began time.Time, failed error) {
	if s.cfg.OnBatch == nil {
		return
	}
	now := time.Now()
	b := Batch{Took: now.Sub(began), Longest: now.Sub(batch[0].since), Failed: failed != nil}
	for _, r := range batch {
		switch {
		case failed != nil || r.fate != decided:
		case r.err != nil:
			b.Refused++
		case r.snap == nil:
			b.Appends++
			for i := range r.stamps {
				b.Events += len(r.stamps[i].Events)
			}
		}
	}
	s.cfg.OnBatch(b)
}
