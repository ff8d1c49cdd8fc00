package main

import (
	"context"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A tally folds of a log what is asked about a session as a whole, and of its calls
// those alone that are not over, so that it needs little memory for the others. It
// is the State of a first reading; open makes another one, where there are such
// calls.
type tally struct {
	*replay.Checker
	state *replay.State // without calls
	calls int
	over  map[replay.CallState]int // calls whose result is for good
	left  map[string]bool          // the others, by their ids
}

func newTally() *tally {
	return &tally{replay.NewChecker(), replay.New(), 0, map[replay.CallState]int{}, map[string]bool{}}
}

func (t *tally) Apply(e *schema.Event) {
	t.Checker.Apply(e)
	switch e.Type {
	case schema.TypeWriterOpened, schema.TypeSessionStarted, schema.TypeSessionEnded, schema.TypePhaseChanged, schema.TypePostureChanged:
		t.state.Apply(e)
	case schema.TypeToolCall:
		t.calls++
		t.left[callIDOf(e)] = true
	case schema.TypeToolResult:
		var d struct {
			CallID    string            `json:"call_id"`
			Attempt   uint64            `json:"attempt"`
			OK        bool              `json:"ok"`
			Error     *schema.ErrorBody `json:"error"`
			Synthetic bool              `json:"synthetic"`
		}
		_ = schema.Unmarshal(e.Data, &d) // Check has accepted it
		r := replay.CallResult{Attempt: d.Attempt, Synthetic: d.Synthetic}
		if d.Error != nil {
			r.Kind = d.Error.Kind
		}
		if !t.left[d.CallID] || r.Open() {
			return
		}
		delete(t.left, d.CallID)
		if d.OK {
			t.over[replay.OK]++
		} else {
			t.over[replay.Failed]++
		}
	}
}

func (t *tally) Hole()   { t.Checker.Hole(); t.state.Hole() }
func (t *tally) Broken() { t.Checker.Broken(); t.state.Broken() }

// open gives the calls that are not over.
func (t *tally) open(ctx context.Context, store journal.Store, id string) ([]*replay.Call, error) {
	if len(t.left) == 0 {
		return nil, nil
	}
	f := &some{replay.NewChecker(), replay.New(), t.left}
	for _, err := range journal.NewScan(store, id, journal.ScanOptions{State: f}).Items(ctx) {
		if err != nil {
			return nil, err
		}
	}
	return f.state.Calls, nil
}

// some folds the calls with some ids.
type some struct {
	*replay.Checker
	state *replay.State
	ids   map[string]bool
}

func (s *some) Apply(e *schema.Event) {
	s.Checker.Apply(e)
	switch e.Type {
	case schema.TypeToolCall, schema.TypeApprovalRequested, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult:
		if s.ids[callIDOf(e)] {
			s.state.Apply(e)
		}
	}
}

func (s *some) Hole()   { s.Checker.Hole(); s.state.Hole() }
func (s *some) Broken() { s.Checker.Broken(); s.state.Broken() }
