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
		s, err := x.used(id)
		if s == nil && err == nil {
			s, err = x.enrol(id, create)
		}
		if err != nil {
			return nil, err
		}
		err = s.await(ctx)
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

// used counts a user of a session that is in the table; nil if there is none.
func (x *Executor) used(id string) (*session, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.draining {
		return nil, goingAway(id)
	}
	s := x.sessions[id]
	if s != nil {
		s.users.Add(1)
	}
	return s, nil
}

// enrol is used for a session that may have to be put into the table first.
func (x *Executor) enrol(id string, create *OpenRequest) (*session, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.draining {
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
	s.users.Add(1)
	return s, nil
}

// held returns the session if this process holds it, without opening it. The
// caller leaves it. Where it returns SessionWriterLost the lease has been given
// back.
func (x *Executor) held(ctx context.Context, id string) (*session, error) {
	lost := schema.Errorf(schema.SessionWriterLost, "this executor does not hold session %s", id).With("session", id)
	x.mu.RLock()
	s := x.sessions[id]
	if s != nil {
		s.users.Add(1)
	}
	x.mu.RUnlock()
	if s == nil {
		return nil, lost
	}
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

// unuse ends a use, and says how many there still are.
func (s *session) unuse() int64 {
	s.last.Store(s.x.uses.Add(1))
	return s.users.Add(-1)
}

// thin releases sessions that nobody uses, while there are too many.
func (x *Executor) thin() {
	for {
		x.mu.Lock()
		var s *session // the least recently used
		if x.many() {
			for _, t := range x.sessions { // beside the syncs of a release this is little
				if t.users.Load() == 0 && t.leaving == "" && (s == nil || t.last.Load() < s.last.Load()) {
					s = t
				}
			}
		}
		if s == nil {
			x.mu.Unlock()
			return
		}
		s.leaving = "idle"
		x.thinned++
		x.mu.Unlock()
		_ = x.retire(s, "") // which tells the log
		x.mu.Lock()
		x.thinned--
		x.mu.Unlock()
	}
}

// many reports whether there are too many sessions, those that are being
// released left out. The caller holds mu.
func (x *Executor) many() bool { return len(x.sessions)-x.thinned > x.room }

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
