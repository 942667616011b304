package bus

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// Subjects. The version is that of the messages: nodes of different ones do not
// hear each other.
const (
	liveSubject = "holdfast.v1.live." // and the session: its deltas, and the question who listens
	nodeSubject = "holdfast.v1.node." // and the node and the session: answers
	allSubject  = "holdfast.v1.all"   // what all nodes hear
)

// maxID bounds an id in a subject, in bytes.
const maxID = 128

// wellFormed says whether an id can be part of a subject.
func wellFormed(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// subjectOf gives the subject of a session's stream; other streams have none.
func subjectOf(s event.Stream) (string, bool) {
	id, ok := s.Session()
	if !ok || !wellFormed(string(id)) {
		return "", false
	}
	return liveSubject + string(id), true
}

// sessionOf is the id in the subject of a stream that has one.
func sessionOf(s event.Stream) string {
	id, _ := s.Session()
	return string(id)
}

// streamOf gives the stream of the session that a subject ends with.
func streamOf(subject, prefix string) (event.Stream, bool) {
	id, ok := strings.CutPrefix(subject, prefix)
	if !ok || !wellFormed(id) {
		return "", false
	}
	return event.SessionID(id).Stream(), true
}

// message is deltas of one session on their way: {"deltas":[…]}.
type message struct {
	body  []byte
	count int
}

const messageHead, messageEnd = `{"deltas":[`, `]}`

func (m *message) sizeWith(d *live.Delta) int {
	return max(len(m.body), len(messageHead)) + 1 + len(d.Wire()) + len(messageEnd)
}

func (m *message) add(d *live.Delta) {
	if m.count == 0 {
		m.body = append(m.body, messageHead...)
	} else {
		m.body = append(m.body, ',')
	}
	m.body = append(m.body, d.Wire()...)
	m.count++
}

func (m *message) finish() []byte { return append(m.body, messageEnd...) }

func encodeLost() []byte { return []byte(`{"lost":true}`) }

var answerYes = []byte("{}")

var errMessage = errors.New("bus: a message has no form that is known here")

// decode reads deltas. What a reader is shown as the name of an event must be
// one of the few that there are.
func decode(body []byte) (deltas []api.Delta, lost bool, err error) {
	var m struct {
		Deltas []api.Delta `json:"deltas"`
		Lost   bool        `json:"lost"`
	}
	if len(body) > MaxMessage || json.Unmarshal(body, &m) != nil {
		return nil, false, errMessage
	}
	for i := range m.Deltas {
		d := &m.Deltas[i]
		switch d.Type {
		case event.LiveTextStarted, event.LiveTextDelta, event.LiveReasoningStarted, event.LiveReasoningDelta, event.LiveInputStarted, event.LiveInputDelta:
		default:
			return nil, false, errMessage
		}
		if d.Number <= 0 || d.Epoch < 0 || d.After < 0 {
			return nil, false, errMessage
		}
	}
	return m.Deltas, m.Lost, nil
}

// notice is what a node tells all others: that it is there, and more.
type notice struct {
	Node string   `json:"node"`
	Want []string `json:"want,omitempty"` // sessions that are heard there since now
	Lost bool     `json:"lost,omitzero"`  // deltas of any of its sessions may be missing
	Bye  bool     `json:"bye,omitzero"`   // it goes
}

func encodeNotice(n notice) []byte {
	body, err := json.Marshal(n)
	if err != nil {
		panic(err) // well-formed ids
	}
	return body
}

func decodeNotice(body []byte) (n notice, err error) {
	if len(body) > MaxMessage || json.Unmarshal(body, &n) != nil || !wellFormed(n.Node) || len(n.Want) > maxIDs {
		return notice{}, errMessage
	}
	for _, id := range n.Want {
		if !wellFormed(id) {
			return notice{}, errMessage
		}
	}
	return n, nil
}
