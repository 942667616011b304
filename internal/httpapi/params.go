package httpapi

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// The bounds of pages.
const (
	defaultPage   = 50
	maxPage       = 200
	defaultEvents = 100
	maxEvents     = 1000
)

// The parameters of the query that several routes share.
var (
	pLimit  = param{"limit", "query", "integer", "Items of a page, 1 to 200; 50 when absent."}
	pEvents = param{"limit", "query", "integer", "Events of a page, 1 to 1000; 100 when absent. A page of large events may hold fewer."}
	pCursor = param{"cursor", "query", "string", "What the page before gave as next_cursor."}
	pUser   = param{"user_id", "query", "string", "The user within whose sessions an alias is looked for; `default` when absent. A token that is bound to a user fixes it."}
	pOwner  = param{"user_id", "query", "string", "Only what belongs to this user. A token that is bound to a user fixes it."}
	pAfter  = param{"after", "query", "integer", "The sequence after which to begin; 0, the beginning, when absent."}
	pLastID = param{"Last-Event-ID", "header", "integer", "As `after`, and wins over it: what a browser sends when it connects again."}
)

func (c *call) page() (eventlog.Page, error) {
	limit, err := c.number("limit", defaultPage, 1, maxPage)
	return eventlog.Page{Limit: int(limit), Cursor: c.query["cursor"]}, err
}

// number reads a whole number of the query within bounds.
func (c *call) number(name string, absent, least, most int64) (int64, error) {
	text, ok := c.query[name]
	if !ok {
		return absent, nil
	}
	n, err := parseSeq(text)
	if err != nil || n < least || n > most {
		return 0, badParameter(name, "must be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

// parseSeq reads digits and nothing else.
func parseSeq(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// maxSeq is the largest sequence that a reader may name.
const maxSeq = 1<<53 - 1

// after reads where a reader of a log begins. The header wins.
func (c *call) after() (int64, error) {
	if text := c.r.Header.Get("Last-Event-ID"); text != "" {
		n, err := parseSeq(text)
		if err != nil || n > maxSeq {
			return 0, badParameter("Last-Event-ID", "must be the id of an event that a stream gave")
		}
		return n, nil
	}
	return c.number("after", 0, 0, maxSeq)
}

// owner is the user to whom a list is narrowed (I-34): the token's, or the one
// that is named; empty means all.
func (c *call) owner() (string, error) {
	named := c.query["user_id"]
	if c.who.UserID == "" && named == "" {
		return "", nil
	}
	return c.who.User(named)
}

// oneOf reads a parameter with a closed set of values.
func (c *call) oneOf(name string, values ...string) (string, error) {
	v := c.query[name]
	if v == "" || slices.Contains(values, v) {
		return v, nil
	}
	return "", badParameter(name, "must be one of "+strings.Join(values, ", "))
}

// wait reads ?wait=, a Go duration.
func (c *call) wait() (time.Duration, error) {
	text := c.query["wait"]
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > c.cfg.MaxWait {
		return 0, badParameter("wait", "must be a duration from 0s to "+c.cfg.MaxWait.String())
	}
	return d, nil
}

var errBusy = problem.New(problem.Limited, "too_many_streams", "too many streams and waits are open; try again")
