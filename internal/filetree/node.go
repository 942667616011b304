package filetree

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxNode bounds the name of a store, in bytes.
const maxNode = 80

// nameOf reads the name of the store, or gives it one the first time: that of
// the host, for people, and what is drawn from random.
func nameOf(path, host string, random io.Reader) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		if name := strings.TrimSpace(string(data)); goodNode(name) {
			return name, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var b [4]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", err
	}
	host = strings.Map(func(r rune) rune {
		if goodNode(string(r)) {
			return r
		}
		return '-'
	}, host)
	name := strings.TrimLeft(host[:min(len(host), 60)]+"-"+hex.EncodeToString(b[:]), "-")
	temp := path + ".new"
	if err := os.WriteFile(temp, []byte(name+"\n"), 0o600); err != nil {
		return "", err
	}
	if err := os.Rename(temp, path); err != nil {
		return "", fmt.Errorf("name the store: %w", err)
	}
	return name, nil
}

func goodNode(name string) bool {
	if name == "" || len(name) > maxNode {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '.' || r == '_')
	})
}
