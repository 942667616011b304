package eventlog

import (
	"context"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// Resting is what its owner knows of a session at rest, as it was when it was last
// worked on. What is decided by it is appended on condition that it still is so.
type Resting struct {
	UserID   string
	Status   string
	Settings event.Settings // not to be changed
	Version  int64          // of the settings
}

// Offer is a command's append that is handed to the owner of its stream, who may
// make it together with what follows from it: one append in the place of two. It has
// one entry. An owner who cannot do so now declines, and the command is appended as
// always: nothing depends on an offer being taken.
type Offer struct {
	Append Append

	mu    sync.Mutex
	taken bool
	over  bool
	err   error
	done  chan struct{}
}

// NewOffer makes an offer of an append.
func NewOffer(a Append) *Offer { return &Offer{Append: a, done: make(chan struct{})} }

// Take says whether the offer still stands. From then on the append is the
// owner's, who says with Settle or Decline what became of it.
func (o *Offer) Take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = o.taken || !o.over
	return !o.over
}

// Decline leaves the append to who offers it: nothing of it is in the log, nor
// comes there. After the first answer it does nothing.
func (o *Offer) Decline() { o.answer(false, nil) }

// Settle says that the append was made, or how it failed.
func (o *Offer) Settle(err error) { o.answer(true, err) }

func (o *Offer) answer(taken bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.taken, o.over, o.err = taken, true, err
		close(o.done)
	}
}

// Wait waits for the answer. Not taken: the append is the caller's to make. With
// taken the error is that of the append, or of ctx, whose end does not stop an append
// that the owner has taken.
func (o *Offer) Wait(ctx context.Context) (taken bool, err error) {
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return o.taken, o.err
	}
	if !o.taken { // nobody waits for it any more: it is not taken from now on
		o.over = true
		close(o.done)
	}
	return true, ctx.Err()
}
