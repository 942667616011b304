package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxFrame is the size of the largest event of a stream that is taken, in
// bytes. An event holds what is larger than 16 KiB by reference, so that this is ample.
const MaxFrame = 8 << 20

var errTooLarge = fmt.Errorf("client: an event of the stream holds more than %d bytes", MaxFrame)

// frame is one server-sent event.
type frame struct {
	event string
	hasID bool
	data  []byte
}

// frames reads server-sent events (HTML Living Standard, section 9.2.6).
// Unlike a browser it keeps no id from one event to the next: whether an event
// has one says whether it is durable.
type frames struct {
	r     *bufio.Reader
	alive func() // told of every line, comments too
	first bool
	wasCR bool // the line before ended in CR: a LF that follows belongs to it
}

func newFrames(r io.Reader, alive func()) *frames {
	return &frames{r: bufio.NewReaderSize(r, 32<<10), alive: alive, first: true}
}

// next gives the next event that has data. At the end of the stream it is
// io.EOF; an event that was not finished then is dropped.
func (s *frames) next() (frame, error) {
	var f frame
	var data []byte
	size, any := 0, false
	for {
		line, err := s.line(MaxFrame - size)
		if err != nil {
			return frame{}, err
		}
		size += len(line)
		s.alive()
		if len(line) == 0 {
			if any {
				f.data = data
				return f, nil
			}
			f, size = frame{}, 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "":
			size -= len(line) // a comment
		case "event":
			f.event = string(value)
		case "id":
			f.hasID = true
		case "data":
			if any {
				data = append(data, '\n')
			}
			data, any = append(data, value...), true
		}
	}
}

// line reads one line without its end: CR LF, LF or CR.
func (s *frames) line(most int) ([]byte, error) {
	var line []byte
	for {
		b, err := s.r.ReadByte()
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if s.wasCR {
			s.wasCR = false
			if b == '\n' {
				continue
			}
		}
		if b == '\r' || b == '\n' {
			s.wasCR = b == '\r'
			if s.first {
				s.first = false
				line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
			}
			return line, nil
		}
		if len(line) >= most {
			return nil, errTooLarge
		}
		line = append(line, b)
	}
}
