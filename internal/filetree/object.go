package filetree

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// digest is the SHA-256 of an object.
type digest [sha256.Size]byte

func (d digest) hex() string { return hex.EncodeToString(d[:]) }

const prefix = "sha256:"

func (d digest) tree() Tree { return Tree(prefix + d.hex()) }

// parse reads the name of a tree.
func (t Tree) parse() (d digest, err error) {
	text, ok := strings.CutPrefix(string(t), prefix)
	if !ok || len(text) != 2*len(d) || strings.ToLower(text) != text {
		return d, fmt.Errorf("%.80q is no name of a snapshot", string(t))
	}
	_, err = hex.Decode(d[:], []byte(text))
	return d, err
}

// Valid says whether a text has the form of a tree's name.
func (t Tree) Valid() bool { _, err := t.parse(); return err == nil }

func (s *Store) object(space string, d digest) string {
	name := d.hex()
	return s.path(space, "objects", name[:2], name[2:])
}

// tempName begins the names of objects that are being written.
const tempName = "new-"

// put keeps bytes, unless they are there. written: it was not.
func (s *Store) put(space string, data []byte) (d digest, written bool, err error) {
	d = sha256.Sum256(data)
	name := s.object(space, d)
	if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() == int64(len(data)) {
		return d, false, nil
	}
	temp := s.path(space, "objects", tempName+rand.Text())
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		_ = os.Remove(temp)
		return d, false, err
	}
	err = os.Rename(temp, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(s.path(space, "objects", d.hex()[:2]), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Rename(temp, name)
		}
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return d, true, err
}

// get reads an object of up to most bytes. One that is not what its name says is
// removed, so that it is written anew when it is wanted again: ErrGone.
func (s *Store) get(space string, d digest, most int64) ([]byte, error) {
	name := s.object(space, d)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf bytes.Buffer
	if info, err := f.Stat(); err == nil && info.Size() <= most {
		buf.Grow(int(info.Size()) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case n > most || sha256.Sum256(buf.Bytes()) != d:
		_ = os.Remove(name)
		return nil, ErrGone
	}
	return buf.Bytes(), nil
}
