package sqlite

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// UnfinishedPrefix begins the names of what a restore leaves in a data directory
// while it is under way.
const UnfinishedPrefix = ".restoring-"

// MadeFile stands in a data directory that holds, or once held, a database: where
// it is and no database, somebody took that away, and none is begun in its place.
const MadeFile = "holdfast.made"

// Mark makes the MadeFile of a directory, where there is none.
func Mark(dir string) error {
	path := filepath.Join(dir, MadeFile)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	return createFile(path)
}

// checkFor bounds the checks of content at a start.
const checkFor = time.Second

// examine looks at what stands in the data directory before anything of it is
// opened for writing: a database over which SQLite would begin a new one, or into
// which it would fold a write-ahead log that is not its own, is refused with a
// *DamagedError and left as it is. fresh: there is none. The caller has the
// directory's lock.
func examine(ctx context.Context, dir string) (fresh bool, err error) {
	path := filepath.Join(dir, DatabaseFile)
	damaged := func(do, what string, args ...any) error {
		return &DamagedError{Dir: dir, What: fmt.Sprintf(what, args...), Do: do}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, UnfinishedPrefix+"*")); len(left) > 0 {
		return false, damaged("restore the backup again, into an empty directory", "a restore was cut before its end (%s)", filepath.Base(left[0]))
	}
	wal := sizeOf(path + "-wal")
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		if wal > 0 || sizeOf(path+"-journal") > 0 {
			return false, damaged("", "the file is not there, and the log of its last changes (%s-wal or -journal) is", DatabaseFile)
		}
		if _, err := os.Lstat(filepath.Join(dir, MadeFile)); err == nil {
			return false, damaged("put "+DatabaseFile+" back, or restore a backup (holdfast restore) into an empty directory; to begin anew with an empty log, move this directory away",
				"the file is not there, and the directory once held it (%s says so)", MadeFile)
		}
		return true, nil
	}
	if err != nil {
		return false, err
	}
	head := make([]byte, 100)
	n, _ := io.ReadFull(f, head) // what is short is told below
	info, serr := f.Stat()
	// Closed before SQLite opens it: closing a file lets go of this process's locks on it.
	if err = errors.Join(serr, f.Close()); err != nil {
		return false, err
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return false, damaged("", "it is no file")
	case size == 0:
		return false, damaged("", "it is empty: it was cut to nothing")
	case n < len(head) || !bytes.HasPrefix(head, []byte("SQLite format 3\x00")):
		return false, damaged("", "it does not begin as an SQLite database does: its head is damaged, or it is another file")
	}
	page := pageSize(binary.BigEndian.Uint16(head[16:]))
	pages := int64(binary.BigEndian.Uint32(head[28:]))
	switch {
	case page == 0:
		return false, damaged("", "its head is damaged (a size of pages that cannot be)")
	case wal == 0 && pages*page > size && bytes.Equal(head[24:28], head[92:96]):
		return false, damaged("", "it was cut: it holds %d bytes where its head says %d", size, pages*page)
	}
	if wal > 0 {
		if other := walPageSize(path + "-wal"); other != 0 && other != page {
			return false, damaged("put back the two files that belong together, or restore a backup into another directory",
				"%s-wal is the log of another database (pages of %d bytes, and not of %d)", DatabaseFile, other, page)
		}
	}
	why, err := examineContent(ctx, path, int32(binary.BigEndian.Uint32(head[60:])), wal > 0, 1)
	if err != nil {
		return false, err
	}
	if len(why) > 0 {
		do := ""
		if wal > 0 {
			do = "keep a copy of the directory. If files were put back here, see whether " + DatabaseFile + "-wal belongs to the " + DatabaseFile + " beside it: a log of another database, or of another time, does this. Otherwise restore a backup (holdfast restore) into another directory"
		}
		return false, damaged(do, "%s", why[0])
	}
	return false, nil
}

// Examine lists what is wrong with the database of a data directory, by the whole
// check of its structure. It takes no lock and changes nothing.
func Examine(ctx context.Context, dir string) ([]string, error) {
	path, err := filepath.Abs(filepath.Join(dir, DatabaseFile)) // a path in an address begins at the root
	if err != nil {
		return nil, err
	}
	return examineContent(ctx, path, 0, sizeOf(path+"-wal") > 0, 100)
}

// examineContent checks the content over a connection that cannot write: with a
// write-ahead log beside the database it is read through that, and not folded in. With
// most 1 it takes checkFor at most.
func examineContent(ctx context.Context, path string, number int32, wal bool, most int) (why []string, err error) {
	db, err := sql.Open("sqlite", looking(path, wal))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	x := examination{db: db, most: most, number: number}
	limited := ctx
	if most == 1 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, checkFor)
		defer cancel()
	}
	for _, look := range []func(context.Context) error{x.owner, x.structure, x.tail} {
		if err := look(limited); err != nil {
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case limited.Err() != nil:
				return x.why, nil // as far as it came in its time
			}
			x.note("%v", err)
		}
		if len(x.why) > 0 && most == 1 {
			break
		}
	}
	return x.why, nil
}

// looking is the name of a database for the driver that changes nothing of it.
func looking(path string, wal bool) string {
	q := url.Values{"mode": {"ro"}, "_dqs": {"0"}, "_pragma": {"busy_timeout(5000)", "cell_size_check(ON)"}}
	if !wal { // then nothing is beside it, and without this a database in that mode cannot be opened for reading only
		q.Set("immutable", "1")
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	return u.String()
}

type examination struct {
	db   *sql.DB
	most int
	why  []string
	// number is that of the database as its file has it, without the write-ahead
	// log; 0: not known.
	number int32
	newer  bool // its tables are of a newer program: what they hold is not known here
}

func (x *examination) note(text string, args ...any) {
	if len(x.why) < x.most {
		x.why = append(x.why, fmt.Sprintf(text, args...))
	}
}

// owner says whether the database is one of ours.
func (x *examination) owner(ctx context.Context) error {
	var tables, ours int
	if err := x.db.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(name IN ('migrations', 'log', 'streams')), 0) FROM sqlite_master WHERE type = 'table'").Scan(&tables, &ours); err != nil {
		return fmt.Errorf("its list of tables cannot be read: %w", err)
	}
	switch {
	case tables == 0:
		x.note("it holds no tables")
	case ours < 3:
		x.note("it is the database of another program, or lacks tables")
	default:
		steps, err := migrations()
		if err != nil {
			return err
		}
		var last int
		if err := x.db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM main.migrations").Scan(&last); err != nil {
			return err
		}
		x.newer = last > len(steps)
	}
	var number int32
	if err := x.db.QueryRowContext(ctx, "PRAGMA main.user_version").Scan(&number); err != nil {
		return err
	}
	if x.number != 0 && number != x.number {
		x.note("%s-wal is the log of another database", DatabaseFile)
	}
	return nil
}

// structure checks that pages and indices belong together.
func (x *examination) structure(ctx context.Context) error {
	pragma := "PRAGMA quick_check(1)"
	if x.most > 1 {
		pragma = fmt.Sprintf("PRAGMA integrity_check(%d)", x.most)
	}
	rows, err := x.db.QueryContext(ctx, pragma)
	if err != nil {
		return fmt.Errorf("its structure cannot be checked: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if text != "ok" {
			x.note("its structure is damaged: %s", text)
		}
	}
	return rows.Err()
}

// tailRows is how many of the newest rows of the log are read back at a start.
const tailRows = 256

// tail checks that the newest rows of the log follow from each other, and that
// the ends of their streams are what is noted as such (I-04).
func (x *examination) tail(ctx context.Context) error {
	if x.newer {
		return nil
	}
	rows, err := x.db.QueryContext(ctx, "SELECT "+logColumns+" FROM main.log ORDER BY id DESC LIMIT ?", tailRows)
	if err != nil {
		return fmt.Errorf("its log cannot be read: %w", err)
	}
	newest, err := collect(rows, scanLogRow)
	if err != nil {
		return fmt.Errorf("its log cannot be read: %w", err)
	}
	ends := map[event.Stream]*event.Row{}
	for _, r := range slices.Backward(newest) {
		prev := r.Prev
		if before := ends[r.Stream]; before != nil {
			prev = before.Hash
			if before.Last()+1 != r.First {
				x.note("the log of %s does not go on behind event %d", r.Stream, before.Last())
			}
		}
		if err := r.Check(prev); err != nil {
			x.note("the log is damaged at %s#%d: %v", r.Stream, r.First, err)
		}
		ends[r.Stream] = &r.Row
	}
	for stream, r := range ends {
		var h eventlog.Head
		var hash []byte
		if err := x.db.QueryRowContext(ctx, "SELECT head, hash FROM main.streams WHERE stream = ?", string(stream)).Scan(&h.Seq, &hash); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if h.Seq != r.Last() || !bytes.Equal(hash, r.Hash[:]) {
			x.note("the log of %s ends with event %d, and its end is noted as %d", stream, r.Last(), h.Seq)
		}
	}
	return nil
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// pageSize reads the size of pages of a head; 0: it can be none.
func pageSize(n uint16) int64 {
	size := int64(n)
	if n == 1 {
		size = 1 << 16
	}
	if size < 512 || size&(size-1) != 0 {
		return 0
	}
	return size
}

// walPageSize gives the size of pages of a write-ahead log, 0 when it has no head.
func walPageSize(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	head := make([]byte, 32)
	if _, err := io.ReadFull(f, head); err != nil || binary.BigEndian.Uint32(head)&^1 != 0x377f0682 {
		return 0
	}
	return int64(binary.BigEndian.Uint32(head[8:]))
}

// createDatabase makes a database with its tables under another name and then
// gives it its own, so that one which is there is whole: an empty file was cut.
func createDatabase(ctx context.Context, path string, generation int) (err error) {
	fresh := path + ".new"
	for _, end := range []string{"", "-journal", "-wal", "-shm"} { // of a first start that was cut
		if err := os.Remove(fresh + end); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := createFile(fresh); err != nil {
		return err
	}
	// It is a database when it has its name, and not before: it is brought to the disk
	// once, and not with each of its steps.
	db, err := sql.Open("sqlite", source(fresh, "rw", "journal_mode(MEMORY)", "synchronous(OFF)"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	err = migrate(ctx, conn, generation)
	if err == nil {
		err = identify(ctx, conn)
	}
	if err := errors.Join(err, conn.Close(), db.Close()); err != nil {
		return err
	}
	if err := syncFile(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// identify gives a database a number of its own, which stands in its head and
// so in every write-ahead log that holds its first page: by it a log of another one is told
// from its own. It also says what the file is, for file(1).
func identify(ctx context.Context, conn *sql.Conn) error {
	var number int32
	if err := conn.QueryRowContext(ctx, "PRAGMA main.user_version").Scan(&number); err != nil || number != 0 {
		return err
	}
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	number = int32(binary.BigEndian.Uint32(b[:])>>1) | 1
	_, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA main.application_id = %d; PRAGMA main.user_version = %d", applicationID, number))
	return err
}

// applicationID is "Hold" in the head of the file.
const applicationID = 0x486f6c64

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
