package wire

import (
	"bytes"
	"io"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// maxErrorBody is how much of an error's body is read.
const maxErrorBody = 64 << 10

// FirstByte skips white space and a byte order mark, which neither a stream nor
// a plain answer needs, and gives the first byte behind them. io.EOF: there is none.
func FirstByte(src io.Reader) (byte, error) {
	var b [1]byte
	for range 64 << 10 {
		if _, err := io.ReadFull(src, b[:]); err != nil {
			return 0, err
		}
		if !strings.ContainsRune(" \t\r\n", rune(b[0])) && !bytes.ContainsAny(b[:], "\xef\xbb\xbf") {
			return b[0], nil
		}
	}
	return 0, llm.Errorf(llm.Server, "the vendor's answer is nothing but white space")
}

// Refused makes the error of an answer whose status is not 200; see Classify.
func (a *Answer) Refused(secrets ...string) error {
	body, _, err := a.ReadAll(maxErrorBody)
	if e := llm.AsError(err); err != nil && e.Class == llm.Aborted {
		return e
	}
	// A body that broke off does not change what the status says.
	return Classify(a.Status, a.Header, body, time.Now(), secrets...)
}
