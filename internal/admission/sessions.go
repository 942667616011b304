package admission

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// CreateSession makes a session. A caller's id that the user has already is a conflict.
func (a *Admission) CreateSession(ctx context.Context, c Caller, req *api.CreateSession) (event.SessionID, error) {
	if a.stopped.Load() {
		return "", errStopping
	}
	user, err := c.User(req.UserID)
	if err != nil {
		return "", err
	}
	if req.ID != "" && (!aliasForm.MatchString(req.ID) || strings.HasPrefix(req.ID, "ses_") || strings.Trim(req.ID, ".") == "") {
		return "", problem.New(problem.Invalid, "invalid_session_id", "id must match [A-Za-z0-9._-]{1,128} with more than dots in it, and not begin with ses_")
	}
	if len(req.ThreadID) > 256 {
		return "", problem.New(problem.TooLarge, "thread_id_too_large", "thread_id holds more than 256 bytes")
	}
	set, err := a.settings(ctx, user, req)
	if err != nil {
		return "", err
	}
	id, err := event.NewSessionID(a.cfg.Random)
	if err != nil {
		return "", err
	}
	err = a.command(ctx, id, nil, nil, event.Event{
		SessionID: id, UserID: user,
		Data: &event.SessionCreated{Alias: req.ID, Settings: set, ThreadID: req.ThreadID},
	})
	var dup *eventlog.DuplicateError
	if errors.As(err, &dup) {
		return "", problem.New(problem.Conflict, "session_exists", "the user %q has a session with the id %q already", user, req.ID).Because(err)
	}
	return id, err
}

// settings checks the settings of a new session.
func (a *Admission) settings(ctx context.Context, user string, req *api.CreateSession) (event.Settings, error) {
	set := event.Settings{
		HistoryLimit: req.HistoryLimit, MaxTurns: req.MaxTurns, OnDoubt: event.OnDoubt(req.OnDoubt), Title: req.Title,
		Instructions: event.TextContent(req.Instructions), Tools: sortedNames(req.Tools),
	}
	if set.OnDoubt == "" {
		set.OnDoubt = event.DoubtAsk
	}
	var err error
	if set.Metadata, err = a.metadata(req.Metadata); err != nil {
		return set, err
	}
	if req.InputContract != nil {
		if set.InputContract, err = inputContract(req.InputContract); err != nil {
			return set, err
		}
	}
	if req.OutputContract != nil {
		if set.OutputContract, err = outputContract(req.OutputContract); err != nil {
			return set, err
		}
	}
	if req.RoutePolicy != nil {
		if set.RoutePolicy, err = a.routePolicy(req.RoutePolicy); err != nil {
			return set, err
		}
	}
	if set.ReplyTargets, err = a.replyTargets(ctx, user, req.ReplyTargets); err != nil {
		return set, err
	}
	return set, a.checkSettings(&set)
}

// checkSettings holds the rules that creation and change share.
func (a *Admission) checkSettings(s *event.Settings) error {
	l := a.cfg.Limits
	switch {
	case s.OnDoubt != event.DoubtAsk && s.OnDoubt != event.DoubtContinue:
		return problem.New(problem.Invalid, "invalid_on_doubt", "on_doubt must be ask or continue")
	case s.MaxTurns < 0 || s.MaxTurns > l.MaxTurns:
		return problem.New(problem.Invalid, "invalid_max_turns", "max_turns must be between 1 and %d", l.MaxTurns)
	case s.HistoryLimit < 0 || s.HistoryLimit > l.HistoryLimit:
		return problem.New(problem.Invalid, "invalid_history_limit", "history_limit must be between 1 and %d", l.HistoryLimit)
	case s.Instructions.Size() > l.InstructionsBytes:
		return problem.New(problem.TooLarge, "instructions_too_large", "instructions hold more than %d bytes", l.InstructionsBytes)
	case len(s.Title) > 512:
		return problem.New(problem.TooLarge, "title_too_large", "title holds more than 512 bytes")
	}
	if s.Tools != nil {
		if len(*s.Tools) > maxTools {
			return problem.New(problem.TooLarge, "too_many_tools", "more than %d tools", maxTools)
		}
		if _, missing := a.cfg.Tools.Select(s.Tools); len(missing) > 0 {
			return problem.New(problem.Invalid, "unknown_tool", "no configured tool is named %s", canonjson.CutRunes(strings.Join(missing, ", "), 200))
		}
	}
	return nil
}

// maxTools bounds the tools that a session names.
const maxTools = 256

func (a *Admission) metadata(raw api.Raw) (canonjson.Value, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	v, err := canonjson.Canonicalize(raw, canonjson.Limits{Bytes: a.cfg.Limits.MetadataBytes})
	if err != nil || v[0] != '{' {
		return nil, problem.New(problem.Invalid, "invalid_metadata", "metadata must be one strict JSON object of at most %d bytes", a.cfg.Limits.MetadataBytes).Because(err)
	}
	return v, nil
}

func issues(list []contract.Issue) []problem.Issue {
	out := make([]problem.Issue, len(list))
	for i, is := range list {
		out[i] = problem.Issue{Path: is.Path, Text: is.Text}
	}
	return out
}

func inputContract(req *api.InputContract) (*event.InputContract, error) {
	s, list := contract.ParseSchema(req.Schema)
	if len(list) > 0 {
		return nil, problem.New(problem.Invalid, "input_contract_schema_unsupported", "the schema cannot be a contract: %s", list[0]).With(issues(list)...)
	}
	return &event.InputContract{Schema: s.Render()}, nil
}

func outputContract(req *api.OutputContract) (*event.OutputContract, error) {
	out, list := contract.ParseOutput(req.Schema, req.MaxRepairAttempts)
	if len(list) > 0 {
		return nil, problem.New(problem.Invalid, "output_contract_schema_unsupported", "the schema cannot be a contract: %s", list[0]).With(issues(list)...)
	}
	return &event.OutputContract{Schema: out.Schema.Render(), MaxRepairAttempts: out.MaxRepairAttempts}, nil
}

func (a *Admission) routePolicy(req *api.RoutePolicy) (*event.RoutePolicy, error) {
	if _, err := a.cfg.Route(req.Route, req.Model); err != nil {
		return nil, err
	}
	return &event.RoutePolicy{Route: req.Route, Model: req.Model}, nil
}

// Change is one prospective change of a session's settings: Names are the
// members of event.Settings that take the values in To.
type Change struct {
	Names []string
	To    event.Settings
}

// Patch reads a PATCH body as a change.
func (a *Admission) Patch(req *api.UpdateSession) (Change, error) {
	var ch Change
	name := func(n string) { ch.Names = append(ch.Names, n) }
	if req.Title != nil {
		name("title")
		ch.To.Title = *req.Title
	}
	if req.Instructions != nil {
		name("instructions")
		ch.To.Instructions = event.TextContent(*req.Instructions)
	}
	if len(req.Metadata) > 0 {
		name("metadata")
		var err error
		if ch.To.Metadata, err = a.metadata(req.Metadata); err != nil {
			return ch, err
		}
	}
	if len(req.Tools) > 0 {
		name("tools")
		tools, err := toolNames(req.Tools)
		if err != nil {
			return ch, err
		}
		ch.To.Tools = tools
	}
	if req.OnDoubt != nil {
		name("on_doubt")
		ch.To.OnDoubt = event.OnDoubt(*req.OnDoubt)
	}
	if req.MaxTurns != nil {
		name("max_turns")
		ch.To.MaxTurns = *req.MaxTurns
	}
	if req.HistoryLimit != nil {
		name("history_limit")
		ch.To.HistoryLimit = *req.HistoryLimit
	}
	if len(ch.Names) == 0 {
		return ch, problem.New(problem.Invalid, "nothing_to_change", "the body names no member to change")
	}
	return ch, nil
}

// SetInputContract, SetOutputContract, SetRoutePolicy and SetReplyTargets make
// the change that a PUT asks for; a nil argument is a DELETE.
func (a *Admission) SetInputContract(req *api.InputContract) (ch Change, err error) {
	ch.Names = []string{"input_contract"}
	if req != nil {
		ch.To.InputContract, err = inputContract(req)
	}
	return ch, err
}

// SetOutputContract: see SetInputContract.
func (a *Admission) SetOutputContract(req *api.OutputContract) (ch Change, err error) {
	ch.Names = []string{"output_contract"}
	if req != nil {
		ch.To.OutputContract, err = outputContract(req)
	}
	return ch, err
}

// SetRoutePolicy: see SetInputContract.
func (a *Admission) SetRoutePolicy(req *api.RoutePolicy) (ch Change, err error) {
	ch.Names = []string{"route_policy"}
	if req != nil {
		ch.To.RoutePolicy, err = a.routePolicy(req)
	}
	return ch, err
}

// SetReplyTargets: see SetInputContract. Whether the targets may be used is
// checked by Update, which knows whose the session is.
func (a *Admission) SetReplyTargets(req *api.ReplyTargets) (ch Change, err error) {
	ch.Names = []string{"reply_targets"}
	if req != nil {
		ch.To.ReplyTargets, err = a.readTargets(req.ReplyTargets)
	}
	return ch, err
}

// conflicts bounds how often a command is tried again when what it was decided
// by has changed in between.
const conflicts = 8

// Update changes settings. Runs that exist keep what they captured (I-08).
func (a *Admission) Update(ctx context.Context, c Caller, id event.SessionID, ch Change) error {
	resolved := false
	for range conflicts {
		row, err := a.Find(ctx, c, string(id), "")
		if err != nil {
			return err
		}
		if row.Status != session.Open {
			return errClosed
		}
		set, err := row.Settings()
		if err != nil {
			return err
		}
		if len(ch.To.ReplyTargets) > 0 && !resolved {
			if ch.To.ReplyTargets, err = a.resolveTargets(ctx, row.UserID, ch.To.ReplyTargets); err != nil {
				return err
			}
			resolved = true
		}
		d := &event.SessionUpdated{Actor: c.Actor, Changed: ch.Names, Settings: ch.To, Version: int(row.SettingsVersion) + 1}
		set.Take(d)
		if err := a.checkSettings(&set); err != nil {
			return err
		}
		err = a.command(ctx, row.ID, sessionIs(row.ID, row.SettingsVersion, session.Open), nil,
			event.Event{SessionID: row.ID, UserID: row.UserID, Data: d})
		if !conflicted(err) {
			return err
		}
	}
	return problem.New(problem.Conflict, "settings_conflict", "the session is being changed by others; try again")
}

var errClosed = problem.New(problem.Conflict, "session_closed", "the session is closed: it takes no new work and no change")

func conflicted(err error) bool {
	var ce *eventlog.ConditionError
	return errors.As(err, &ce)
}

// Close ends intake; what was accepted still runs. A closed session stays closed.
func (a *Admission) Close(ctx context.Context, c Caller, row eventlog.SessionRow, reason string) error {
	if row.Status == session.Closed {
		return nil
	}
	err := a.command(ctx, row.ID, sessionIs(row.ID, 0, session.Open), nil,
		event.Event{SessionID: row.ID, UserID: row.UserID, Data: &event.SessionClosed{Actor: c.Actor, Reason: note(reason)}})
	if conflicted(err) {
		return nil // somebody closed it in between
	}
	return err
}

// Erase deletes the content of a session; its chain stays whole. Unfinished
// runs or deliveries forbid it.
func (a *Admission) Erase(ctx context.Context, c Caller, row eventlog.SessionRow) error {
	here := derived.Col{Name: "session_id", Value: string(row.ID)}
	require := append(sessionIs(row.ID, 0, session.Open, session.Closed),
		eventlog.Condition{Table: derived.Queue, Where: []derived.Col{here}, Absent: true},
		eventlog.Condition{Table: derived.Outbox, Where: []derived.Col{here, {Name: "status", Value: outbox.Pending}}, Absent: true})
	err := a.append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{{Stream: row.ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{
			{SessionID: row.ID, UserID: row.UserID, Data: &event.SessionErased{Actor: c.Actor}}}}},
		Require: require, Erase: row.ID,
	})
	var ce *eventlog.ConditionError
	switch {
	case err == nil && a.cfg.Forget != nil:
		return a.cfg.Forget(row.UserID, row.ID)
	case !errors.As(err, &ce):
		return err
	case ce.Index == 0:
		return errErased
	}
	return problem.New(problem.Conflict, "session_active", "the session has unfinished runs or deliveries; cancel the runs and resolve the deliveries first").Because(err)
}

func toolNames(raw api.Raw) (*[]string, error) {
	var names *[]string
	if err := json.Unmarshal(raw, &names); err != nil {
		return nil, problem.New(problem.Invalid, "invalid_tools", "tools must be a list of names, or null for every configured tool").Because(err)
	}
	return sortedNames(names), nil
}

// sortedNames gives each name once, in order; nil stays nil.
func sortedNames(names *[]string) *[]string {
	if names == nil {
		return nil
	}
	out := slices.Compact(slices.Sorted(slices.Values(*names)))
	if out == nil {
		out = []string{}
	}
	return &out
}
