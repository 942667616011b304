package problem_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

func TestOneTableOfKinds(t *testing.T) {
	for kind, want := range map[problem.Kind][2]int{
		problem.Invalid: {400, 4}, problem.Unauthenticated: {401, 4}, problem.Forbidden: {403, 4}, problem.NotFound: {404, 4},
		problem.Conflict: {409, 4}, problem.Gone: {410, 4}, problem.TooLarge: {413, 4}, problem.Limited: {429, 4},
		problem.Unavailable: {503, 3}, problem.Internal: {500, 1}, "never heard of": {500, 1},
	} {
		if kind.Status() != want[0] || kind.ExitCode() != want[1] {
			t.Errorf("%s is %d, exit %d", kind, kind.Status(), kind.ExitCode())
		}
		if back := problem.KindOfStatus(kind.Status()); back != kind && kind != "never heard of" {
			t.Errorf("status %d is %s, not %s", kind.Status(), back, kind)
		}
	}
	for status, want := range map[int]problem.Kind{418: problem.Invalid, 422: problem.Invalid, 502: problem.Internal, 0: problem.Internal, 302: problem.Internal} {
		if got := problem.KindOfStatus(status); got != want {
			t.Errorf("status %d is %s", status, got)
		}
	}
}

// What is not meant for the caller stays in the log (I-33).
func TestCausesArePrivate(t *testing.T) {
	secret := errors.New("password=hunter2")
	e := problem.New(problem.Conflict, "in_use", "%s is in use", "box")
	with := e.Because(secret)
	if with.Detail != "box is in use" || !errors.Is(with, secret) || !strings.Contains(with.Error(), "hunter2") {
		t.Errorf("%+v", with)
	}
	if errors.Is(e, secret) || e.Error() != "in_use: box is in use" {
		t.Errorf("the origin has the cause too: %v", e)
	}
	foreign := problem.Of(fmt.Errorf("open database: %w", secret))
	if foreign.Kind != problem.Internal || foreign.Code != "internal" || strings.Contains(foreign.Detail, "hunter2") || !errors.Is(foreign, secret) {
		t.Errorf("%+v", foreign)
	}
	if got := problem.Of(fmt.Errorf("submit: %w", with)); got != with {
		t.Errorf("%+v", got)
	}
	if err := fmt.Errorf("submit: %w", with); !problem.Is(err, "in_use") || problem.Is(err, "other") || problem.Is(secret, "in_use") {
		t.Error("codes are not told apart")
	}
}

func TestWithKeepsItsOrigin(t *testing.T) {
	one := problem.New(problem.Invalid, "bad", "bad")
	for range 3 { // so that the list has room behind it
		one = one.With(problem.Issue{Path: "$.a", Text: "x"})
	}
	two, three := one.With(problem.Issue{Text: "y"}), one.With(problem.Issue{Text: "z"})
	if len(one.Issues) != 3 || len(two.Issues) != 4 || two.Issues[3].Text != "y" || three.Issues[3].Text != "z" {
		t.Errorf("%v %v %v", one.Issues, two.Issues, three.Issues)
	}
}
