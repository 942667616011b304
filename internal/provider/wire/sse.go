package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// DefaultEventLimit is the most that one event of a stream may hold, in bytes.
const DefaultEventLimit = 16 << 20

// ErrEventTooLarge says that one event, or one line of it, passed the
// decoder's limit. The stream cannot be read on.
var ErrEventTooLarge = errors.New("stream event is larger than the limit")

// Event is one event of an event stream. Data belongs to the decoder and is
// valid until the next call of one of its methods.
type Event struct {
	Type string // "" when the stream named none, which means "message"
	ID   string // the last id the stream gave, in this event or an earlier one
	Data []byte // the data lines, joined with LF
}

// Decoder reads an event stream as the WHATWG HTML standard, section 9.2.6,
// describes it: lines end with LF, CRLF or CR, also when the two bytes of a
// CRLF come in different reads; comments and unknown fields are skipped; an
// event ends with a blank line. The retry field is read over: when to try
// again is the engine's decision.
//
// Memory is bounded by the limit for one event plus one read buffer; comments
// take none. A Decoder is for one goroutine.
type Decoder struct {
	src   io.Reader
	limit int
	err   error // what the source ended with

	buf      []byte // the read buffer; buf[pos:end] is not yet read
	pos, end int
	line     []byte // holds a line that is spread over several reads
	open     bool   // the source ended and line holds what came last
	skipLF   bool   // the last line ended with CR: an LF next belongs to it
	started  bool   // the byte order mark has been looked for

	typ, id string
	data    []byte
	hasData bool
}

// NewDecoder reads from src. A limit of 0 means DefaultEventLimit.
func NewDecoder(src io.Reader, limit int) *Decoder {
	if limit <= 0 {
		limit = DefaultEventLimit
	}
	return &Decoder{src: src, limit: limit, buf: make([]byte, 16<<10)}
}

// Next gives the next whole event. At the end of the source it gives the
// source's error, io.EOF for a clean end; an event that no blank line has
// ended is then not given (see Rest). Past the limit the error is
// ErrEventTooLarge.
func (d *Decoder) Next() (Event, error) {
	d.reset()
	for {
		line, err := d.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) > 0 {
			if err := d.field(line); err != nil {
				return Event{}, err
			}
			continue
		}
		if d.hasData {
			return Event{Type: d.typ, ID: d.id, Data: d.data}, nil
		}
		d.typ = ""
	}
}

// Rest gives the event that was open when the source ended, with a last line
// that may itself be cut. The standard discards it. A reader whose data show
// by themselves whether they are whole may take it, since many servers forget
// the last blank line.
func (d *Decoder) Rest() (Event, bool) {
	if d.err == nil || errors.Is(d.err, ErrEventTooLarge) {
		return Event{}, false
	}
	if d.open && len(d.line) > 0 {
		d.open = false
		if d.field(d.line) != nil {
			return Event{}, false
		}
	}
	return Event{Type: d.typ, ID: d.id, Data: d.data}, d.hasData
}

func (d *Decoder) reset() {
	d.typ, d.hasData = "", false
	if cap(d.data) > 1<<20 { // one huge event must not pin its memory
		d.data = nil
	}
	if cap(d.line) > 1<<20 {
		d.line = nil
	}
	d.data = d.data[:0]
}

// readLine gives the next line without its end. The bytes are valid until the
// next call.
func (d *Decoder) readLine() ([]byte, error) {
	held := d.line[:0]
	defer func() { d.line = held }()
	for {
		if d.pos == d.end {
			if d.err == nil {
				d.fill()
			}
			if d.pos == d.end {
				d.open = true
				return nil, d.err
			}
		}
		chunk := d.buf[d.pos:d.end]
		n := lineEnd(chunk)
		if n >= 0 {
			d.pos += n + 1
			d.skipLF = chunk[n] == '\r'
			d.dropLF()
			chunk = chunk[:n]
		} else {
			d.pos = d.end
		}
		if len(held)+len(chunk) > d.limit && !comment(held, chunk) {
			return nil, d.tooLarge()
		}
		switch {
		case n >= 0 && len(held) == 0:
			return chunk, nil
		case comment(held, chunk):
			held = append(held[:0], ':')
		default:
			held = append(held, chunk...)
		}
		if n >= 0 {
			return held, nil
		}
	}
}

// fill reads once more from the source. It looks for the byte order mark in
// the first three bytes of the stream.
func (d *Decoder) fill() {
	d.pos, d.end = 0, 0
	for range 100 { // an io.Reader that gives nothing is broken, not patient
		n, err := d.src.Read(d.buf[d.end:])
		d.end, d.err = d.end+n, err
		d.dropLF()
		if !d.started {
			if err == nil && d.end < len(bom) && bytes.HasPrefix(bom, d.buf[:d.end]) {
				continue
			}
			d.started = true
			if bytes.HasPrefix(d.buf[:d.end], bom) {
				d.pos = len(bom)
			}
		}
		if d.pos < d.end || err != nil {
			return
		}
	}
	d.err = io.ErrNoProgress
}

var bom = []byte("\xef\xbb\xbf")

// dropLF leaves out the second half of a CRLF as soon as it is in the buffer.
// It never waits for it: the line has ended with the CR.
func (d *Decoder) dropLF() {
	if d.skipLF && d.pos < d.end {
		d.skipLF = false
		if d.buf[d.pos] == '\n' {
			d.pos++
		}
	}
}

// field takes one line that is not blank.
func (d *Decoder) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		if len(d.data)+len(value)+1 > d.limit {
			return d.tooLarge()
		}
		if d.hasData {
			d.data = append(d.data, '\n')
		}
		d.data, d.hasData = append(d.data, value...), true
	case "event":
		d.typ = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			d.id = string(value)
		}
	}
	return nil
}

func (d *Decoder) tooLarge() error {
	d.err = fmt.Errorf("%w of %d bytes", ErrEventTooLarge, d.limit)
	d.pos = d.end
	return d.err
}

// lineEnd gives the place of the first CR or LF, or -1.
func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	head := b
	if n >= 0 {
		head = b[:n]
	}
	if r := bytes.IndexByte(head, '\r'); r >= 0 {
		return r
	}
	return n
}

func comment(held, chunk []byte) bool {
	if len(held) > 0 {
		return held[0] == ':'
	}
	return len(chunk) > 0 && chunk[0] == ':'
}
