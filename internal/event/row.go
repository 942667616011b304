package event

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Row is the stored form of one append in one stream. The hashes of its
// events are not stored but computed on reading: a change to any stored byte
// shows at Hash.
type Row struct {
	Stream    Stream
	First     int64 // sequence of the first event
	Count     int
	Epoch     int64
	Time      time.Time
	SessionID SessionID
	UserID    string
	Meta      []byte // envelopes without what the row says, JSON
	Data      []byte // the events' data, JSON array; nil: erased
	Salt      []byte // nil: erased
	Digests   []byte // the events' data digests; set when Data was erased
	Prev      Digest // hash of the event before First
	Hash      Digest // hash of the last event
}

// Last is the sequence of the row's last event.
func (r *Row) Last() int64 { return r.First + int64(r.Count) - 1 }

// meta is the stored envelope of one event. Pointers are nil where the value
// is the same as in the event before it in the row.
type meta struct {
	Agent  string  `json:"a,omitzero"`
	Caused string  `json:"b,omitzero"`
	Call   CallID  `json:"c,omitzero"`
	State  *string `json:"f,omitzero"`
	Run    *RunID  `json:"r,omitzero"`
	Step   *StepID `json:"s,omitzero"`
	Turn   *int    `json:"n,omitzero"`
	Type   Type    `json:"t"`
	Ver    int     `json:"v,omitzero"` // 0: 1
}

// Sealed is an append that only lacks its place: data encoded, digests taken.
// Making it is the costly part and needs no lock.
type Sealed struct {
	Stream Stream
	Events []Event
	meta   []byte
	data   []byte
	salt   []byte
}

// ErrEncode says that a draft cannot be written: it holds what JSON cannot.
var ErrEncode = errors.New("encode")

// Seal prepares drafts for their stream. All drafts of one append are about
// one session and one user. It fills Type, Version, Raw and DataDigest.
func Seal(stream Stream, drafts []Event, random io.Reader) (*Sealed, error) {
	s := &Sealed{Stream: stream, Events: drafts, salt: make([]byte, saltSize)}
	if _, err := io.ReadFull(random, s.salt); err != nil {
		return nil, fmt.Errorf("draw salt: %w", err)
	}
	s.data = append(s.data, '[')
	for i := range drafts {
		e := &drafts[i]
		if err := e.seal(); err != nil {
			return nil, err
		}
		if e.SessionID != drafts[0].SessionID || e.UserID != drafts[0].UserID {
			panic("event: one append in one stream is about one session and one user")
		}
		e.Stream = stream
		e.DataDigest = digestData(s.salt, i, e.Raw)
		if i > 0 {
			s.data = append(s.data, ',')
		}
		s.data = append(s.data, e.Raw...)
	}
	s.data = append(s.data, ']')
	var err error
	s.meta, err = metaBytes(drafts)
	return s, err
}

// metaBytes is the stored form of the envelopes of a row's events.
func metaBytes(events []Event) ([]byte, error) {
	metas := make([]meta, len(events))
	var prev Event
	for i := range events {
		metas[i] = metaOf(&events[i], &prev)
		prev = events[i]
	}
	b, err := json.Marshal(metas)
	if err != nil {
		return nil, fmt.Errorf("%w envelopes: %w", ErrEncode, err)
	}
	return b, nil
}

func metaOf(e, prev *Event) meta {
	m := meta{Agent: e.AgentID, Caused: e.CausedBy, Call: e.CallID, Type: e.Type}
	if e.Version != 1 {
		m.Ver = e.Version
	}
	if e.FSMState != prev.FSMState {
		m.State = &e.FSMState
	}
	if e.RunID != prev.RunID {
		m.Run = &e.RunID
	}
	if e.StepID != prev.StepID {
		m.Step = &e.StepID
	}
	if e.Turn != prev.Turn {
		m.Turn = &e.Turn
	}
	return m
}

// Stamp gives the append its place behind head, and its hashes. The events of
// s carry the stamp afterwards, with the time as it will be read back.
func (s *Sealed) Stamp(head, epoch int64, prev Digest, at time.Time) Row {
	at = at.UTC().Truncate(time.Microsecond)
	r := Row{
		Stream: s.Stream, First: head + 1, Count: len(s.Events), Epoch: epoch, Time: at,
		SessionID: s.Events[0].SessionID, UserID: s.Events[0].UserID,
		Meta: s.meta, Data: s.data, Salt: s.salt, Prev: prev,
	}
	for i := range s.Events {
		e := &s.Events[i]
		e.Seq, e.Epoch, e.Time = head+1+int64(i), epoch, at
		e.Hash = e.ChainHash(prev)
		prev = e.Hash
	}
	r.Hash = prev
	return r
}

// Events reads the row back. Digests are computed from the data, or taken from
// the row where it was erased; hashes are computed from Prev. Whether they lead
// to Hash is for Check to say.
func (r *Row) Events() ([]Event, error) {
	var metas []meta
	if err := json.Unmarshal(r.Meta, &metas, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("row %s#%d: envelopes: %w", r.Stream, r.First, err)
	}
	var data []jsontext.Value
	if r.Data != nil {
		if err := json.Unmarshal(r.Data, &data); err != nil {
			return nil, fmt.Errorf("row %s#%d: data: %w", r.Stream, r.First, err)
		}
		if len(data) != len(metas) {
			return nil, fmt.Errorf("row %s#%d: %d envelopes, %d data", r.Stream, r.First, len(metas), len(data))
		}
		if len(r.Data) != arraySize(data) {
			return nil, fmt.Errorf("row %s#%d: white space between data", r.Stream, r.First)
		}
	} else if len(r.Digests) != len(metas)*len(Digest{}) {
		return nil, fmt.Errorf("row %s#%d: neither data nor digests", r.Stream, r.First)
	}
	if len(metas) != r.Count {
		return nil, fmt.Errorf("row %s#%d: %d envelopes, %d events", r.Stream, r.First, len(metas), r.Count)
	}
	events := make([]Event, len(metas))
	prev := r.Prev
	var before Event
	for i := range metas {
		e := &events[i]
		r.fill(e, &metas[i], &before, i)
		if data != nil {
			e.Raw = canonjson.Value(data[i])
			e.DataDigest = digestData(r.Salt, i, e.Raw)
		} else {
			copy(e.DataDigest[:], r.Digests[i*len(Digest{}):])
		}
		e.Hash = e.ChainHash(prev)
		prev = e.Hash
		before = *e
	}
	return events, nil
}

// arraySize is the size of an array of these values as Seal writes it. What is
// larger holds bytes that no digest covers.
func arraySize(values []jsontext.Value) int {
	n := len("[]") + max(len(values)-1, 0)
	for _, v := range values {
		n += len(v)
	}
	return n
}

func (r *Row) fill(e *Event, m *meta, before *Event, i int) {
	*e = Event{
		Type: m.Type, Version: max(m.Ver, 1), Stream: r.Stream, Seq: r.First + int64(i),
		SessionID: r.SessionID, UserID: r.UserID, AgentID: m.Agent, CausedBy: m.Caused, CallID: m.Call,
		Epoch: r.Epoch, Time: r.Time,
		RunID: before.RunID, StepID: before.StepID, Turn: before.Turn, FSMState: before.FSMState,
	}
	if m.State != nil {
		e.FSMState = *m.State
	}
	if m.Run != nil {
		e.RunID = *m.Run
	}
	if m.Step != nil {
		e.StepID = *m.Step
	}
	if m.Turn != nil {
		e.Turn = *m.Turn
	}
}

// Check says whether the row follows prev and its content leads to its hash (I-04).
func (r *Row) Check(prev Digest) error {
	if r.Prev != prev {
		return fmt.Errorf("row %s#%d does not follow the event before it", r.Stream, r.First)
	}
	events, err := r.Events()
	if err != nil {
		return err
	}
	if len(events) == 0 || events[len(events)-1].Hash != r.Hash {
		return fmt.Errorf("row %s#%d: content does not lead to its hash", r.Stream, r.First)
	}
	// The same envelopes can be written in several ways; only ours is ours.
	if meta, err := metaBytes(events); err != nil || !bytes.Equal(meta, r.Meta) {
		return fmt.Errorf("row %s#%d: envelopes are not as they were written", r.Stream, r.First)
	}
	return nil
}

// Erase takes the content out of the row and keeps its digests, so that the
// chain still verifies.
func (r *Row) Erase() error {
	if r.Data == nil {
		return nil
	}
	events, err := r.Events()
	if err != nil {
		return err
	}
	r.Digests = make([]byte, 0, len(events)*len(Digest{}))
	for i := range events {
		r.Digests = append(r.Digests, events[i].DataDigest[:]...)
	}
	r.Data, r.Salt = nil, nil
	return nil
}
