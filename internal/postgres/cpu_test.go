package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// processorTime is what this process and the server's processes for a store
// have used so far; those of the server only where it runs here.
func processorTime(b *testing.B, s *Store) (own, server time.Duration) {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	own = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	var pids []int
	if err := s.pool.QueryRow(context.Background(), "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = $1", s.cfg.Node).Scan(&pids); err != nil {
		b.Fatal(err)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return own, 0
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		var user, system int64
		fmt.Sscan(fields[11], &user)
		fmt.Sscan(fields[12], &system)
		server += time.Duration(user+system) * tick
	}
	return own, server
}

// reportProcessor reports the processor time of each act since from was taken.
func reportProcessor(b *testing.B, s *Store) func() {
	own, server := processorTime(b, s)
	return func() {
		own2, server2 := processorTime(b, s)
		b.ReportMetric(float64((own2-own).Microseconds())/float64(b.N), "own-cpu-µs")
		b.ReportMetric(float64((server2-server).Microseconds())/float64(b.N), "server-cpu-µs")
	}
}
