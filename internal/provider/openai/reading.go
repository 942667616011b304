package openai

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
	// type: servers label streams and plain answers with each other's.
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
	var resp response
	if !parse(body, &resp) || resp.Output == nil && resp.Status == "" {
		return wire.Classify(r.answer.Status, r.answer.Header, body, time.Now(), r.secrets...)
	}
	switch resp.Status {
	case "in_progress", "queued":
		return llm.Errorf(llm.Server, "the vendor's answer is not finished")
	}
	return r.end("", &resp, body)
}

// stream reads an event stream to its end.
func (r *reading) stream(src io.Reader) error {
	dec := wire.NewDecoder(src, r.limit)
	for {
		ev, err := dec.Next()
		if err != nil {
			return r.broken(dec, err)
		}
		if done, err := r.event(ev); done || err != nil {
			return err
		}
	}
}

// broken closes an answer whose stream ended before the answer did.
func (r *reading) broken(dec *wire.Decoder, cause error) error {
	if errors.Is(cause, wire.ErrEventTooLarge) {
		return llm.Errorf(llm.Server, "the vendor sent a %v", cause).Because(cause)
	}
	if e := llm.AsError(cause); e.Class == llm.Aborted {
		return cause
	}
	// An event whose last blank line is missing counts when its data are whole.
	if ev, ok := dec.Rest(); ok && parse(bytes.TrimSpace(ev.Data), &event{}) {
		if done, err := r.event(ev); done || err != nil {
			return err
		}
	}
	if r.out.refusal() != "" { // a part of a refusal is one
		return r.out.refused("")
	}
	if !errors.Is(cause, io.EOF) {
		return cause // already an *llm.Error
	}
	if !r.out.any {
		return emptyReply("the vendor closed the stream without an answer")
	}
	return llm.Errorf(llm.Truncated, "the stream ended before the answer was complete")
}

// event takes one event and says whether it was the last.
func (r *reading) event(raw wire.Event) (done bool, err error) {
	data := bytes.TrimSpace(raw.Data)
	if len(data) == 0 || string(data) == "[DONE]" { // not of this API, though some servers send it
		return false, nil
	}
	var ev event
	if !parse(data, &ev) {
		if raw.Type == "error" {
			return false, wire.InStream(wire.VendorError{Message: string(data)}, r.secrets...)
		}
		if raw.Type != "" && raw.Type != "message" && !strings.HasPrefix(raw.Type, "response.") {
			return false, nil // "ping" and the like
		}
		return false, llm.Errorf(llm.Server, "the vendor sent a stream event that is not a JSON object")
	}
	if ev.Type == "" {
		ev.Type = raw.Type
	}
	switch ev.Type {
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done":
		var resp response
		if !parse(ev.Response, &resp) {
			return false, llm.Errorf(llm.Server, "the vendor ended the answer with an event that holds no response")
		}
		return true, r.end(ev.Type, &resp, ev.Response)
	case "error", "", "message":
		v, found := wire.ParseVendorError(data)
		if v.Type == "error" {
			v.Type = "" // the event's own
		}
		if found || ev.Type == "error" {
			return false, wire.InStream(v, r.secrets...)
		}
		return false, nil
	}
	return false, r.out.event(&ev)
}

// end takes the whole answer that ends a stream, or is a plain one. typ is the
// event's type, "" for a plain answer; raw is resp as it came.
func (r *reading) end(typ string, resp *response, raw []byte) error {
	if err := r.out.usage(resp.Usage); err != nil {
		return err
	}
	state := resp.Status
	if word, ok := strings.CutPrefix(typ, "response."); ok && (word != "completed" && word != "done" || state == "" || state == "in_progress") {
		state = word
	}
	switch state {
	case "failed", "cancelled":
		v, found := wire.ParseVendorError(raw)
		if !found || v.Message == "" && v.Code == "" {
			return llm.Errorf(llm.Server, "the vendor ended the answer as %s, without an error", state)
		}
		return wire.InStream(v, r.secrets...)
	}
	return r.out.finish(resp, state == "incomplete")
}

func emptyReply(why string) error {
	return &llm.Error{Class: llm.Truncated, Code: "empty_reply", Message: "empty reply: " + why}
}
