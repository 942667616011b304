package slots

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
)

// exported is one version of a slot within an export, which is a line of JSON
// for each, encrypted with age as a whole. The first line says its form.
type exported struct {
	Format    string `json:"format,omitempty"`
	Owner     string `json:"owner,omitempty"`
	Name      string `json:"name,omitempty"`
	Value     []byte `json:"value,omitempty"`
	Hosts     string `json:"hosts,omitempty"`
	CreatedAt string `json:"created_at,omitempty"`
	CreatedBy string `json:"created_by,omitempty"`
	Until     string `json:"until,omitempty"`
	// Slots is how many versions come before this, the last line: an export
	// that was cut is told.
	Slots *int `json:"slots,omitempty"`
}

const (
	exportFormat = "holdfast secrets 1"
	exportPage   = 100
	maxLine      = 4 * seal.MaxValue
)

// ParseRecipients reads age recipients (age1…), one a line or separated by
// commas.
func ParseRecipients(text string) ([]age.Recipient, error) {
	list, err := age.ParseRecipients(strings.NewReader(strings.ReplaceAll(text, ",", "\n")))
	if err != nil {
		return nil, errors.New("want age recipients, which begin with age1; age-keygen makes a pair")
	}
	return list, nil
}

// ParseIdentities reads an age identity file. The error repeats nothing of it.
func ParseIdentities(r io.Reader) ([]age.Identity, error) {
	list, err := age.ParseIdentities(r)
	if err != nil {
		return nil, errors.New("want a file of age identities, which begin with AGE-SECRET-KEY-1")
	}
	return list, nil
}

// Export writes every slot, all versions that count, to w, encrypted for the
// recipients. Each value is in memory one at a time, and in clear nowhere else.
// It says how many versions it wrote.
func (r *Room) Export(ctx context.Context, w io.Writer, to ...age.Recipient) (n int, err error) {
	if r.cfg.Ring == nil {
		return 0, r.noKey()
	}
	sealed, err := age.Encrypt(w, to...)
	if err != nil {
		return 0, fmt.Errorf("export secrets: %w", err)
	}
	out := json.NewEncoder(sealed)
	if err := out.Encode(exported{Format: exportFormat}); err != nil {
		return 0, err
	}
	now := event.FormatTime(time.Now())
	for p := (eventlog.Page{Limit: exportPage}); ; {
		list, next, err := r.cfg.Store.ListSecrets(ctx, "", p)
		if err != nil {
			return n, err
		}
		for _, newest := range list {
			rows, err := r.cfg.Store.Secret(ctx, newest.Owner, newest.Name)
			if errors.Is(err, eventlog.ErrNotFound) {
				continue // deleted meanwhile
			}
			if err != nil {
				return n, err
			}
			for i := len(rows) - 1; i >= 0; i-- { // the oldest first
				row := &rows[i]
				if row.Until != "" && row.Until <= now {
					continue
				}
				value, err := r.cfg.Ring.Open(placeOf(row), row.KeyID, row.Sealed)
				if err != nil {
					return n, fmt.Errorf("export secrets: version %d of %s: %w (master key %s)", row.Version, row.Name, err, row.KeyID)
				}
				if err := out.Encode(exported{Owner: row.Owner, Name: row.Name, Value: []byte(value), Hosts: row.Hosts, CreatedAt: row.CreatedAt, CreatedBy: row.CreatedBy, Until: row.Until}); err != nil {
					return n, err
				}
				n++
			}
		}
		if p.Cursor = next; next == "" {
			break
		}
	}
	if err := out.Encode(exported{Slots: &n}); err != nil {
		return n, err
	}
	return n, sealed.Close()
}

// Imported says what an import did.
type Imported struct {
	Versions int      // written
	Kept     []string // slots, as owner/name, that were there already and stay as they are
}

// Import reads what Export wrote and seals it under the current master key.
// Slots that are there already stay as they are. Nothing is written of an
// export that is not whole.
func (r *Room) Import(ctx context.Context, src io.Reader, with ...age.Identity) (Imported, error) {
	var done Imported
	if r.cfg.Ring == nil {
		return done, r.noKey()
	}
	list, err := readExport(src, with)
	if err != nil {
		return done, fmt.Errorf("import secrets: %w", err)
	}
	kept := map[place]bool{}
	versions := map[place]int64{}
	former := map[place]string{} // until when the version before counts
	now := event.FormatTime(time.Now())
	for i := range list {
		x := &list[i]
		at := place{x.Owner, x.Name}
		if kept[at] || x.Until != "" && x.Until <= now {
			continue
		}
		if versions[at] == 0 {
			if _, err := r.cfg.Store.Secret(ctx, x.Owner, x.Name); err == nil {
				kept[at] = true
				done.Kept = append(done.Kept, x.Owner+"/"+x.Name)
				continue
			} else if !errors.Is(err, eventlog.ErrNotFound) {
				return done, err
			}
		}
		row := eventlog.SecretRow{Owner: x.Owner, Name: x.Name, Version: versions[at] + 1, Hosts: x.Hosts, CreatedAt: x.CreatedAt, CreatedBy: x.CreatedBy}
		if row.KeyID, row.Sealed, err = r.cfg.Ring.Seal(placeOf(&row), string(x.Value)); err != nil {
			return done, fmt.Errorf("import secrets: %w", err)
		}
		if err := r.put(ctx, row, former[at]); err != nil {
			return done, err
		}
		r.cfg.Known.Add(string(x.Value))
		versions[at], former[at] = row.Version, x.Until
		done.Versions++
	}
	return done, nil
}

// readExport reads an export whole, and holds it to its form.
func readExport(src io.Reader, with []age.Identity) ([]exported, error) {
	opened, err := age.Decrypt(src, with...)
	if err != nil {
		var no *age.NoIdentityMatchError
		if errors.As(err, &no) {
			return nil, errors.New("it is encrypted for other recipients than these identities")
		}
		return nil, errors.New("it is no export of secrets that age can read")
	}
	return readLines(opened)
}

// readLines reads what stands within an export.
func readLines(opened io.Reader) ([]exported, error) {
	lines := bufio.NewScanner(opened)
	lines.Buffer(nil, maxLine)
	var list []exported
	for n := 0; lines.Scan(); n++ {
		var x exported
		if json.Unmarshal(lines.Bytes(), &x) != nil || n == 0 && x.Format != exportFormat {
			return nil, errors.New("it has no form that this version knows")
		}
		switch {
		case n == 0:
		case x.Slots != nil:
			if *x.Slots != len(list) || lines.Scan() {
				return nil, errors.New("it is not whole")
			}
			return list, nil
		case !nameForm.MatchString(x.Name), len(x.Value) > seal.MaxValue, !isTime(x.CreatedAt), x.Until != "" && !isTime(x.Until):
			return nil, errors.New("it has no form that this version knows")
		default:
			list = append(list, x)
		}
	}
	return nil, errors.New("it is not whole, or was changed")
}

func isTime(text string) bool {
	_, err := event.ParseTime(text)
	return err == nil
}
