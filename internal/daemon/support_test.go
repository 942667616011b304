package daemon_test

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

var rowsOfLog = eventlog.Rows

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}
