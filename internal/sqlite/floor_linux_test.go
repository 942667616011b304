package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// BenchmarkFloor is the machine: a write of 512 bytes at the end of a file and
// fdatasync.
func BenchmarkFloor(b *testing.B) {
	for _, group := range []bool{false, true} {
		for _, n := range workers {
			b.Run(fmt.Sprintf("file-group-%v/%d", group, n), func(b *testing.B) {
				f, err := os.Create(filepath.Join(b.TempDir(), "f"))
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				benchWork(b, n, group, func(k int) error {
					if _, err := f.Write(make([]byte, 512*k)); err != nil {
						return err
					}
					return syscall.Fdatasync(int(f.Fd()))
				})
			})
		}
	}
}
