package sqlite

import (
	"context"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const foundRefs = "temp.found_refs"

// createRefs makes the table of the references that are found, which is on disk
// as it is as long as the log.
func (v *verification) createRefs(ctx context.Context) error {
	return v.exec(ctx, "CREATE TABLE "+foundRefs+` (owner TEXT NOT NULL, ref TEXT NOT NULL, kind TEXT NOT NULL, by_row TEXT NOT NULL,
		PRIMARY KEY (owner, ref, kind)) WITHOUT ROWID`)
}

// refer notes a reference.
func (v *verification) refer(ctx context.Context, r storecore.FoundRef) error {
	_, err := v.st.exec(ctx, []byte("INSERT OR IGNORE INTO "+foundRefs+" (owner, ref, kind, by_row) VALUES (?, ?, ?, ?)"), r.Owner, r.Ref, string(r.Kind), r.By)
	return err
}

// checkRefs finds references without a blob, and, where the whole log could be
// read, blobs without a reference and those of a kind that no reference allows.
// The bodies of an erased session's deliveries are gone with it.
func (v *verification) checkRefs(ctx context.Context) error {
	var found string
	err := v.eachRef(ctx, "SELECT owner, ref, kind, by_row FROM "+foundRefs+` r
		WHERE NOT EXISTS (SELECT 1 FROM main.blobs b WHERE b.owner = r.owner AND b.ref = r.ref) ORDER BY owner, ref`,
		func(owner, ref, kind, by string) {
			where := "blob " + owner + " " + ref
			if where == found || kind == string(event.BlobDelivery) && v.WasErased(event.SessionID(owner)) {
				return
			}
			found = where
			v.Report.Find(where, "%s refers to it (%s), and it is missing", by, kind)
		})
	if err != nil || !v.Report.LogSound {
		return err
	}
	err = v.eachRef(ctx, `SELECT owner, ref, kind, '' FROM main.blobs b
		WHERE NOT EXISTS (SELECT 1 FROM `+foundRefs+" r WHERE r.owner = b.owner AND r.ref = b.ref) ORDER BY owner, ref",
		func(owner, ref, kind, _ string) { v.Report.Find("blob "+owner+" "+ref, "no event refers to it") })
	if err != nil {
		return err
	}
	// Equal bytes are one blob, of the kind of whoever came first.
	return v.eachRef(ctx, "SELECT b.owner, b.ref, b.kind, min(r.by_row) FROM main.blobs b JOIN "+foundRefs+` r ON r.owner = b.owner AND r.ref = b.ref
		GROUP BY b.owner, b.ref, b.kind HAVING sum(r.kind = b.kind) = 0 ORDER BY b.owner, b.ref`,
		func(owner, ref, _, by string) {
			v.Report.Find("blob "+owner+" "+ref, "is not of a kind that %s allows", by)
		})
}

func (v *verification) eachRef(ctx context.Context, query string, found func(owner, ref, kind, by string)) error {
	rows, err := v.st.query(ctx, []byte(query))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var owner, ref, kind, by string
		if err := rows.Scan(&owner, &ref, &kind, &by); err != nil {
			return err
		}
		found(owner, ref, kind, by)
	}
	return rows.Err()
}
