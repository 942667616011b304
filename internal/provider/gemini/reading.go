package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// reading is the reading of one answer.
type reading struct {
	answer  *wire.Answer
	secrets []string
	out     *assembler
	limit   int
}

func (r *reading) run() error {
	if r.answer.Status != http.StatusOK {
		return r.answer.Refused(r.secrets...)
	}
	first, err := wire.FirstByte(r.answer)
	if errors.Is(err, io.EOF) {
		return emptyReply("the vendor sent no data")
	}
	if err != nil {
		return err
	}
	// The first byte tells the kinds of body apart better than the content type:
	// gateways label streams and plain answers with each other's.
	body := io.MultiReader(bytes.NewReader([]byte{first}), r.answer)
	switch {
	case first == '[':
		return r.list(body)
	case first == '{' || first == '<' || !strings.Contains(r.answer.Header.Get("Content-Type"), "event-stream") && !strings.ContainsRune("dei:r", rune(first)):
		return r.plain(body)
	}
	return r.stream(body)
}

// plain reads one JSON object, which is a whole answer.
func (r *reading) plain(src io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(src, MaxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > MaxAnswer {
		return tooLarge()
	}
	body = bytes.TrimSpace(body)
	var c chunk
	if !parseObject(body, &c) || !c.known() {
		return wire.Classify(r.answer.Status, r.answer.Header, body, time.Now(), r.secrets...)
	}
	if err := r.take(&c, body); err != nil {
		return err
	}
	return r.out.finish()
}

// list reads a stream that was not asked to be one of events: a JSON list with
// one element for each event.
func (r *reading) list(src io.Reader) error {
	src = io.LimitReader(src, MaxAnswer+MaxAnswer/8)
	dec := json.NewDecoder(src)
	_, err := dec.Token() // the bracket, which is there
	for err == nil && dec.More() {
		var raw json.RawMessage
		if err = dec.Decode(&raw); err != nil {
			break
		}
		if failed := r.data(bytes.TrimSpace(raw)); failed != nil {
			return failed
		}
	}
	if err == nil {
		_, err = dec.Token()
	}
	var ours *llm.Error
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		err = io.EOF
	case errors.As(err, &ours):
		if ours.Class == llm.Aborted {
			return ours
		}
	case errors.As(err, &syntax) && !r.out.finished():
		return llm.Errorf(llm.Server, "the vendor sent a list that is not JSON").Because(err)
	default:
		err = io.EOF
	}
	return r.end(err)
}

// stream reads an event stream to its end.
func (r *reading) stream(src io.Reader) error {
	last := &lastBytes{src: src}
	dec := wire.NewDecoder(last, r.limit)
	for {
		ev, err := dec.Next()
		if err != nil {
			return r.ended(dec, last, err)
		}
		data := bytes.TrimSpace(ev.Data)
		if string(data) == doneMark {
			return r.end(io.EOF)
		}
		if err := r.event(ev.Type, data); err != nil {
			return err
		}
	}
}

// ended closes an answer whose stream has ended.
func (r *reading) ended(dec *wire.Decoder, last *lastBytes, cause error) error {
	if errors.Is(cause, wire.ErrEventTooLarge) {
		return llm.Errorf(llm.Server, "the vendor sent a %v", cause).Because(cause)
	}
	if e := llm.AsError(cause); e.Class == llm.Aborted {
		return cause
	}
	// An event whose last blank line is missing counts when its data are whole.
	if ev, ok := dec.Rest(); ok {
		data := bytes.TrimSpace(ev.Data)
		if json.Valid(data) {
			if err := r.event(ev.Type, data); err != nil {
				return err
			}
		}
	}
	if !r.out.finished() {
		if v, found := last.vendorError(); found {
			return wire.InStream(v, r.secrets...)
		}
	}
	return r.end(cause)
}

// end closes an answer when nothing more comes.
func (r *reading) end(cause error) error {
	if r.out.finished() {
		return r.out.finish()
	}
	if !errors.Is(cause, io.EOF) {
		return cause // already an *llm.Error
	}
	if !r.out.any {
		return emptyReply("the vendor closed the stream without an answer")
	}
	return llm.Errorf(llm.Truncated, "the stream ended without a finish reason")
}

// doneMark is of another dialect; gateways send it here too.
const doneMark = "[DONE]"

// event takes one event of the stream.
func (r *reading) event(typ string, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if typ == "error" {
		v, found := wire.ParseVendorError(data)
		if !found {
			v = wire.VendorError{Message: string(data)}
		}
		return wire.InStream(v, r.secrets...)
	}
	if typ != "" && typ != "message" && data[0] != '{' && data[0] != '[' {
		return nil // "ping" and the like
	}
	return r.data(data)
}

// data takes one piece of the answer, or a list of them.
func (r *reading) data(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(data, &list) == nil {
			for _, raw := range list {
				if len(raw) > 0 && raw[0] != '[' {
					if err := r.data(raw); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	var c chunk
	if !parseObject(data, &c) {
		return llm.Errorf(llm.Server, "the vendor sent a stream event that is not a JSON object")
	}
	return r.take(&c, data)
}

// take hands what one piece holds to the assembler. An error in it ends the
// answer, after what came with it.
func (r *reading) take(c *chunk, data []byte) error {
	if err := r.out.usage(c.Usage); err != nil {
		return err
	}
	if err := r.out.candidate(c.first()); err != nil {
		return err
	}
	if c.Error != nil || !c.known() {
		if v, found := wire.ParseVendorError(data); found {
			return wire.InStream(v, r.secrets...)
		}
	}
	if err := r.out.feedback(c.PromptFeedback); err != nil {
		return err
	}
	if r.out.finished() {
		r.answer.EndWithin(tail)
	}
	return nil
}

func emptyReply(why string) error {
	return &llm.Error{Class: llm.Truncated, Code: "empty_reply", Message: "empty reply: " + why}
}

func tooLarge() error {
	return llm.Errorf(llm.Server, "the vendor's answer is larger than %d bytes", MaxAnswer)
}

// lastBytes keeps the end of what was read. When a stream fails the vendor's
// servers may write the error's JSON behind the events as it is, which is no
// event.
type lastBytes struct {
	src  io.Reader
	kept []byte
}

const keepLast = 8 << 10

// Read implements io.Reader.
func (l *lastBytes) Read(p []byte) (int, error) {
	n, err := l.src.Read(p)
	l.kept = append(l.kept, p[:n]...)
	if over := len(l.kept) - keepLast; over > keepLast {
		l.kept = append(l.kept[:0], l.kept[over:]...)
	}
	return n, err
}

// vendorError finds an error that stands behind the last event. It begins a
// line, and what is an event never begins with a brace.
func (l *lastBytes) vendorError() (wire.VendorError, bool) {
	rest := bytes.TrimSpace(l.kept)
	for len(rest) > 0 {
		if rest[0] == '{' || rest[0] == '[' {
			if v, found := wire.ParseVendorError(rest); found {
				return v, true
			}
		}
		i := bytes.IndexAny(rest, "\r\n")
		if i < 0 {
			break
		}
		rest = bytes.TrimLeft(rest[i:], "\r\n")
	}
	return wire.VendorError{}, false
}
