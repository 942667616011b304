package canonjson_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// stricter lists the y_ files of JSONTestSuite that our rules refuse on
// purpose, each with its rule.
var stricter = map[string]string{
	"y_object_duplicated_key.json":           "no repeated names",
	"y_object_duplicated_key_and_value.json": "no repeated names",
}

func TestJSONTestSuite(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(shared(t, "vectors", "JSONTestSuite"), "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	refused := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		v, err := canonjson.Canonicalize(text, canonjson.Limits{})
		seen[name[:2]]++
		rule := stricter[name]
		switch {
		case rule != "":
			refused++
			if err == nil || !strings.Contains(err.Error(), "duplicate field") {
				t.Errorf("%s: %v, want it refused: %s", name, err, rule)
			}
		case strings.HasPrefix(name, "n_") && err == nil:
			t.Errorf("%s: accepted as %s", name, v)
		case strings.HasPrefix(name, "y_") && err != nil:
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			again(t, v)
		}
	}
	if refused != len(stricter) {
		t.Errorf("%d of the %d files refused on purpose are there", refused, len(stricter))
	}
	if seen["n_"] < 180 || seen["y_"] < 90 || seen["i_"] < 30 {
		t.Errorf("files seen: %v", seen)
	}
}

// again fails unless a canonical value is its own canonical form.
func again(t interface {
	Helper()
	Errorf(string, ...any)
}, v canonjson.Value) {
	t.Helper()
	n, err := v.Node()
	if err != nil {
		t.Errorf("canonical form refused: %v: %s", err, v)
		return
	}
	if w := n.Append(nil); !bytes.Equal(v, w) {
		t.Errorf("canonical form of\n%s is\n%s", v, w)
	}
}

func TestRFC8785Pairs(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join(shared(t, "vectors", "jcs", "input"), "*.json"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("%d inputs, %v", len(inputs), err)
	}
	for _, file := range inputs {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		input, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		output, err := os.ReadFile(shared(t, "vectors", "jcs", "output", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		outhex, err := os.ReadFile(shared(t, "vectors", "jcs", "outhex", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.Join(strings.Fields(string(outhex)), ""))
		if err != nil {
			t.Fatal(err)
		}
		got, err := canonjson.Canonicalize(input, canonjson.Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%s, want\n%s", name, got, want)
		}
		if !bytes.Equal(bytes.TrimSpace(output), want) {
			t.Errorf("%s: output and outhex differ", name)
		}
	}
}

// TestNumberTable makes the first lines of the public table of ECMAScript
// numbers and compares their digest with the published one.
func TestNumberTable(t *testing.T) {
	readme, err := os.ReadFile(shared(t, "vectors", "jcs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		SHA256 map[string]string `json:"sha256"`
	}
	text, err := os.ReadFile(shared(t, "vectors", "jcs", "numbers.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	block, _, _ := strings.Cut(string(readme), "staticF64s")
	var bits []uint64
	for _, m := range regexp.MustCompile(`0x([0-9a-f]{16})n`).FindAllStringSubmatch(block, -1) {
		u, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		bits = append(bits, u)
	}
	for i := range uint64(2000) {
		bits = append(bits, 0x0010000000000000+i)
	}
	digest := sha256.New()
	var block32 [32]byte
	rest := block32[:0]
	for lines := 1; lines <= 100_000; lines++ {
		var u uint64
		if lines <= len(bits) {
			u = bits[lines-1]
		} else {
			for f := 0.0; f == 0 || math.IsInf(f, 0) || math.IsNaN(f); f = math.Float64frombits(u) {
				if len(rest) == 0 {
					block32 = sha256.Sum256(block32[:])
					rest = block32[:]
				}
				u = 0
				for i := range 8 {
					u |= uint64(rest[i]) << (8 * i)
				}
				rest = rest[8:]
			}
		}
		writeLine(t, digest, u)
		if want := table.SHA256[strconv.Itoa(lines)]; want != "" {
			if got := hex.EncodeToString(digest.Sum(nil)); got != want {
				t.Fatalf("after %d lines: %s, want %s", lines, got, want)
			}
		}
	}
}

func writeLine(t *testing.T, digest hash.Hash, u uint64) {
	t.Helper()
	text := strconv.FormatFloat(math.Float64frombits(u), 'e', -1, 64)
	v, err := canonjson.Canonicalize([]byte(text), canonjson.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	fmt.Fprintf(digest, "%x,%s\n", u, v)
}
