package eventlog

import (
	"errors"
	"fmt"
)

// Trouble of the store that no other append or reader can help with. Both are
// told by type, whatever the database says.
var (
	// ErrFull: there is no room for what is to be written. Nothing of it is stored,
	// what is stored can be read, and it may be sent again: space comes back.
	ErrFull = errors.New("no space is left for the store")
	// ErrDamaged: the database is not what was written to it. What can be read is
	// read; nothing is written any more, until a person has looked at it.
	ErrDamaged = errors.New("the database is damaged")
)

// FullError is an ErrFull that says where and how much.
type FullError struct {
	// Kept says that there is some space left, which is for the work under way;
	// then Free and Reserve are set, in bytes.
	Kept          bool
	Free, Reserve uint64
	// Database: it is the disk of the database server, not the one of the data directory.
	Database bool
	cause    error
}

// Full makes an ErrFull of what the database said.
func Full(cause error, database bool) error { return &FullError{Database: database, cause: cause} }

// Advice says what is full and what to do, in words that are fit for callers.
func (e *FullError) Advice() string {
	switch {
	case e.Kept:
		return fmt.Sprintf("the disk of the daemon's data directory has %d MiB free, and the last %d MiB are kept for the work that is under way (store.reserve); "+
			"make room there and send this again: nothing of it was taken, and the daemon goes on by itself", e.Free>>20, e.Reserve>>20)
	case e.Database:
		return "the disk of the database server is full; make room there and send this again: nothing of it was taken, and the daemon goes on by itself"
	}
	return "the disk of the daemon's data directory is full; make room there and send this again: nothing of it was taken, and the daemon goes on by itself"
}

func (e *FullError) Error() string {
	switch {
	case e.Kept:
		return fmt.Sprintf("%v: %d bytes are free, %d are kept for the work under way", ErrFull, e.Free, e.Reserve)
	case e.cause != nil:
		return ErrFull.Error() + ": " + e.cause.Error()
	}
	return ErrFull.Error()
}

// Is makes it an ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Unwrap gives the private cause.
func (e *FullError) Unwrap() error { return e.cause }

// damagedError is an ErrDamaged with what the database said.
type damagedError struct{ cause error }

// Damaged makes an ErrDamaged of what the database said.
func Damaged(cause error) error { return &damagedError{cause} }

func (e *damagedError) Error() string        { return ErrDamaged.Error() + ": " + e.cause.Error() }
func (e *damagedError) Is(target error) bool { return target == ErrDamaged }
func (e *damagedError) Unwrap() error        { return e.cause }
