package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"steno/replay"
	"steno/schema"
)

// Checked is what a tool knows of an attempt whose result is not recorded.
type Checked struct {
	Took   bool   // it took effect
	Result Result // what it gave, if it did
}

// checkTimeout is how long a check may take.
const checkTimeout = 30 * time.Second

// errNoCheck says that nobody can tell what became of an attempt.
var errNoCheck = errors.New("the tool cannot tell")

// check asks a call's tool what became of its last attempt, which an earlier
// writer has started and which has no result. An error says that nobody knows.
//
// A take-over fences the log and not the world: the attempt may still be at
// work. So the tool is asked no sooner than a tool has to stop once its executor
// is dead, and not at all where that may be alive, after a forced take-over.
func (s *session) check(f *flight, c *replay.Call) (Checked, error) {
	req := f.call
	n := len(c.Attempts)
	e, err := s.x.cfg.Tools.lookup(req.Name)
	if err != nil || e.tool.Check == nil || n == 0 || c.DryRun || req.lost != nil || e.fits(req.Args, readSound) != nil || s.forcedSince(c.Attempts[n-1].Epoch) {
		return Checked{}, errNoCheck
	}
	f.hasBegun() // new calls need not wait for the world
	quit := s.quits(f)
	select {
	case <-time.After(time.Until(s.opened.Add(s.x.stopWait))):
	case <-quit:
		return Checked{}, errCancelled
	case <-s.ctx.Done():
		return Checked{}, s.stopped()
	}
	if !s.x.begin(s) {
		return Checked{}, goingAway(s.id)
	}
	ctx, stop := context.WithTimeout(s.ctx, checkTimeout)
	defer stop()
	type word struct {
		Checked
		err error
	}
	said := make(chan word, 1)
	go func() {
		defer s.x.work.Done()
		defer s.leave()
		w := word{err: fmt.Errorf("the check ended without an answer")}
		defer func() { said <- w }() // also where the tool ends its goroutine
		defer func() {
			if p := recover(); p != nil {
				s.x.log.Error("a check panicked", "session", s.id, "call", req.CallID, "tool", req.Name, "panic", p, "stack", string(debug.Stack()))
			}
		}()
		inv := s.invocation(req, c.Attempts[n-1])
		defer inv.end()
		w.Checked, w.err = e.tool.Check(ctx, inv)
	}()
	select {
	case w := <-said:
		if w.err != nil {
			s.x.log.Warn("a check does not know what became of a call", "session", s.id, "call", req.CallID, "tool", req.Name, "err", w.err)
		}
		return w.Checked, w.err
	case <-quit:
		return Checked{}, errCancelled
	case <-ctx.Done():
	}
	if s.ctx.Err() != nil {
		return Checked{}, s.stopped()
	}
	s.x.log.Warn("a check gives no answer", "session", s.id, "call", req.CallID, "tool", req.Name)
	return Checked{}, errNoCheck
}

// forcedSince reports whether the session was taken by force behind an epoch.
func (s *session) forcedSince(epoch uint64) (forced bool) {
	s.view(func(st *replay.State) {
		for _, e := range st.Epochs {
			forced = forced || e.Epoch > epoch && e.How == schema.HowForced
		}
	})
	return forced
}
