package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Set is the configured tools, by name. It does not change after New.
type Set struct {
	byName  map[string]Tool
	defs    []Definition // sorted by name
	digests map[string]string
}

// NewSet makes a set; two tools of one name are a mistake of the configuration.
func NewSet(tools ...Tool) (*Set, error) {
	s := &Set{byName: map[string]Tool{}, digests: map[string]string{}}
	for _, t := range tools {
		d := t.Definition()
		if _, twice := s.byName[d.Name]; twice {
			return nil, fmt.Errorf("two tools are named %q", d.Name)
		}
		raw, err := d.Encode()
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", d.Name, err)
		}
		s.byName[d.Name], s.digests[d.Name] = t, digest(raw)
		s.defs = append(s.defs, d)
	}
	slices.SortFunc(s.defs, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// Get finds a tool and the digest of its definition.
func (s *Set) Get(name string) (t Tool, digest string, ok bool) {
	t, ok = s.byName[name]
	return t, s.digests[name], ok
}

// Definitions lists the definitions by name.
func (s *Set) Definitions() []Definition { return s.defs }

// Select gives the named definitions, sorted by name; nil names mean all.
// Names that the set lacks come back as missing.
func (s *Set) Select(names *[]string) (defs []Definition, missing []string) {
	if names == nil {
		return s.defs, nil
	}
	for _, d := range s.defs {
		if slices.Contains(*names, d.Name) {
			defs = append(defs, d)
		}
	}
	for _, n := range *names {
		if _, ok := s.byName[n]; !ok {
			missing = append(missing, n)
		}
	}
	return defs, missing
}

// Encode is the canonical JSON of the definition.
func (d Definition) Encode() (canonjson.Value, error) {
	raw, err := json.Marshal(d)
	return canonjson.Value(raw), err
}

// Digest is the digest of the definition ("sha256:…").
func (d Definition) Digest() string {
	raw, err := d.Encode()
	if err != nil {
		panic("tool: " + err.Error()) // NewSet has encoded it before
	}
	return digest(raw)
}

func digest(raw []byte) string {
	h := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(h[:])
}

// DecodeDefinitions reads a list of definitions as a run captured it.
func DecodeDefinitions(data []byte) ([]Definition, error) {
	var defs []Definition
	err := json.Unmarshal(data, &defs, json.RejectUnknownMembers(true))
	return defs, err
}
