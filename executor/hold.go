package executor

import (
	"context"
	"errors"
	"sync"

	"steno/schema"
)

// hold returns the session open for writing in this process, and opens it if
// nobody holds it. create is nil for a session that must be there. The caller
// leaves the session when it no longer uses it. The errors are those of
// journal.Open.
func (x *Executor) hold(ctx context.Context, id string, create *OpenRequest) (*session, error) {
	for {
		x.mu.Lock()
		if x.draining {
			x.mu.Unlock()
			return nil, goingAway(id)
		}
		s := x.sessions[id]
		if s == nil {
			s = newSession(x, id, create)
			x.sessions[id] = s
			x.work.Add(1)
			go func() {
				defer x.work.Done()
				s.live()
			}()
		}
		x.use(s)
		x.mu.Unlock()
		err := s.await(ctx)
		if err == nil && s.usable() {
			return s, nil
		}
		s.leave()
		switch {
		case err == nil: // it was released, lost, or has failed; look again once it is gone
			x.retire(s, "")
		case errors.Is(err, schema.NotFound) && create != nil && s.create == nil:
			// the one before us was not to make the session; we are
		default:
			return nil, err
		}
	}
}

// held returns the session if this process holds it, without opening it. The
// caller leaves it. Where it returns SessionWriterLost the lease has been given
// back.
func (x *Executor) held(ctx context.Context, id string) (*session, error) {
	lost := schema.Errorf(schema.SessionWriterLost, "this executor does not hold session %s", id).With("session", id)
	x.mu.Lock()
	s := x.sessions[id]
	if s == nil {
		x.mu.Unlock()
		return nil, lost
	}
	x.use(s)
	x.mu.Unlock()
	err := s.await(ctx)
	if err == nil && s.usable() {
		return s, nil
	}
	s.leave()
	if ctx.Err() != nil {
		return nil, x.ended(ctx, id)
	}
	x.retire(s, "")
	return nil, lost
}

// use counts a user of a session. The caller holds mu.
func (x *Executor) use(s *session) {
	s.users++
	x.busy(s)
}

// unuse ends a use. The caller holds mu.
func (x *Executor) unuse(s *session) {
	if s.users--; s.users == 0 && x.sessions[s.id] == s {
		s.idle = x.idle.PushBack(s)
	}
}

// busy takes a session from those that thin may release. The caller holds mu.
func (x *Executor) busy(s *session) {
	if s.idle != nil {
		x.idle.Remove(s.idle)
		s.idle = nil
	}
}

// thin releases sessions that nobody uses, while there are too many.
func (x *Executor) thin() {
	for {
		x.mu.Lock()
		first := x.idle.Front()
		if first == nil || !x.many() {
			x.mu.Unlock()
			return
		}
		s := first.Value.(*session)
		x.busy(s)
		asked := s.leaving != "" // whoever asked for its release sees to it
		if !asked {
			s.leaving = "idle"
			x.thinned++
		}
		x.mu.Unlock()
		if asked {
			continue
		}
		_ = x.retire(s, "") // which tells the log
		x.mu.Lock()
		x.thinned--
		x.mu.Unlock()
	}
}

// many reports whether there are too many sessions, those that are being
// released left out. The caller holds mu.
func (x *Executor) many() bool { return len(x.sessions)-x.thinned > x.cfg.Sessions }

// retire takes a session out of the table once it has given back its lease, so
// that nobody opens it anew before: in good order if there is a reason, here or
// in leaving, else without a word. It returns when that is done, whoever does
// it.
func (x *Executor) retire(s *session, reason string) error {
	s.retired.Do(func() {
		if s.journal != nil && !s.sound() {
			err := s.journal.Err()
			x.log.Error("a session can no longer be written here", "session", s.id, "epoch", s.journal.Epoch(),
				"kind", schema.KindOf(err), "err", err)
		}
		x.mu.Lock()
		if reason == "" {
			reason = s.leaving
		}
		x.mu.Unlock()
		s.gave = s.close(reason)
		x.mu.Lock()
		delete(x.sessions, s.id)
		x.busy(s)
		x.mu.Unlock()
		if s.gave != nil {
			x.log.Warn("a session was not given back in good order", "session", s.id, "err", s.gave)
		}
	})
	return s.gave
}

// retireAll retires sessions side by side: each waits for the disk.
func (x *Executor) retireAll(reasons map[*session]string) (errs []error) {
	var mu sync.Mutex
	var work sync.WaitGroup
	room := make(chan struct{}, 32)
	for s, reason := range reasons {
		select {
		case <-s.ready:
		default: // a disk that does not answer; the end of the process gives it back
			continue
		}
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			if err := x.retire(s, reason); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return errs
}
