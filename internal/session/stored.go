package session

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/internal/contract"
)

// StateVersion counts the versions of the stored form of a state. Raise it
// with every change of what a state holds, and with every change of the rules
// after which Apply folds the same events into another state: a stored state
// of another version is not read.
const StateVersion = 8

// stored is the stored form of a state: its exported members as they are, and
// what the rest cannot be computed from.
type stored struct {
	State   *State
	History []storedPast
	Omitted int
}

type storedPast struct {
	Seq   int64
	Items []Item
}

// storedOptions make the form compact and the same for equal states. A
// contract stands there as its schema and is compiled anew.
var storedOptions = json.JoinOptions(
	json.OmitZeroStructFields(true), json.Deterministic(true), json.RejectUnknownMembers(true),
	json.WithMarshalers(json.MarshalToFunc(func(enc *jsontext.Encoder, s *contract.Schema) error {
		return enc.WriteValue(jsontext.Value(s.Render()))
	})),
	json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, s *contract.Schema) error {
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		parsed, issues := contract.ParseSchema(raw.Clone())
		if len(issues) > 0 {
			return fmt.Errorf("stored contract: %s", issues[0])
		}
		*s = *parsed
		return nil
	})),
)

// Encode gives the stored form of the state. States that were folded from the
// same events give the same bytes, also when one of them holds texts in place
// that stand in the blob store. The form holds the private texts of a session.
func (s *State) Encode() ([]byte, error) {
	c := s.Clone()
	c.refer()
	form := stored{State: c, Omitted: c.omitted}
	for _, p := range c.history {
		form.History = append(form.History, storedPast{Seq: p.seq, Items: p.items})
	}
	b, err := json.Marshal(&form, storedOptions)
	if err != nil {
		return nil, fmt.Errorf("encode session %s: %w", s.ID, err)
	}
	return b, nil
}

// DecodeState reads the stored form of this StateVersion. Bytes that are no
// such form are an error.
func DecodeState(data []byte) (*State, error) {
	var form stored
	if err := json.Unmarshal(data, &form, storedOptions); err != nil {
		return nil, fmt.Errorf("decode session: %w", err)
	}
	s := form.State
	if s == nil {
		return nil, fmt.Errorf("decode session: no state")
	}
	s.omitted = form.Omitted
	for _, p := range form.History {
		s.keep(past{seq: p.Seq, items: p.Items})
	}
	return s, s.compile()
}

// refer puts a reference in the place of each text of the open step that
// stands in the blob store, and nothing in the place of empty lists: so a
// state is as it is when it is folded from the log.
func (s *State) refer() {
	if len(s.Queue) == 0 {
		s.Queue = nil
	}
	if s.Active == nil || s.Active.Step == nil {
		return
	}
	st := s.Active.Step
	for _, list := range []*[]Item{&st.Kept, &st.Parts} {
		*list = slices.Clone(*list)
		for i := range *list {
			it := &(*list)[i]
			it.Content = shrink(it.Content)
		}
	}
	for _, c := range st.Calls {
		c.Large, c.Result = shrink(c.Large), shrink(c.Result)
	}
	if len(st.Calls) == 0 {
		st.Calls = nil
	}
}
