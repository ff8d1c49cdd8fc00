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
	done chan struct{}
	err  error     // once done is closed
	at   time.Time // when it ended; once done is closed
}

// Ready is nil while calls can be recorded, and otherwise says why not:
// Unavailable while this executor drains, SessionRecordUnavailable while a
// session waits for room on the disk or the store cannot be written. It looks
// when it is asked; the store is tried with a small file, at most once a second
// however many ask, and for two seconds at most. What it finds shows in the
// data of the service's statistics, and in the log when it changes.
func (x *Executor) Ready() error { return x.tell(x.isReady(readyFor)) }

func (x *Executor) isReady(lately time.Duration) error {
	x.mu.Lock()
	if x.draining {
		x.mu.Unlock()
		return goingAway("")
	}
	var waits *session
	for _, s := range x.sessions {
		if s.full != nil && (waits == nil || s.id < waits.id) {
			waits = s
		}
	}
	if waits != nil {
		defer x.mu.Unlock()
		return schema.Errorf(schema.SessionRecordUnavailable, "the disk is full: session %s waits for room", waits.id).
			With("session", waits.id).With("next", "make room on the store's disk; what waits then goes on by itself").Cause(waits.full)
	}
	l := x.look
	if l == nil || l.isDone() && time.Since(l.at) >= lately {
		l = &look{done: make(chan struct{})}
		x.look = l
		go func() {
			l.err = x.cfg.Store.Writable(context.Background())
			l.at = time.Now()
			close(l.done)
		}()
	}
	x.mu.Unlock()
	var err error
	select {
	case <-l.done:
		err = l.err
	case <-time.After(readyWait):
		err = schema.Errorf(schema.LogWriteFailed, "the store does not answer")
	}
	if err == nil {
		return nil
	}
	e := schema.Errorf(schema.SessionRecordUnavailable, "calls cannot be recorded: %s", schema.AsError(err).Message).Cause(err)
	if next, ok := schema.AsError(err).Details["next"]; ok {
		return e.With("next", next)
	}
	return e.With("next", "make the store's disk writable; calls are recorded again from then on")
}

func (l *look) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
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

// lookAgain is for what may have changed whether the executor is ready.
func (x *Executor) lookAgain() {
	if !x.begin(nil) {
		return
	}
	go func() {
		defer x.work.Done()
		_ = x.tell(x.isReady(0))
	}()
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

func (x *Executor) stats(*micro.Endpoint) any {
	if err := x.Ready(); err != nil {
		body := schema.Body(err)
		return health{Error: &body}
	}
	return health{Ready: true}
}
