package session

import (
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// CaptureFiles asks for a snapshot of the session's workspace: before the first
// call of the step that may change it, and after all calls have ended. Nothing is
// recorded for it and nothing is in doubt: whoever asks a state anew is asked for
// it anew. What came of it is told by State.FilesCaptured.
type CaptureFiles struct {
	Step  event.StepID
	After bool
}

func (CaptureFiles) action() {}

// Captured is what came of CaptureFiles. The zero value: there is no snapshot.
type Captured struct {
	Snapshot *event.FileSnapshot
	Changes  *event.FileChanges // after a step: against the snapshot before it; nil: not known
}

// filesSeen is what the owner told the state of the workspace. It is no part of
// what is stored: the next append records what there is to record of it.
type filesSeen struct {
	on     bool
	step   event.StepID // the one that the rest is about
	before *Captured
	after  *Captured
}

// AskForFiles begins an owner's work: it says whether that makes snapshots of
// workspaces, and forgets what the owner before was told of them.
func (s *State) AskForFiles(on bool) { s.files = filesSeen{on: on} }

// FilesCaptured tells what came of CaptureFiles.
func (s *State) FilesCaptured(a CaptureFiles, c Captured) {
	if s.Active == nil || s.Active.Step == nil || s.Active.Step.ID != a.Step {
		return // too late
	}
	if s.files.step != a.Step {
		s.files.step, s.files.before, s.files.after = a.Step, nil, nil
	}
	if a.After {
		s.files.after = &c
	} else {
		s.files.before = &c
	}
}

// changesFiles says whether a call may change files of the workspace: it has an
// effect, and it runs here. A service behind HTTP has its own files; a tool that
// runs here and is not confined may reach those of the workspace too.
func (r *Run) changesFiles(c *Call) bool {
	t := r.tool(c.Name)
	return t != nil && effect(c) && !c.Hosted && t.Source != string(tool.HTTP)
}

// hasWorkspace says whether the run has a tool that works in a workspace.
func (r *Run) hasWorkspace() bool {
	for i := range r.Created.Tools {
		if r.Created.Tools[i].Confined {
			return true
		}
	}
	return false
}

// awaitsFiles says whether a call that might start has to wait for the snapshot
// before it: it would be the step's first that may change files.
func (s *State) awaitsFiles(c *Call) bool {
	r, st := s.Active, s.Active.Step
	if !s.files.on || s.files.step == st.ID && s.files.before != nil || !r.changesFiles(c) || !r.hasWorkspace() {
		return false
	}
	for _, x := range st.Calls { // after one that started nobody knows any more how it was before
		if x.Attempt > 0 && r.changesFiles(x) {
			return false
		}
	}
	return true
}

// filesBefore gives the snapshot that the first call that may change files
// records with its start, or nil.
func (s *State) filesBefore(c *Call) *event.FileSnapshot {
	r, st := s.Active, s.Active.Step
	if s.files.step != st.ID || s.files.before == nil || st.FilesBefore != nil || !r.changesFiles(c) {
		return nil
	}
	for _, x := range st.Calls {
		if x.Attempt > 0 && r.changesFiles(x) {
			return nil
		}
	}
	return s.files.before.Snapshot
}

// wantsFiles says whether the step, all of whose calls are terminal, still
// wants the snapshot after it.
func (s *State) wantsFiles() bool {
	st := s.Active.Step
	return s.files.on && st.FilesBefore != nil && (s.files.step != st.ID || s.files.after == nil)
}

// ended gives the end of a step with what is known of its files.
func (s *State) ended(st *Step) *event.StepEnded {
	d := &event.StepEnded{Finish: string(st.Finish), MessageID: messageID(st.ID), Usage: TokenUsage(st.Usage)}
	if c := s.files.after; c != nil && s.files.step == st.ID {
		d.Snapshot, d.Files = c.Snapshot, c.Changes
	}
	return d
}
