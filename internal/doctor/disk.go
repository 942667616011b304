package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/diskfs"
)

const (
	syncSize  = 4 << 10         // bytes that a sync has to bring to the disk
	syncLimit = 5 * time.Second // of the whole measurement

	lowSpace = 1 << 30 // free bytes below which there is a warning
)

// space says how much room there is.
func (p *patient) space() {
	dir := p.existing()
	if free, ok := diskfs.Free(dir); ok {
		reserve := p.Config.Store.ReserveBytes()
		switch {
		case free < reserve:
			p.add("disk space", Fail, "make room there; the daemon goes on by itself", "%s free at %s, and store.reserve is %s: submissions are refused (507 storage_full), and below a quarter of it work waits", size(free), dir, size(reserve))
		case free < lowSpace:
			p.add("disk space", Warn, "make room before it is gone: below store.reserve ("+size(reserve)+") submissions are refused (507)", "%s free at %s", size(free), dir)
		default:
			p.add("disk space", OK, "", "%s free at %s", size(free), dir)
		}
	}
}

// sync says what a commit costs.
func (p *patient) sync() {
	took, err := measure(p.existing(), p.SyncCount)
	if err != nil {
		p.add("disk sync", Warn, "see the finding about the data directory", "it cannot be measured: %v", err)
		return
	}
	level, text, do := judgeSync(took)
	p.add("disk sync", level, do, "%s", text)
}

// measure writes and syncs blocks to a file of its own, and gives what each took.
func measure(dir string, n int) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".holdfast-doctor-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, syncSize)
	began := time.Now()
	for i := range n {
		block[0] = byte(i)
		at := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
		if time.Since(began) > syncLimit {
			break
		}
	}
	return took, nil
}

// judgeSync says what the syncs mean for a daemon that syncs each commit.
func judgeSync(took []time.Duration) (level Level, text, do string) {
	sorted := slices.Clone(took)
	slices.Sort(sorted)
	median, slow := sorted[len(sorted)/2], sorted[len(sorted)*99/100]
	text = fmt.Sprintf("%d syncs of 4 KiB: half took at most %s, 99 of 100 at most %s. ", len(took), short(median), short(slow))
	switch {
	case median < 10*time.Microsecond:
		return Warn, text + "No disk is that fast: what is acknowledged here does not survive a loss of power", "put data_dir on a real disk if that matters"
	case median > 20*time.Millisecond:
		return Warn, text + fmt.Sprintf("Each submission waits that long at least; one client alone gets %d commits a second", perSecond(median)),
			"put data_dir on a local SSD, or write store.sync: normal if the last moments may be lost at a power cut"
	}
	return OK, text + fmt.Sprintf("One client alone gets up to %d commits a second; many at once share them", perSecond(median)), ""
}

func perSecond(d time.Duration) int64 { return int64(time.Second / max(d, 1)) }

func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func size(n uint64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}
