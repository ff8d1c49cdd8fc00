package executor

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// readyFor is how long one look at the store serves all who ask, readyWait how
// long a look may take before the store counts as one that does not answer.
const (
	readyFor  = time.Second
	readyWait = 2 * time.Second
)

// A look is one try whether the store can be written.
type look struct {
	began time.Time
	done  chan struct{}
	err   error // once done is closed
}

// Ready is nil while calls can be recorded, and otherwise says why not:
// Unavailable while this executor drains, SessionRecordUnavailable while a
// session waits for room on the disk or the store cannot be written. It looks
// when it is asked; the store is tried with a small file, at most once a second
// however many ask, and Ready waits for that for two seconds at most. What was
// found shows in the data of the service's statistics, which wait for nothing,
// and in the log when it changes.
func (x *Executor) Ready() error {
	l, err := x.glance(true)
	if l == nil {
		return x.tell(err)
	}
	l.wait()
	return x.tell(l.verdict())
}

// glance says what is known without a look at the store, nil and the newest
// look otherwise. One that serves no longer is followed by the next, if anew.
func (x *Executor) glance(anew bool) (*look, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.draining {
		return nil, goingAway("")
	}
	var waits *session
	for _, s := range x.sessions {
		if s.full != nil && (waits == nil || s.id < waits.id) {
			waits = s
		}
	}
	if waits != nil {
		return nil, schema.Errorf(schema.SessionRecordUnavailable, "the disk is full: session %s waits for room", waits.id).
			With("session", waits.id).With("next", "make room on the store's disk; what waits then goes on by itself").Cause(waits.full)
	}
	if l := x.look; anew && (l == nil || l.isDone() && time.Since(l.began) >= readyFor) {
		x.look = x.startLook()
	}
	return x.look, nil
}

// startLook begins a look. Nobody has to wait for it: it tells the log itself.
func (x *Executor) startLook() *look {
	l := &look{began: time.Now(), done: make(chan struct{})}
	go func() {
		if l.err = x.haveFiles(); l.err == nil {
			l.err = x.cfg.Store.Writable(context.Background())
		}
		x.looked.Store(l)
		close(l.done)
		if newest, _ := x.glance(false); newest == l {
			_ = x.tell(l.verdict())
		}
	}()
	return l
}

// wait returns once the look is done, or has taken too long.
func (l *look) wait() {
	select {
	case <-l.done:
	case <-time.After(time.Until(l.began.Add(readyWait))):
	}
}

func (l *look) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// verdict is what the look says so far.
func (l *look) verdict() error {
	err := schema.Errorf(schema.LogWriteFailed, "the store does not answer")
	if l.isDone() {
		if l.err == nil {
			return nil
		}
		err = schema.AsError(l.err)
	}
	e := schema.Errorf(schema.SessionRecordUnavailable, "calls cannot be recorded: %s", err.Message).Cause(err)
	if next, ok := err.Details["next"]; ok {
		return e.With("next", next)
	}
	if noFiles(err) {
		return e.With("next", schema.NextFiles)
	}
	return e.With("next", "make the store's disk writable; calls are recorded again from then on")
}

// tell logs whether the executor is ready, when that has changed.
func (x *Executor) tell(err error) error {
	switch unready := err != nil && schema.KindOf(err) != schema.Unavailable; {
	case unready && x.unready.CompareAndSwap(false, true):
		x.log.Warn("calls cannot be recorded now", "err", err)
	case err == nil && x.unready.CompareAndSwap(true, false):
		x.log.Warn("calls can be recorded again")
	}
	return err
}

// lookAgain is for what may have changed whether the executor is ready. The log
// hears of it, though nobody asks, as soon as the next look may be made.
func (x *Executor) lookAgain() {
	l, err := x.glance(false)
	if err != nil {
		_ = x.tell(err)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.again {
		return
	}
	x.again = true
	wait := time.Duration(0)
	if l != nil {
		wait = time.Until(l.began.Add(readyFor))
	}
	time.AfterFunc(wait, func() {
		x.mu.Lock()
		x.again = false
		x.mu.Unlock()
		if _, err := x.glance(true); err != nil {
			_ = x.tell(err)
		}
	})
}

// waits notes that the session waits for room on the disk, or no longer does.
func (s *session) waits(full error) {
	s.x.mu.Lock()
	s.full = full
	s.x.mu.Unlock()
	s.x.lookAgain()
}

// health is the data in the statistics of every endpoint.
type health struct {
	Ready bool              `json:"ready"`
	Error *schema.ErrorBody `json:"error,omitempty"`
}

// stats is asked for each endpoint in turn while the service holds the lock
// that every request takes as well, and its end. So it waits for nothing: it
// begins a look and tells what the last one found, until the new one has been
// silent for too long. All endpoints say the same.
func (x *Executor) stats(e *micro.Endpoint) any {
	if e.Name != firstEndpoint {
		return x.shown
	}
	l, err := x.glance(true)
	if err == nil {
		if last := x.looked.Load(); last != nil && !l.isDone() && time.Since(l.began) < readyWait {
			l = last
		}
		err = l.verdict()
	}
	x.shown = health{Ready: err == nil}
	if x.tell(err) != nil {
		body := schema.Body(err)
		x.shown.Error = &body
	}
	return x.shown
}
