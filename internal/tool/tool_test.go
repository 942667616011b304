package tool_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

func TestLevels(t *testing.T) {
	for level, want := range map[tool.Level][2]bool{
		tool.None: {true, true}, tool.Read: {true, true}, tool.Write: {true, false}, tool.ExternalEffect: {true, false},
		tool.Irreversible: {true, false}, "": {false, false}, "Read": {false, false},
	} {
		if level.Valid() != want[0] || level.Repeatable() != want[1] {
			t.Errorf("%q: valid %v, repeatable %v", level, level.Valid(), level.Repeatable())
		}
	}
}

func TestTimeout(t *testing.T) {
	for ms, want := range map[int64]time.Duration{0: time.Minute, -5: time.Minute, 250: 250 * time.Millisecond} {
		if got := (tool.Definition{TimeoutMS: ms}).Timeout(time.Minute); got != want {
			t.Errorf("%d ms is %v", ms, got)
		}
	}
}

// A run captures the canonical form of a definition.
func TestDefinitionIsCanonical(t *testing.T) {
	d := tool.Definition{
		Confined: true, Description: "a <b> & \"c\"", Idempotent: true, InputSchema: canonjson.Value(`{"type":"object"}`), Level: tool.Write,
		Name: "n", OutputSchema: canonjson.Value(`{}`), Policy: tool.Allow, Source: tool.HTTP, TimeoutMS: 7,
	}
	for _, d := range []tool.Definition{d, {InputSchema: canonjson.Value(`{}`)}} {
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if canonical, err := canonjson.Canonicalize(raw, canonjson.Limits{}); err != nil || !canonical.Equal(raw) {
			t.Errorf("not canonical (%v): %s", err, raw)
		}
		var back tool.Definition
		if err := json.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(back, d) {
			t.Errorf("%s reads back as %+v, %v", raw, back, err)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("private")
	err := fmt.Errorf("run: %w", tool.NewError("the file is not there", cause))
	var e *tool.Error
	if !errors.As(err, &e) || e.Error() != "the file is not there" || !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if lost := fmt.Errorf("post: %w", tool.NewError("no answer", tool.ErrOutcomeUnknown)); !errors.Is(lost, tool.ErrOutcomeUnknown) {
		t.Error("an unknown outcome is not in the chain")
	}
}
