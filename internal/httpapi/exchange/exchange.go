// Package exchange is one request over HTTP and its answer: a body that is read
// strictly and within bounds of size and time, an answer that is written piece by
// piece, and errors as problem details (RFC 9457). It knows nothing of who asks,
// nor for what.
package exchange

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Config bounds exchanges. None of its members may be zero, but for Stopping.
type Config struct {
	// WriteTimeout is how long a reader may take for each Piece of an answer.
	WriteTimeout time.Duration
	BodyTimeout  time.Duration // until a request's body has come
	// UnreadTimeout is how long a body that nobody wants may hold an answer back;
	// the connection ends with that answer then.
	UnreadTimeout time.Duration
	MaxBody       int64 // bytes of a body that is JSON
	// Stopping is closed when the daemon stops: bodies that have not come are waited
	// for no longer than a second then. Nil: never.
	Stopping <-chan struct{}
	Logger   *slog.Logger
}

// Exchange is one request and its answer.
type Exchange struct {
	*Config
	W http.ResponseWriter
	R *http.Request

	body  canonjson.Node // of the request, when it was read and is JSON
	began bool           // the answer has begun: a problem can no more be rendered
}

// ErrGone says that the reader hung up, or takes nothing at all.
var ErrGone = errors.New("the reader is gone")

// Ctx is the context of the request.
func (x *Exchange) Ctx() context.Context { return x.R.Context() }
