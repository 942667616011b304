package call

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// The bounds of pages.
const (
	defaultPage = 50
	// MaxPage is the most that a page of a list holds.
	MaxPage = 200
)

// The parameters of the query that several routes share.
var (
	Limit       = openapi.Query("limit", "integer", "Items of a page, 1 to 200; 50 when absent.")
	EventsLimit = openapi.Query("limit", "integer", "Events of a page, 1 to 1000; 100 when absent. A page of large events may hold fewer.")
	Cursor      = openapi.Query("cursor", "string", "What the page before gave as next_cursor.")
	User        = openapi.Query("user_id", "string", "The user within whose sessions an alias is looked for; `default` when absent. A token that is bound to a user fixes it.")
	Owner       = openapi.Query("user_id", "string", "Only what belongs to this user. A token that is bound to a user fixes it.")
	AfterSeq    = openapi.Query("after", "integer", "The sequence after which to begin; 0, the beginning, when absent.")
	Since       = openapi.Query("since", "string", "Only what was made from this time on (RFC 3339).")
	Until       = openapi.Query("until", "string", "Only what was made before this time (RFC 3339).")
	Order       = openapi.Query("order", "string", "`desc`, newest first, or `asc`, oldest first; `desc` when absent. A cursor goes on in its own direction only.")
	Types       = openapi.Query("type", "string", "Only events of this type, or of these, with commas between; at most 16.")
	LastID      = openapi.Header("Last-Event-ID", "integer", "As `after`, and wins over it: what a browser sends when it connects again.")
)

// Page reads limit and cursor.
func (c *Call) Page() (eventlog.Page, error) {
	limit, err := c.Number("limit", defaultPage, 1, MaxPage)
	return eventlog.Page{Limit: int(limit), Cursor: c.Query["cursor"]}, err
}

// Range reads since, until and order.
func (c *Call) Range() (r eventlog.Range, err error) {
	if r.Since, r.Until, err = c.Between(); err != nil {
		return r, err
	}
	order, err := c.OneOf("order", "desc", "asc")
	r.Asc = order == "asc"
	return r, err
}

// Between reads since and until.
func (c *Call) Between() (since, until time.Time, err error) {
	if since, err = c.instant("since"); err != nil {
		return since, until, err
	}
	if until, err = c.instant("until"); err != nil {
		return since, until, err
	}
	if !since.IsZero() && !until.IsZero() && !since.Before(until) {
		return since, until, BadParameter("until", "must be later than since")
	}
	return since, until, nil
}

// instant reads a time of the query; zero when it is absent.
func (c *Call) instant(name string) (time.Time, error) {
	text := c.Query[name]
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !event.Storable(t) {
		return time.Time{}, BadParameter(name, "must be a time such as 2026-11-30T12:00:00Z (RFC 3339; a + in it is sent as %2B)")
	}
	return t.UTC(), nil
}

// maxTypes bounds the types of one filter.
const maxTypes = 16

// Types reads the types of events that a list is narrowed to.
func (c *Call) Types() ([]event.Type, error) {
	text := c.Query["type"]
	if text == "" {
		return nil, nil
	}
	var list []event.Type
	for name := range strings.SplitSeq(text, ",") {
		t := event.Type(name)
		if !event.Known(t) {
			return nil, BadParameter("type", "names no type of the catalogue: "+name)
		}
		if list = append(list, t); len(list) > maxTypes {
			return nil, BadParameter("type", "names more than "+strconv.Itoa(maxTypes)+" types")
		}
	}
	return list, nil
}

// Window cuts a page out of a list that is held as a whole, in ascending order
// of its keys. The cursor holds the last key of the page before, so that what
// comes and goes in between moves nothing.
func Window[T any](c *Call, kind string, all []T, key func(*T) string) (out api.List[T], err error) {
	p, err := c.Page()
	if err != nil {
		return out, err
	}
	after := ""
	if p.Cursor != "" {
		text, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
		of, rest, ok := strings.Cut(string(text), "\n")
		if err != nil || !ok || of != kind {
			return out, problem.New(problem.Invalid, "invalid_cursor", "the cursor is not one that this list gave")
		}
		after = rest
	}
	out.Items = []T{}
	for i := range all {
		if p.Cursor != "" && key(&all[i]) <= after {
			continue
		}
		if len(out.Items) == p.Limit {
			last := key(&out.Items[p.Limit-1])
			out.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(kind + "\n" + last))
			break
		}
		out.Items = append(out.Items, all[i])
	}
	return out, nil
}

// Number reads a whole number of the query within bounds.
func (c *Call) Number(name string, absent, least, most int64) (int64, error) {
	text, ok := c.Query[name]
	if !ok {
		return absent, nil
	}
	n, err := parseSeq(text)
	if err != nil || n < least || n > most {
		return 0, BadParameter(name, "must be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

// parseSeq reads digits and nothing else.
func parseSeq(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// MaxSeq is the largest sequence that a reader may name.
const MaxSeq = 1<<53 - 1

// After reads where a reader of a log begins. The header wins.
func (c *Call) After() (int64, error) {
	if text := c.R.Header.Get("Last-Event-ID"); text != "" {
		n, err := parseSeq(text)
		if err != nil || n > MaxSeq {
			return 0, BadParameter("Last-Event-ID", "must be the id of an event that a stream gave")
		}
		return n, nil
	}
	return c.Number("after", 0, 0, MaxSeq)
}

// Owner is the user to whom a list is narrowed (I-34): the token's, or the one
// that is named; empty means all.
func (c *Call) Owner() (string, error) {
	named := c.Query["user_id"]
	if c.Who.UserID == "" && named == "" {
		return "", nil
	}
	return c.Who.User(named)
}

// OneOf reads a parameter with a closed set of values.
func (c *Call) OneOf(name string, values ...string) (string, error) {
	v := c.Query[name]
	if v == "" || slices.Contains(values, v) {
		return v, nil
	}
	return "", BadParameter(name, "must be one of "+strings.Join(values, ", "))
}

// Wait reads ?wait=, a Go duration.
func (c *Call) Wait() (time.Duration, error) {
	text := c.Query["wait"]
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > c.server.cfg.MaxWait {
		return 0, BadParameter("wait", "must be a duration from 0s to "+c.server.cfg.MaxWait.String())
	}
	return d, nil
}
