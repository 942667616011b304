// Package pieces delivers the bytes of a vendor's answer in every way in which
// a network may: whole, byte by byte, cut at every place, with each kind of
// line end. What an adapter makes of an answer must not depend on it. It is
// for tests.
package pieces

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
)

// allCuts is up to which length a body is cut at every place; a longer one is
// cut around each line end and at so many places more.
const allCuts = 3000

// Reader gives the bytes in one piece for each read, cut before the given
// offsets. Offsets outside of the body are ignored.
func Reader(body []byte, cuts ...int) io.Reader {
	cuts = slices.Compact(slices.Sorted(slices.Values(cuts)))
	r := &reader{}
	start := 0
	for _, c := range append(cuts, len(body)) {
		if c > start && c <= len(body) {
			r.list = append(r.list, body[start:c])
			start = c
		}
	}
	return r
}

// Bytes gives one byte for each read.
func Bytes(body []byte) io.Reader {
	r := &reader{list: make([][]byte, len(body))}
	for i := range body {
		r.list[i] = body[i : i+1]
	}
	return r
}

type reader struct{ list [][]byte }

func (r *reader) Read(p []byte) (int, error) {
	if len(r.list) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.list[0])
	if r.list[0] = r.list[0][n:]; len(r.list[0]) == 0 {
		r.list = r.list[1:]
	}
	return n, nil
}

// ends are the line ends of event streams.
var ends = []struct{ name, end string }{{"LF", "\n"}, {"CRLF", "\r\n"}, {"CR", "\r"}}

// LineEnds gives a body whose lines end with LF with each kind of line end.
func LineEnds(body []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, e := range ends {
			if !yield(e.name, bytes.ReplaceAll(body, []byte("\n"), []byte(e.end))) {
				return
			}
		}
	}
}

// Cuts gives a body as it is: whole, byte by byte, and in two pieces cut at
// every place.
func Cuts(body []byte) iter.Seq2[string, io.Reader] {
	return cuts(body, max(1, len(body)/allCuts*8))
}

// cuts cuts around each line end, and at every step-th place besides.
func cuts(body []byte, step int) iter.Seq2[string, io.Reader] {
	return func(yield func(string, io.Reader) bool) {
		if !yield("whole", Reader(body)) || !yield("byte by byte", Bytes(body)) {
			return
		}
		for cut := 1; cut < len(body); cut++ {
			near := bytes.ContainsAny(body[max(0, cut-2):min(len(body), cut+2)], "\r\n")
			if !near && cut%step != 0 {
				continue
			}
			if !yield(fmt.Sprintf("cut at %d", cut), Reader(body, cut)) {
				return
			}
		}
	}
}

// EveryWay gives a body whose lines end with LF with each kind of line end:
// with LF in all ways of Cuts, with CRLF and CR the same, with fewer cuts away
// from the line ends. The first is the body as it is, whole.
func EveryWay(body []byte) iter.Seq2[string, io.Reader] {
	return func(yield func(string, io.Reader) bool) {
		for end, text := range LineEnds(body) {
			step := max(1, len(body)/allCuts*8)
			if end != "LF" {
				step *= 16
			}
			for how, r := range cuts(text, step) {
				if !yield(end+", "+how, r) {
					return
				}
			}
		}
	}
}

// Client gives a client that is answered once, with status 200, the content
// type and the body as it is read from r. A second request gets an error.
func Client(contentType string, r io.Reader) *http.Client {
	return &http.Client{Transport: &once{contentType, r}}
}

type once struct {
	contentType string
	body        io.Reader
}

func (o *once) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close() // as every transport does
	}
	body := o.body
	if o.body = nil; body == nil {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {o.contentType}}, Body: io.NopCloser(body), ContentLength: -1,
	}, nil
}
