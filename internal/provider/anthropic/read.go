package anthropic

import (
	"bytes"
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
	// The first byte tells the two kinds of body apart better than the content
	// type: gateways label streams and plain answers with each other's.
	body := io.MultiReader(bytes.NewReader([]byte{first}), r.answer)
	switch first {
	case '{', '[', '<':
		return r.plain(body)
	}
	if !strings.Contains(r.answer.Header.Get("Content-Type"), "event-stream") && !strings.ContainsRune("dei:r", rune(first)) {
		return r.plain(body)
	}
	return r.stream(body)
}

// plain reads an answer that is no stream.
func (r *reading) plain(src io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(src, MaxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > MaxAnswer {
		return llm.Errorf(llm.Server, "the vendor's answer is larger than %d bytes", MaxAnswer)
	}
	msg, ok := parseMessage(body)
	if !ok || msg.Type == "error" || msg.Content == nil && msg.StopReason == "" {
		return wire.Classify(r.answer.Status, r.answer.Header, body, time.Now(), r.secrets...)
	}
	if err := r.out.message(&msg); err != nil {
		return err
	}
	return r.out.finish(true)
}

// stream reads an event stream to its end.
func (r *reading) stream(src io.Reader) error {
	dec := wire.NewDecoder(src, r.limit)
	for {
		ev, err := dec.Next()
		if err != nil {
			return r.ended(dec, err)
		}
		if done, err := r.event(ev); err != nil {
			return err
		} else if done {
			return r.out.finish(true)
		}
	}
}

// ended closes an answer whose stream ended before message_stop.
func (r *reading) ended(dec *wire.Decoder, cause error) error {
	if errors.Is(cause, wire.ErrEventTooLarge) {
		return llm.Errorf(llm.Server, "the vendor sent a %v", cause).Because(cause)
	}
	if e := llm.AsError(cause); e.Class == llm.Aborted {
		return cause
	}
	// An event whose last blank line is missing counts when its data are whole.
	if ev, ok := dec.Rest(); ok {
		data := bytes.TrimSpace(ev.Data)
		if _, whole := parseEvent(data); whole || string(data) == doneMark {
			if done, err := r.event(ev); err != nil {
				return err
			} else if done {
				return r.out.finish(true)
			}
		}
	}
	if r.out.reason != "" {
		return r.out.finish(false)
	}
	if !errors.Is(cause, io.EOF) {
		return cause // already an *llm.Error
	}
	if !r.out.any {
		return emptyReply("the vendor closed the stream without an answer")
	}
	return llm.Errorf(llm.Truncated, "the stream ended without a stop reason")
}

// doneMark is not the vendor's; gateways that also speak another dialect end
// their streams with it.
const doneMark = "[DONE]"

// event takes one event and says whether it was the last.
func (r *reading) event(ev wire.Event) (done bool, err error) {
	data := bytes.TrimSpace(ev.Data)
	if len(data) == 0 {
		return false, nil
	}
	if string(data) == doneMark {
		return true, nil
	}
	e, ok := parseEvent(data)
	if e.Type == "" {
		e.Type = ev.Type
	}
	if !ok && (e.Type == "" || known(e.Type)) {
		if e.Type == "error" {
			return false, wire.InStream(wire.VendorError{Message: string(data)}, r.secrets...)
		}
		return false, llm.Errorf(llm.Server, "the vendor sent a stream event that is not a JSON object")
	}
	if e.Type == "error" || !known(e.Type) && e.failed() {
		v, _ := wire.ParseVendorError(data)
		return false, wire.InStream(v, r.secrets...)
	}
	switch e.Type {
	case "message_stop":
		return true, nil
	case "message": // a gateway that sends the whole answer as one event
		msg, _ := parseMessage(data)
		return msg.Content != nil, r.out.message(&msg)
	}
	if err := r.out.event(&e); err != nil {
		return false, err
	}
	if r.out.reason != "" {
		r.answer.EndWithin(tail)
	}
	return false, nil
}

func emptyReply(why string) error {
	return &llm.Error{Class: llm.Truncated, Code: "empty_reply", Message: "empty reply: " + why}
}
