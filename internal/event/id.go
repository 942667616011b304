package event

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"
)

// The ids of the house. Each has a typed prefix on the wire; two kinds cannot
// be mixed up in code.
type (
	SessionID  string // ses_ and a UUIDv7: made by the daemon, never by a caller
	RunID      string // run_ and a UUIDv7
	StepID     string // step_, the run's suffix, and the number of the step in the run; of a compaction cmp_ and a suffix of its own
	CallID     string // call_, the run's suffix, step, attempt and position
	TargetID   string // tgt_ and a digest of user, type and address
	DeliveryID string // dlv_ and a digest of run and target
	AssetID    string // ast_ and a digest of user and content
	JobID      string // job_ and a UUIDv7
	Stream     string // session:ses_…, target:tgt_…, job:job_… or AuditStream
)

// Stream kinds.
const (
	sessionPrefix = "session:"
	targetPrefix  = "target:"
	jobPrefix     = "job:"
)

// Stream is the event stream of a session.
func (id SessionID) Stream() Stream { return Stream(sessionPrefix + string(id)) }

// Stream is the event stream of a target.
func (id TargetID) Stream() Stream { return Stream(targetPrefix + string(id)) }

// Session gives the session whose stream this is.
func (s Stream) Session() (SessionID, bool) {
	id, ok := strings.CutPrefix(string(s), sessionPrefix)
	return SessionID(id), ok
}

// Target gives the target whose stream this is.
func (s Stream) Target() (TargetID, bool) {
	id, ok := strings.CutPrefix(string(s), targetPrefix)
	return TargetID(id), ok
}

// Stream is the event stream of a job.
func (id JobID) Stream() Stream { return Stream(jobPrefix + string(id)) }

// Job gives the job whose stream this is.
func (s Stream) Job() (JobID, bool) {
	id, ok := strings.CutPrefix(string(s), jobPrefix)
	return JobID(id), ok
}

// NewJobID draws a job id from r.
func NewJobID(r io.Reader) (JobID, error) {
	s, err := newSuffix(r)
	return JobID("job_" + s), err
}

// NewSessionID draws a session id from r.
func NewSessionID(r io.Reader) (SessionID, error) {
	s, err := newSuffix(r)
	return SessionID("ses_" + s), err
}

// NewRunID draws a run id from r.
func NewRunID(r io.Reader) (RunID, error) {
	s, err := newSuffix(r)
	return RunID("run_" + s), err
}

// NewCompactionID draws the id of a compaction that a person asks for from r.
func NewCompactionID(r io.Reader) (StepID, error) {
	s, err := newSuffix(r)
	return StepID("cmp_" + s), err
}

// newSuffix is a UUIDv7 (RFC 9562, section 5.7) without hyphens, so that ids
// sort roughly by the time they were made. It follows from the clock and from r
// alone: within 1/4096 of a millisecond the order of ids is chance.
func newSuffix(r io.Reader) (string, error) {
	var u [16]byte
	if _, err := io.ReadFull(r, u[8:]); err != nil {
		return "", err
	}
	now := time.Now().UnixNano()
	ms, part := now/int64(time.Millisecond), now%int64(time.Millisecond)
	fraction := part << 12 / int64(time.Millisecond)
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6], u[7] = 0x70|byte(fraction>>8), byte(fraction)
	u[8] = 0x80 | u[8]&0x3f
	return hex.EncodeToString(u[:]), nil
}

// TargetIDFor derives the id of a target from its user, type and address, so
// that one receiver of one user is one lane, whoever names it.
func TargetIDFor(user, kind, address string) TargetID {
	return TargetID("tgt_" + shortDigest(user, kind, address))
}

// DeliveryIDFor derives the id of the one delivery of a run's output to a target.
func DeliveryIDFor(run RunID, target TargetID, output int) DeliveryID {
	return DeliveryID("dlv_" + shortDigest(string(run), string(target), string(rune('0'+output))))
}

// AssetIDFor derives the id of an asset from its user and its digest: equal
// bytes of one user are one asset, and those of another user another (I-34).
func AssetIDFor(user, digest string) AssetID { return AssetID("ast_" + shortDigest(user, digest)) }

func shortDigest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		// Length first, so that no two lists of parts read the same.
		h.Write([]byte{byte(len(p) >> 24), byte(len(p) >> 16), byte(len(p) >> 8), byte(len(p))})
		io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// timeLayout has a fixed width, so that stored times compare as text.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// FormatTime is the stored form of a time: UTC, microseconds, fixed width (RFC 3339).
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// Storable says whether a time that somebody names has a stored form which compares
// as text with those of events: where it is looked at in UTC its year has four digits.
func Storable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1970 && year <= 9999
}

// ParseTime reads the stored form, and nothing else: time.Parse also takes an hour
// of one digit and a comma, which do not compare as text.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(timeLayout, s)
	if err == nil && (len(s) != len(timeLayout) || s[len("2006-01-02T15:04:05")] != '.') {
		return time.Time{}, errors.New("the time is not in the stored form, as 2006-01-02T15:04:05.000000Z")
	}
	return t, err
}
