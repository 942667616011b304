package workspace

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/glob"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// bounds are the limits of one search.
type bounds struct {
	names   int           // names of files and folders that are looked at
	bytes   int64         // that are read of all files
	file    int64         // that are read of one file
	line    int           // bytes of a line in which is searched
	time    time.Duration // looked at between lines
	answer  int           // bytes of an answer, about
	results int           // lines that match, when the call names no number
}

var standardBounds = bounds{
	names: 100_000, bytes: 256 << 20, file: 4 << 20, line: 64 << 10, time: 10 * time.Second, answer: 24 << 10, results: 100,
}

const (
	maxQuery   = 512  // bytes
	maxProgram = 2000 // steps of a compiled expression: what one byte of text may cost
	maxResults = 1000
	maxContext = 10
	maxShown   = 300 // bytes of a line that an answer shows
	sniffed    = 8 << 10
)

func searchDefinition() tool.Definition {
	text := `{"items":{"type":"string"},"type":"array"}`
	return tool.Definition{
		Name: SearchFiles,
		Description: "Search the text files of the workspace line by line, in the order of folders, names and lines. `query` is literal text, or with `regex` " +
			"an RE2 expression. `glob` chooses files: * and ? within a name, ** for any folders, {a,b}, [a-z]; without / it is about the file's name, " +
			"with / about its path relative to the workspace. Binary files are skipped, links are not followed. `truncated` says that not everything " +
			"was searched or shown, `notes` why.",
		InputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"context":{"description":"lines to show before and after each match, 0 when absent","maximum":10,"minimum":0,"type":"integer"},` +
			`"glob":{"description":"pattern of files, such as *.md or src/**/*.{ts,tsx}; all files when absent","maxLength":256,"minLength":1,"type":"string"},` +
			`"ignore_case":{"description":"take upper and lower case as the same","type":"boolean"},` +
			`"max_results":{"description":"lines that match at most, 100 when absent","maximum":1000,"minimum":1,"type":"integer"},` +
			`"path":{"description":"file or folder relative to the workspace; the workspace itself when absent","maxLength":1024,"minLength":1,"type":"string"},` +
			`"query":{"description":"what to look for, within one line","maxLength":512,"minLength":1,"type":"string"},` +
			`"regex":{"description":"query is an RE2 expression","type":"boolean"}},` +
			`"required":["query"],"type":"object"}`),
		OutputSchema: value(`{"additionalProperties":false,"properties":{` +
			`"files":{"type":"integer"},"matches":{"items":{"additionalProperties":false,"properties":{` +
			`"after":` + text + `,"before":` + text + `,"line":{"type":"integer"},"path":{"type":"string"},"text":{"type":"string"}},` +
			`"required":["line","path","text"],"type":"object"},"type":"array"},"notes":` + text + `,"skipped":{"type":"integer"},"truncated":{"type":"boolean"}},` +
			`"required":["files","matches","notes","skipped","truncated"],"type":"object"}`),
		Level:    tool.Read,
		Source:   tool.Local,
		Confined: true,
	}
}

// search gives {"files","matches":[{"after","before","line","path","text"}…],
// "notes","skipped","truncated"} in canonical form: files that were searched,
// lines that match, why not everything was, binary files. Context lines are
// there once, with the match that comes first.
func (p place) search(ctx context.Context, call tool.Call, limits bounds) (tool.Result, error) {
	var args struct {
		Query      string
		Path       *string
		Glob       *string
		Regex      bool
		IgnoreCase bool   `json:"ignore_case"`
		Context    *int64 `json:"context"`
		MaxResults *int64 `json:"max_results"`
	}
	if err := arguments(call, &args); err != nil {
		return tool.Result{}, err
	}
	s := searching{bounds: limits, results: limits.results}
	name := "."
	var err error
	if args.Path != nil {
		if name, err = clean(*args.Path); err != nil {
			return tool.Result{}, err
		}
	}
	if s.query, err = compileQuery(args.Query, args.Regex, args.IgnoreCase); err != nil {
		return tool.Result{}, err
	}
	if args.Glob != nil {
		if s.glob, err = glob.Compile(*args.Glob); err != nil {
			return tool.Result{}, refusal(err, "glob: %v", err)
		}
	}
	if args.Context != nil {
		s.context = int(min(max(0, *args.Context), maxContext))
	}
	if args.MaxResults != nil {
		s.results = int(min(max(1, *args.MaxResults), maxResults))
	}
	dir, err := p.open(call, false)
	switch {
	case errors.Is(err, errNoFolder) && name != ".":
		return tool.Result{}, refusal(nil, "there is no %s in the workspace", canonjson.QuoteName(name))
	case err != nil && !errors.Is(err, errNoFolder):
		return tool.Result{}, err
	case err == nil:
		defer dir.Close()
		s.dir = dir
		limited, cancel := context.WithTimeout(ctx, limits.time)
		defer cancel()
		err := s.start(limited, name)
		if ctx.Err() != nil {
			return tool.Result{}, ctx.Err()
		}
		switch refused := (*tool.Error)(nil); {
		case errors.Is(err, context.DeadlineExceeded):
			s.note("the search was cut after %v; choose a narrower path or glob", limits.time)
		case errors.As(err, &refused):
			return tool.Result{}, err
		case err != nil && !errors.Is(err, errEnough):
			return tool.Result{}, explain(err, "search", name)
		}
	}
	return tool.Result{Output: s.answer(), JSON: true}, nil
}

// compileQuery makes the expression that a line must match. What it costs is
// bounded: the time for a line grows with its length and the expression's size,
// and with nothing else.
func compileQuery(query string, regex, ignoreCase bool) (*regexp.Regexp, error) {
	switch {
	case query == "":
		return nil, refusal(nil, "the query is empty")
	case len(query) > maxQuery:
		return nil, refusal(nil, "the query has %d bytes, at most %d are allowed", len(query), maxQuery)
	case !utf8.ValidString(query):
		return nil, refusal(nil, "the query is not UTF-8")
	case !regex && strings.ContainsAny(query, "\r\n"):
		return nil, refusal(nil, "the query holds a line end; the search goes line by line: look for one of the lines")
	}
	if !regex {
		query = regexp.QuoteMeta(query)
	}
	if ignoreCase {
		query = "(?i)" + query
	}
	tree, err := syntax.Parse(query, syntax.Perl)
	if err == nil {
		var prog *syntax.Prog
		if prog, err = syntax.Compile(tree.Simplify()); err == nil && len(prog.Inst) > maxProgram {
			return nil, refusal(nil, "the expression is too large: write fewer or smaller repetitions")
		}
	}
	var re *regexp.Regexp
	if err == nil {
		re, err = regexp.Compile(query)
	}
	if err != nil {
		var e *syntax.Error
		text := "it cannot be compiled"
		if errors.As(err, &e) {
			text = fmt.Sprintf("%s: %s", e.Code, canonjson.QuoteName(e.Expr))
		}
		return nil, refusal(err, "the query is no RE2 expression: %s; for literal text leave regex out", text)
	}
	return re, nil
}
