// Package event holds the facts of the house: the envelope, the closed set of
// event types with their data, the digest chain, and the stored form of a log row.
//
// An event says what happened; it never changes meaning. Stored, one row of
// the log holds all events of one append in one stream; logically each event
// has its own sequence number, gap-free from 1 in its stream (I-01).
package event

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Event is one fact. A draft has Data and the ids of what it is about; the
// store stamps stream, sequence, epoch, time, digest and hash.
type Event struct {
	Type      Type
	Version   int
	Stream    Stream
	Seq       int64
	SessionID SessionID
	RunID     RunID
	Turn      int // 0: not about a turn
	StepID    StepID
	CallID    CallID
	UserID    string
	AgentID   string
	FSMState  string
	Epoch     int64
	Time      time.Time
	CausedBy  string // id of another event

	// Data is the typed content, Raw its canonical JSON. A draft has Data; an
	// event that was read has Raw, and Data after Decode. Both are empty when
	// the content was erased.
	Data Data
	Raw  canonjson.Value

	DataDigest Digest // salted; see Digest
	Hash       Digest
}

// Digest is a SHA-256.
type Digest [sha256.Size]byte

// String is the digest as "sha256:" and hex.
func (d Digest) String() string { return "sha256:" + hex.EncodeToString(d[:]) }

// IsZero says whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// ID names the event over all streams: it is derived from stream and sequence,
// so that it can be told before the event is stored.
func (e *Event) ID() string { return IDOf(e.Stream, e.Seq) }

// IDOf is the id of the event with this sequence in this stream.
func IDOf(s Stream, seq int64) string { return string(appendID(nil, s, seq)) }

func appendID(b []byte, s Stream, seq int64) []byte {
	var buf [128]byte
	h := sha256.Sum256(strconv.AppendInt(append(append(buf[:0], s...), '#'), seq, 10))
	return hex.AppendEncode(append(b, "evt_"...), h[:16])
}

// Erased says whether the content of the event was erased.
func (e *Event) Erased() bool { return e.Data == nil && e.Raw == nil }

// saltSize is the size of the random salt of a log row, in bytes.
const saltSize = 16

// digestData is SHA-256 over the row's salt, the event's place in the row and
// the canonical data. With the salt erased nobody can test a guess of the
// data against the digest.
func digestData(salt []byte, i int, data []byte) Digest {
	buf := make([]byte, 0, saltSize+2+len(data))
	buf = append(buf, salt...)
	buf = append(buf, byte(i>>8), byte(i))
	buf = append(buf, data...)
	return sha256.Sum256(buf)
}

// ChainHash is the hash of the event behind prev: SHA-256 over the previous
// hash and the canonical envelope without data and hash (I-04). The envelope
// holds the salted digest of the data, so that erased data leaves the chain whole.
func (e *Event) ChainHash(prev Digest) Digest {
	buf := make([]byte, 0, 640)
	buf = append(buf, prev[:]...)
	return sha256.Sum256(e.appendEnvelope(buf, false))
}

// AppendWire appends the event as one canonical JSON object, as clients see it.
// Erased content is given as `"data":null`.
func (e *Event) AppendWire(dst []byte) []byte { return e.appendEnvelope(dst, true) }

// appendEnvelope writes the members in canonical order (RFC 8785: sorted by name).
func (e *Event) appendEnvelope(b []byte, wire bool) []byte {
	b = append(b, '{')
	first := true
	str := func(name, value string) {
		if value == "" {
			return
		}
		b = appendName(b, name, &first)
		b = canonjson.AppendString(b, value)
	}
	// What follows has nothing that JSON escapes.
	digest := func(name string, d Digest) {
		b = append(appendName(b, name, &first), `"sha256:`...)
		b = append(hex.AppendEncode(b, d[:]), '"')
	}
	num := func(name string, value int64) {
		b = appendName(b, name, &first)
		b = strconv.AppendInt(b, value, 10)
	}
	str("agent_id", e.AgentID)
	str("call_id", string(e.CallID))
	str("caused_by", e.CausedBy)
	if wire {
		b = appendName(b, "data", &first)
		if e.Raw == nil {
			b = append(b, "null"...)
		} else {
			b = append(b, e.Raw...)
		}
	}
	digest("data_digest", e.DataDigest)
	num("epoch", e.Epoch)
	str("fsm_state", e.FSMState)
	if wire {
		digest("hash", e.Hash)
	}
	b = append(appendID(append(appendName(b, "id", &first), '"'), e.Stream, e.Seq), '"')
	str("run_id", string(e.RunID))
	num("seq", e.Seq)
	str("session_id", string(e.SessionID))
	str("step_id", string(e.StepID))
	str("stream", string(e.Stream))
	b = append(e.Time.UTC().AppendFormat(append(appendName(b, "time", &first), '"'), timeLayout), '"')
	if e.Turn != 0 {
		num("turn", int64(e.Turn))
	}
	str("type", string(e.Type))
	str("user_id", e.UserID)
	num("version", int64(e.Version))
	return append(b, '}')
}

func appendName(b []byte, name string, first *bool) []byte {
	if !*first {
		b = append(b, ',')
	}
	*first = false
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"', ':')
}
