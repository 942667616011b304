package filetree

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// kind is what an entry of a listing is.
type kind byte

const (
	file   kind = 'f'
	link   kind = 'l' // its content is where it leads
	folder kind = 'd' // its object is a listing; it holds something
	unheld kind = 'u' // a file that is too large or cannot be read: its digest is a stamp of how it stood
)

// entry is one name of a listing.
type entry struct {
	kind kind
	perm uint32 // of a file
	size int64  // of a file or a link, in bytes; of a folder that of its listing
	sum  digest
	name string // any bytes but / and NUL
}

// same says whether nothing of an entry changed.
func (e *entry) same(o *entry) bool {
	return e.kind == o.kind && e.perm == o.perm && e.size == o.size && e.sum == o.sum
}

const heading = "holdfast tree 1\n"

// maxListing bounds a listing that is read, in bytes: more names than a snapshot may hold.
const maxListing = 64 << 20

// encode writes a listing, whose entries are in the order of their names' bytes:
// equal folders give equal bytes.
func encode(entries []entry) []byte {
	out := []byte(heading)
	for i := range entries {
		e := &entries[i]
		out = append(out, byte(e.kind), ' ')
		out = strconv.AppendUint(out, uint64(e.perm), 8)
		out = append(out, ' ')
		out = strconv.AppendInt(out, e.size, 10)
		out = append(out, ' ')
		out = hex.AppendEncode(out, e.sum[:])
		out = append(out, ' ')
		out = strconv.AppendQuoteToASCII(out, e.name)
		out = append(out, '\n')
	}
	return out
}

var errListing = errors.New("not a listing")

// decode reads what encode wrote, and nothing else.
func decode(data []byte) ([]entry, error) {
	rest, ok := bytes.CutPrefix(data, []byte(heading))
	if !ok {
		return nil, errListing
	}
	var entries []entry
	for len(rest) > 0 {
		line, next, ok := bytes.Cut(rest, []byte("\n"))
		parts := strings.SplitN(string(line), " ", 5)
		if !ok || len(parts) != 5 || len(parts[0]) != 1 || len(parts[3]) != 2*len(digest{}) {
			return nil, errListing
		}
		e := entry{kind: kind(parts[0][0])}
		perm, err1 := strconv.ParseUint(parts[1], 8, 12)
		size, err2 := strconv.ParseInt(parts[2], 10, 64)
		_, err3 := hex.Decode(e.sum[:], []byte(parts[3]))
		name, err4 := strconv.Unquote(parts[4])
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("%w: %w", errListing, err)
		}
		e.perm, e.size, e.name = uint32(perm), size, name
		switch e.kind {
		case file, link, folder, unheld:
		default:
			return nil, errListing
		}
		if !goodName(name) || len(entries) > 0 && entries[len(entries)-1].name >= name {
			return nil, errListing
		}
		entries, rest = append(entries, e), next
	}
	if !bytes.Equal(encode(entries), data) {
		return nil, errListing
	}
	return entries, nil
}

// goodName says whether a name can stand in a folder.
func goodName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// list reads a listing of the store.
func (s *Store) list(space string, d digest) ([]entry, error) {
	data, err := s.get(space, d, maxListing)
	if err != nil {
		return nil, err
	}
	entries, err := decode(data)
	if err != nil {
		return nil, ErrGone
	}
	return entries, nil
}
