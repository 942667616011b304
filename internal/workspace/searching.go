package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/glob"
)

// maxNotes bounds the notes of an answer.
const maxNotes = 20

// errEnough ends a search at one of its bounds; a note says which.
var errEnough = errors.New("enough")

// searching is a search on its way.
type searching struct {
	bounds
	dir     *os.Root
	query   *regexp.Regexp
	glob    *glob.Pattern // nil: all files
	context int
	results int // of bounds, or what the call asks for

	seen      int   // names
	read      int64 // bytes
	files     int
	binary    int
	matches   int
	out       []byte // the matches, as JSON
	notes     []string
	truncated bool
	buffer    bytes.Buffer // the file at hand
}

// note says why not everything was searched or shown.
func (s *searching) note(format string, args ...any) {
	s.truncated = true
	if text := fmt.Sprintf(format, args...); len(s.notes) < maxNotes {
		s.notes = append(s.notes, text)
	} else if len(s.notes) == maxNotes {
		s.notes = append(s.notes, "and more of the like")
	}
}

// answer writes what was found.
func (s *searching) answer() string {
	b := strconv.AppendInt([]byte(`{"files":`), int64(s.files), 10)
	b = append(b, `,"matches":[`...)
	b = append(b, s.out...)
	b = append(b, `],"notes":`...)
	b = appendStrings(b, s.notes)
	b = append(b, `,"skipped":`...)
	b = strconv.AppendInt(b, int64(s.binary), 10)
	b = append(b, `,"truncated":`...)
	return string(append(strconv.AppendBool(b, s.truncated), '}'))
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, text := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = canonjson.AppendString(b, text)
	}
	return append(b, ']')
}

// start searches a file or a folder that the call names.
func (s *searching) start(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := s.dir.Stat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return s.folder(ctx, name, strings.Count(name, "/"))
	case !info.Mode().IsRegular():
		return refusal(nil, "%s is not a regular file", canonjson.QuoteName(name))
	}
	return s.file(ctx, name)
}

// folder searches what is in a folder. What cannot be read is noted.
func (s *searching) folder(ctx context.Context, name string, depth int) error {
	if depth >= maxDepth {
		s.note("%s lies too deep to be searched", canonjson.QuoteName(name))
		return nil
	}
	names, err := s.names(name)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(strings.ToLower(n), ours) {
			continue
		}
		full := path.Join(name, n)
		info, err := s.dir.Lstat(full)
		switch {
		case err == nil && info.IsDir():
			err = s.folder(ctx, full, depth+1)
		case err == nil && info.Mode().IsRegular() && (s.glob == nil || s.glob.Match(full)):
			err = s.file(ctx, full)
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist): // went away meanwhile
		case errors.Is(err, errEnough), ctx.Err() != nil:
			return err
		default:
			s.note("%s cannot be read", canonjson.QuoteName(full))
		}
	}
	return nil
}

// names gives the sorted names in a folder, all of them or errEnough.
func (s *searching) names(name string) ([]string, error) {
	f, err := s.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(s.bounds.names - s.seen + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if s.seen += len(names); s.seen > s.bounds.names {
		s.note("there are more than %d files and folders; %s and what comes after it was not searched: choose a narrower path", s.bounds.names, canonjson.QuoteName(name))
		return nil, errEnough
	}
	slices.Sort(names)
	return names, nil
}

// file searches one file.
func (s *searching) file(ctx context.Context, name string) error {
	f, err := openRegular(s.dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	s.buffer.Reset()
	if _, err := io.Copy(&s.buffer, io.LimitReader(f, sniffed)); err != nil {
		return err
	}
	s.read += int64(s.buffer.Len())
	if bytes.IndexByte(s.buffer.Bytes(), 0) >= 0 {
		s.binary++
		return nil
	}
	rest, err := io.Copy(&s.buffer, io.LimitReader(f, s.bounds.file+1-int64(s.buffer.Len())))
	if err != nil {
		return err
	}
	s.read += rest
	s.files++
	text := s.buffer.Bytes()
	if int64(len(text)) > s.bounds.file {
		text = text[:s.bounds.file]
		s.note("%s was searched in its first %d bytes only", canonjson.QuoteName(name), s.bounds.file)
	}
	if err := s.text(ctx, name, text); err != nil {
		return err
	}
	if s.read > s.bounds.bytes {
		s.note("the search ended after %d bytes, with %s; choose a narrower path or glob", s.bounds.bytes, canonjson.QuoteName(name))
		return errEnough
	}
	return nil
}

// text searches the lines of a file.
func (s *searching) text(ctx context.Context, name string, text []byte) error {
	number, long, told := 0, 0, 0 // told: before it all lines are in the answer, or are not wanted
	for start := 0; start < len(text); {
		line, next := lineAt(text, start)
		number++
		if number%64 == 1 || len(line) > 1<<10 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if len(line) > s.bounds.line {
			long++
		}
		if at := s.match(line); at != nil {
			if s.matches == s.results {
				s.note("there are more than %d matches; narrow the query, the path or the glob", s.results)
				return errEnough
			}
			before := s.before(text, told, start)
			var after []string
			after, told = s.after(text, next)
			one := appendMatch(nil, name, number, before, shorten(line, at[0]), after)
			if len(s.out)+len(one) > s.bounds.answer {
				s.note("the answer is full; narrow the query, the path or the glob")
				return errEnough
			}
			if s.matches > 0 {
				s.out = append(s.out, ',')
			}
			s.out = append(s.out, one...)
			s.matches++
		}
		start = next
	}
	if long > 0 {
		s.note("%d lines of %s were searched in their first %d bytes only", long, canonjson.QuoteName(name), s.bounds.line)
	}
	return nil
}

// lineAt gives the line that begins at start, without its end, and where the
// next one begins.
func lineAt(text []byte, start int) (line []byte, next int) {
	next = len(text)
	line = text[start:]
	if n := bytes.IndexByte(line, '\n'); n >= 0 {
		line, next = line[:n], start+n+1
	}
	return bytes.TrimSuffix(line, []byte("\r")), next
}

// match gives the place of the first match in a line, or nil.
func (s *searching) match(line []byte) []int {
	return s.query.FindIndex(line[:min(len(line), s.bounds.line)])
}

// before gives the lines of context before start, down to floor.
func (s *searching) before(text []byte, floor, start int) []string {
	var lines []string
	for len(lines) < s.context && start > floor {
		start = bytes.LastIndexByte(text[:start-1], '\n') + 1
		line, _ := lineAt(text, start)
		lines = append(lines, shorten(line, 0))
	}
	slices.Reverse(lines)
	return lines
}

// after gives the lines of context from next on, up to the next match, and
// where they end.
func (s *searching) after(text []byte, next int) ([]string, int) {
	var lines []string
	for len(lines) < s.context && next < len(text) {
		line, end := lineAt(text, next)
		if s.match(line) != nil {
			break
		}
		lines = append(lines, shorten(line, 0))
		next = end
	}
	return lines, next
}

func appendMatch(b []byte, name string, number int, before []string, text string, after []string) []byte {
	b = append(b, '{')
	if len(after) > 0 {
		b = append(appendStrings(append(b, `"after":`...), after), ',')
	}
	if len(before) > 0 {
		b = append(appendStrings(append(b, `"before":`...), before), ',')
	}
	b = append(b, `"line":`...)
	b = strconv.AppendInt(b, int64(number), 10)
	b = append(b, `,"path":`...)
	b = canonjson.AppendString(b, name)
	b = append(b, `,"text":`...)
	b = canonjson.AppendString(b, text)
	return append(b, '}')
}

// shorten cuts a line that is too long to be shown to what is around a place.
func shorten(line []byte, at int) string {
	if len(line) <= maxShown {
		return string(line)
	}
	begin := max(0, min(at-maxShown/3, len(line)-maxShown))
	for begin > 0 && begin < at && line[begin]&0xc0 == 0x80 { // not inside a character
		begin++
	}
	text := canonjson.CutRunes(string(line[begin:min(begin+maxShown+3, len(line))]), maxShown)
	if begin+len(text) < len(line) {
		text += "…"
	}
	if begin > 0 {
		text = "…" + text
	}
	return text
}
