package gemini

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// hosted is what came of tools that the vendor runs.
type hosted struct {
	count     int
	codes     int      // calls of code without an id
	open      []string // ids of calls without a result, in order
	reported  map[string]bool
	grounding *grounding
	pages     *urlContext
}

// maxAccount bounds the account of a hosted result, in bytes.
const maxAccount = 4 << 10

// hostedPart takes a call or a result that the vendor gives as a part.
func (a *assembler) hostedPart(p *part, raw json.RawMessage) error {
	out := llm.Part{}
	switch {
	case p.Code != nil:
		out = llm.Part{Kind: llm.HostedCall, Name: "code_execution", WireID: p.Code.ID, Text: codeArguments(p.Code.Language, p.Code.Code)}
		if out.WireID == "" {
			out.WireID = fmt.Sprintf("code_%d", a.hosted.codes)
			a.hosted.codes++
		}
	case p.CodeResult != nil:
		r := p.CodeResult
		out = llm.Part{Kind: llm.HostedResult, WireID: r.ID, Text: bounded(r.Output, maxAccount), IsError: r.Outcome != "OUTCOME_OK"}
	case p.ToolCall != nil:
		out = llm.Part{Kind: llm.HostedCall, Name: strings.ToLower(bounded(p.ToolCall.Type, 64)), WireID: p.ToolCall.ID, Text: string(p.ToolCall.Args)}
		a.hosted.saw(p.ToolCall.Type)
	default:
		r := p.ToolResult
		out = llm.Part{Kind: llm.HostedResult, WireID: r.ID, Text: bounded(string(r.Response), maxAccount)}
		a.hosted.saw(r.Type)
	}
	state, err := a.keep(raw)
	if err != nil {
		return err
	}
	out.State = state
	return a.emitHosted(out)
}

func codeArguments(language, code string) string {
	raw, err := writeJSON(struct {
		Code     string `json:"code"`
		Language string `json:"language"`
	}{code, language})
	if err != nil {
		return ""
	}
	return string(raw)
}

// emitHosted emits a hosted part under its own index. A result without an id is
// of the oldest call that waits for one; a result whose call never came is
// given one without a state.
func (a *assembler) emitHosted(p llm.Part) error {
	h := &a.hosted
	if h.count++; h.count > maxCalls {
		return llm.Errorf(llm.Server, "the vendor's answer holds more than %d hosted calls and results", maxCalls)
	}
	if err := a.end(); err != nil {
		return err
	}
	p.WireID = bounded(p.WireID, 256)
	if p.Kind == llm.HostedCall {
		if p.WireID == "" {
			p.WireID = fmt.Sprintf("hosted_%d", h.count)
		}
		h.open = append(h.open, p.WireID)
	} else if !h.close(&p.WireID) {
		orphan := llm.Part{Kind: llm.HostedCall, Name: "unknown", WireID: p.WireID}
		if err := a.emitHosted(orphan); err != nil {
			return err
		}
		return a.emitHosted(p)
	}
	p.Index = a.next()
	return a.grow(p, 0)
}

// close takes the call of a result from the open ones, and names it where the
// result does not.
func (h *hosted) close(id *string) bool {
	for i, o := range h.open {
		if *id == "" || o == *id {
			*id = o
			h.open = append(h.open[:i:i], h.open[i+1:]...)
			return true
		}
	}
	if *id == "" {
		*id = fmt.Sprintf("hosted_%d", h.count)
	}
	return false
}

// saw remembers that a kind of tool is told by parts.
func (h *hosted) saw(kind string) {
	if h.reported == nil {
		h.reported = map[string]bool{}
	}
	switch {
	case strings.HasPrefix(kind, "GOOGLE_SEARCH"):
		h.reported["search"] = true
	case kind == "URL_CONTEXT":
		h.reported["pages"] = true
	}
}

// reports emits what the vendor tells of its tools beside the answer, for the
// record. Nothing of it goes back.
func (a *assembler) reports() error {
	if g := a.hosted.grounding; g != nil && !a.hosted.reported["search"] && len(g.Queries)+len(g.Chunks) > 0 {
		args, err := writeJSON(struct {
			Queries []string `json:"queries"`
		}{g.Queries[:min(len(g.Queries), 32)]})
		if err != nil {
			return llm.Errorf(llm.UnknownClass, "the searches cannot be kept").Because(err)
		}
		var lines []string
		for _, c := range g.Chunks {
			lines = append(lines, strings.TrimSpace(c.Web.Title+" "+c.Web.URI))
		}
		if err := a.report("google_search", string(args), lines); err != nil {
			return err
		}
	}
	if u := a.hosted.pages; u != nil && !a.hosted.reported["pages"] && len(u.Pages) > 0 {
		var lines []string
		for _, p := range u.Pages {
			lines = append(lines, strings.TrimSpace(p.URL+" "+strings.TrimPrefix(p.Status, "URL_RETRIEVAL_STATUS_")))
		}
		return a.report("url_context", "", lines)
	}
	return nil
}

func (a *assembler) report(name, args string, lines []string) error {
	if err := a.emitHosted(llm.Part{Kind: llm.HostedCall, Name: name, WireID: name, Text: bounded(args, maxAccount)}); err != nil {
		return err
	}
	return a.emitHosted(llm.Part{Kind: llm.HostedResult, WireID: name, Text: bounded(strings.Join(lines, "\n"), maxAccount)})
}
