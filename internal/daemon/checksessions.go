package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// checkSessions says what a start would refuse of the targets and the session
// templates that stand in the file, as far as it can be known without a database:
// sessions and secret slots are in it.
func checkSessions(cfg *config.Config, tools map[string]string) (warnings []string, mistakes []error) {
	guard, err := targetGuard(cfg, &Options{})
	if err != nil {
		return nil, nil // told of already
	}
	w := &ways{cfg: cfg, guard: guard, secrets: func(_ context.Context, _, name, _ string) ([]string, error) {
		if cfg.Slotted(config.Ref{Secret: name}) {
			return nil, errSlot // in the database; the start says whether it is set
		}
		text, err := cfg.Secret(config.Ref{Secret: name})
		if err != nil {
			return nil, problem.New(problem.Unavailable, "secret_unavailable", "%v", err)
		}
		return []string{text}, nil
	}}
	at := "" // the key that is looked at
	target := func(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error) {
		_, err := w.check(ctx, user, t)
		if err == nil && t.Secret != "" { // check passes over one that cannot be read now
			_, err = w.secrets(ctx, user, t.Secret, "")
		}
		if errors.Is(err, errSlot) {
			if user == slots.Daemon {
				name := w.slotOf(ctx, &t)
				warnings = append(warnings, fmt.Sprintf("%s: the secret %s is a slot, which this check cannot see: until it is set with holdfast secrets set %s, runs that would use the fallback are refused", at, name, name))
			}
			err = nil
		}
		if problem.Is(err, "secret_unavailable") { // the daemon may have it where this process does not
			warnings = append(warnings, fmt.Sprintf("%s: %s", at, problem.Of(err).Detail))
			err = nil
		}
		return t, err
	}
	note := func(err error) {
		if err != nil {
			mistakes = append(mistakes, cfg.Mistake(at, "%s", problem.Of(err).Detail))
		}
	}
	ctx := context.Background()
	for i := range cfg.Targets.Fallback {
		at = fmt.Sprintf("targets.fallback[%d]", i)
		_, err := target(ctx, slots.Daemon, cfg.Targets.Fallback[i].Target())
		note(err)
	}
	var known []tool.Tool
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		known = append(known, nominal(name))
	}
	set, err := tool.NewSet(known...)
	if err != nil {
		return warnings, mistakes
	}
	intake := admission.New(admission.Config{Tools: set, CheckTarget: target, Route: func(string, string) (event.Route, error) { return event.Route{}, nil }})
	for _, name := range slices.Sorted(maps.Keys(cfg.SessionTemplates)) {
		at = "session_templates." + name
		if t, cerr := cfg.Template(name); cerr == nil { // else told of already
			t.ReplyTargets = withoutSessions(t.ReplyTargets)
			note(intake.CheckSession(ctx, admission.DefaultUser, t))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Connectors)) {
		at = "connectors." + name + ".reply_targets"
		if list, cerr := cfg.ReplyTargets(name); cerr == nil && list != nil {
			note(intake.CheckSession(ctx, admission.DefaultUser, &api.CreateSession{ReplyTargets: withoutSessions(*list)}))
		}
	}
	return warnings, mistakes
}

// errSlot stands for a secret of which the configuration knows the name alone.
var errSlot = problem.New(problem.Unavailable, "secret_unavailable", "a secret slot")

// withoutSessions leaves out what only a database knows.
func withoutSessions(list []api.ReplyTarget) (out []api.ReplyTarget) {
	for _, t := range list {
		if t.Type != event.TargetSession {
			out = append(out, t)
		}
	}
	return out
}

// nominal is a tool of which only the name is known.
type nominal string

func (n nominal) Definition() tool.Definition { return tool.Definition{Name: string(n)} }

func (n nominal) Run(context.Context, tool.Call) (tool.Result, error) {
	return tool.Result{}, fmt.Errorf("the tool %s only has a name", string(n))
}
