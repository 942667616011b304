package filetree

import (
	"strings"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/glob"
)

// What no snapshot holds, whatever is configured: the store of Git, which is
// large and holds credentials, and files that a tool is about to put in place.
const (
	gitFolder = ".git"
	ours      = ".holdfast-"
)

// Bounds of the rules of a workspace. What is past them is passed over.
const (
	rulesFile     = ".gitignore"
	maxRulesBytes = 64 << 10 // of a file of rules
	maxRules      = 500      // of one file
	maxAllRules   = 2000     // that count at one place
)

// rule is one line of a .gitignore.
type rule struct {
	base    int // bytes of the path at which its folder ends, with the slash
	not     bool
	folders bool   // about folders only
	whole   bool   // about the whole path below its folder, else about the name
	literal string // what has to be equal; when pattern is nil and suffix empty
	suffix  string // what the name has to end with
	pattern *glob.Pattern
	tail    string // stands behind the path when it is held against the pattern
}

// parseRules reads the lines of a .gitignore whose folder has a path of base
// bytes. The language is a subset of Git's: names and paths with *, ?, [sets] and
// **, a slash at the end for folders only, a slash before it for paths below this
// folder, ! for what is not ignored after all, and # for comments. A line with a
// backslash, or that is no pattern, is passed over.
func parseRules(text string, base int) []rule {
	var rules []rule
	for line := range strings.Lines(text) {
		if len(rules) == maxRules {
			break
		}
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" || line[0] == '#' || strings.Contains(line, `\`) || !utf8.ValidString(line) {
			continue
		}
		r := rule{base: base}
		line, r.not = strings.CutPrefix(line, "!")
		line, r.folders = strings.CutSuffix(line, "/")
		anchored := strings.HasPrefix(line, "/")
		line = strings.TrimPrefix(line, "/")
		if rest, ok := strings.CutPrefix(line, "**/"); ok && !strings.Contains(rest, "/") && !anchored {
			line = rest // a name in whatever folder
		}
		r.whole = anchored || strings.Contains(line, "/")
		switch star, ok := strings.CutPrefix(line, "*"); {
		case line == "":
			continue
		case !strings.ContainsAny(line, "*?[{}"):
			r.literal = line
		case ok && !r.whole && !strings.ContainsAny(star, "*?[{}"):
			r.suffix = star
		default:
			form := strings.NewReplacer("{", "[{]", "}", "[}]", "[^", "[!").Replace(line)
			if anchored && !strings.Contains(form, "/") { // of a glob without a slash every folder would count
				r.tail = "/x"
			}
			p, err := glob.Compile(form + r.tail)
			if err != nil {
				continue
			}
			r.pattern = p
		}
		rules = append(rules, r)
	}
	return rules
}

// fits says whether a rule is about a path.
func (r *rule) fits(path, name string, isFolder bool) bool {
	if r.folders && !isFolder {
		return false
	}
	at := name
	if r.whole {
		at = path[r.base:]
	}
	switch {
	case r.pattern != nil:
		return r.pattern.Match(at + r.tail)
	case r.suffix != "":
		return strings.HasSuffix(at, r.suffix)
	}
	return at == r.literal
}

// ignored says whether a snapshot leaves a path out. rules are those of the
// folders above, outer ones first; the last that fits decides, as in Git. The
// files of rules themselves are always held: what they hide can be seen from them.
func (s *Store) ignored(rules []rule, path, name string, isFolder bool) bool {
	if strings.EqualFold(name, gitFolder) || len(name) >= len(ours) && strings.EqualFold(name[:len(ours)], ours) {
		return true
	}
	if s.names[name] {
		return true
	}
	for _, p := range s.ignore {
		if p.Match(path) {
			return true
		}
	}
	if name == rulesFile && !isFolder {
		return false
	}
	for i := len(rules) - 1; i >= 0; i-- {
		if rules[i].fits(path, name, isFolder) {
			return !rules[i].not
		}
	}
	return false
}
