package admission

import (
	"context"
	"errors"
	"reflect"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// SourceConnector is the source of a run that an event from outside made.
const SourceConnector = "connector"

// Inbound is an event of a connector, mapped. Its sender is verified.
type Inbound struct {
	Connector string
	User      string // whose sessions it works in
	// EventHash is the digest of the event's id, Fingerprint that of its body.
	EventHash, Fingerprint string
	// Ref names the session, by id or alias. Empty: each event has a new one.
	Ref string
	// Session is how a session is made where Ref names none yet; its ID is left
	// empty. Nil: it must be there.
	Session *api.CreateSession
	Run     api.SubmitRun
	// Remember makes the run's explicit reply targets the session's own, if that is idle.
	Remember bool
	// Dry: everything is checked, and nothing appended.
	Dry bool
}

// Receipt says what became of an event.
type Receipt struct {
	Run     event.RunID
	Session event.SessionID
	Created bool // false: a repeat, and the run was there
	Made    bool // the session was made for it
	// Remembered: the targets are the session's now. NotRemembered is why not, where
	// they were asked to be: one of the Reason constants.
	Remembered    bool
	NotRemembered string
}

var (
	errEventReused = problem.New(problem.Conflict, "event_conflict", "the id of the event was used with another body")
	errNoPlace     = problem.New(problem.Unavailable, "session_unavailable", "the session that the connector feeds is not there; its operator must make it")
)

// Receive makes the run of an event. One event makes one run, whatever session
// its body is mapped to now and however often, and over how many nodes, it
// comes (I-07): its key, the session that may be made for it and the run commit
// together. A session that was erased has forgotten its events.
func (a *Admission) Receive(ctx context.Context, in *Inbound) (Receipt, error) {
	c := Caller{Actor: "connector " + in.Connector, UserID: in.User}
	ctx, cancel := context.WithTimeout(ctx, appendTime)
	defer cancel()
	for range conflicts {
		if r, err := a.Received(ctx, in); r.Run != "" || err != nil {
			return r, err
		}
		if a.stopped.Load() {
			return Receipt{}, errStopping
		}
		r, err := a.receive(ctx, c, in)
		var dup *eventlog.DuplicateError
		if !errors.As(err, &dup) && !conflicted(err) {
			return r, err
		}
		// An equal event, or one that made the same session, won; or the session changed.
	}
	return Receipt{}, problem.New(problem.Conflict, "session_busy", "the session is being changed by others; try again")
}

// CheckSession says what of a session that is to be made would be refused.
func (a *Admission) CheckSession(ctx context.Context, user string, req *api.CreateSession) error {
	_, err := a.settings(ctx, user, req)
	return err
}

// Received looks an event up: Connector, User, EventHash and Fingerprint say which.
// No run: it is new.
func (a *Admission) Received(ctx context.Context, in *Inbound) (Receipt, error) {
	row, err := a.cfg.Store.Inbound(ctx, in.User, in.Connector, in.EventHash)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		return Receipt{}, nil
	case err != nil:
		return Receipt{}, err
	case row.Fingerprint != in.Fingerprint:
		return Receipt{}, errEventReused
	}
	return Receipt{Run: row.RunID, Session: row.SessionID}, nil
}

// receive appends the run, behind the session that it may want.
func (a *Admission) receive(ctx context.Context, c Caller, in *Inbound) (Receipt, error) {
	items, err := a.items(ctx, in.User, &in.Run)
	if err != nil {
		return Receipt{}, err
	}
	p, err := a.place(ctx, c, in)
	if err != nil {
		return Receipt{}, err
	}
	r := Receipt{Session: p.row.ID, Created: true, Made: p.made}
	sub := &Submission{Request: &in.Run, Source: SourceConnector, SaveTargets: in.Remember}
	d, blobs, err := a.draft(ctx, c, &p.row, &p.set, sub, items)
	if err != nil {
		return Receipt{}, err
	}
	if r.Remembered, r.NotRemembered, err = a.remember(ctx, c, sub, p, d); err != nil {
		return Receipt{}, err
	}
	d.Idempotency = &event.IdempotencyKey{Fingerprint: in.Fingerprint, KeyHash: in.EventHash, Operation: event.ConnectorOperation(in.Connector)}
	if in.Dry {
		if p.made {
			r.Session = ""
		}
		return r, nil
	}
	if r.Run, err = event.NewRunID(a.cfg.Random); err != nil {
		return Receipt{}, err
	}
	created := event.Event{SessionID: p.row.ID, UserID: p.row.UserID, RunID: r.Run, Data: d}
	queued := created
	queued.Data = &event.RunQueued{}
	if err := a.command(ctx, p.row.ID, p.require, blobs, append(p.before, created, queued)...); err != nil {
		return Receipt{}, err
	}
	return r, nil
}

// place is the session that a run goes to.
type place struct {
	row     eventlog.SessionRow
	set     event.Settings
	made    bool                 // it is made with the run
	before  []event.Event        // what stands in the append before the run
	require []eventlog.Condition // under which all of it is decided
}

// place finds the session of an event, or says how it is made.
func (a *Admission) place(ctx context.Context, c Caller, in *Inbound) (*place, error) {
	if in.Ref != "" {
		row, err := a.Find(ctx, c, in.Ref, in.User)
		var e *problem.Error
		switch {
		case err == nil:
			return a.existing(ctx, row)
		case !errors.As(err, &e) || e.Kind != problem.NotFound && e.Kind != problem.Gone:
			return nil, err
		case in.Session == nil || e.Kind == problem.Gone:
			return nil, errNoPlace.Because(err)
		}
	}
	req := *in.Session
	req.ID = in.Ref
	set, err := a.settings(ctx, in.User, &req)
	if err != nil {
		return nil, err
	}
	id, err := event.NewSessionID(a.cfg.Random)
	if err != nil {
		return nil, err
	}
	return &place{
		row: eventlog.SessionRow{ID: id, UserID: in.User, SettingsVersion: 1}, set: set, made: true,
		before: []event.Event{{SessionID: id, UserID: in.User, Data: &event.SessionCreated{Alias: in.Ref, Settings: set, ThreadID: req.ThreadID}}},
	}, nil
}

func (a *Admission) existing(ctx context.Context, row eventlog.SessionRow) (*place, error) {
	if row.Status != session.Open {
		return nil, errClosed
	}
	if err := a.room(ctx, row.ID); err != nil {
		return nil, err
	}
	set, err := row.Settings()
	return &place{row: row, set: set, require: sessionIs(row.ID, row.SettingsVersion, session.Open)}, err
}

// remember makes the run's explicit reply targets those of the session, in the
// run's own append, if no run of the session is under way (I-08).
func (a *Admission) remember(ctx context.Context, c Caller, sub *Submission, p *place, d *event.RunCreated) (saved bool, why string, err error) {
	if sub.SaveTargets && sub.Request.ReplyTargets != nil {
		if p.made {
			p.before[0].Data.(*event.SessionCreated).Settings.ReplyTargets = d.ReplyTargets
			return true, "", nil
		}
		if reflect.DeepEqual(d.ReplyTargets, p.set.ReplyTargets) {
			return true, "", nil
		}
	}
	save, why, err := a.savesTargets(ctx, p.row.ID, sub)
	if !save || err != nil {
		return false, why, err
	}
	updated, rests := savedTargets(c, &p.row, d.ReplyTargets)
	d.SettingsVersion++
	p.before, p.require = append(p.before, updated), append(p.require, rests)
	return true, "", nil
}
