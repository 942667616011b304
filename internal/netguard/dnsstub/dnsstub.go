// Package dnsstub is a name service for tests whose answers change.
package dnsstub

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
)

// Stub answers A questions from a script: the n-th look-up of a name gets the
// n-th address, the last one for ever. Unknown names do not exist. It is safe
// for concurrent use.
type Stub struct {
	mu      sync.Mutex
	answers map[string][]string
	asked   map[string]int
}

// New makes a stub of the answers by name, in lower case and without a dot at the end.
func New(answers map[string][]string) *Stub {
	return &Stub{answers: answers, asked: map[string]int{}}
}

// Asked says how often a name was looked up.
func (s *Stub) Asked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// Resolver gives a resolver that asks this stub and nobody else.
func (s *Stub) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.serve(theirs) // until the resolver closes its end
		return ours, nil
	}}
}

// serve answers questions framed as over TCP (RFC 1035, section 4.2.2).
func (s *Stub) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		end, labels := 12, []string(nil)
		for q[end] != 0 {
			n := int(q[end])
			labels = append(labels, string(q[end+1:end+1+n]))
			end += 1 + n
		}
		kind := binary.BigEndian.Uint16(q[end+1:])
		question := q[12 : end+5]
		addr, known := s.next(strings.ToLower(strings.Join(labels, ".")), kind)
		r := append([]byte{q[0], q[1], 0x85, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
		if !known {
			r[3] |= 3 // NXDOMAIN
		} else if kind == 1 {
			r[7] = 1
			r = append(r, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			r = append(r, addr.AsSlice()...)
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(r))), r...)); err != nil {
			return
		}
	}
}

func (s *Stub) next(name string, kind uint16) (netip.Addr, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.answers[name]
	if len(list) == 0 {
		return netip.Addr{}, false
	}
	if kind == 1 {
		s.asked[name]++
		if len(list) > 1 {
			s.answers[name] = list[1:]
		}
	}
	return netip.MustParseAddr(list[0]), true
}
