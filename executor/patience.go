package executor

import (
	"context"
	"sync"
	"time"

	"steno/schema"
)

// waiters are the requests of this process that wait for a person.
type waiters struct {
	mu   sync.Mutex
	open map[[2]string]*waiter // by session and call
}

type waiter struct {
	woken chan struct{}
	users int
}

func (w *waiters) wake(session, call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.open[[2]string{session, call}]; t != nil {
		close(t.woken)
		delete(w.open, [2]string{session, call})
	}
}

func (w *waiters) join(session, call string) (woken <-chan struct{}, leave func()) {
	key := [2]string{session, call}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.open[key]
	if t == nil {
		if w.open == nil {
			w.open = map[[2]string]*waiter{}
		}
		t = &waiter{woken: make(chan struct{})}
		w.open[key] = t
	}
	t.users++
	return t.woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if t.users--; t.users == 0 && w.open[key] == t {
			delete(w.open, key)
		}
	}
}

// patiently gives what a try gives, once its call no longer waits for a person.
// The room that a try needs is the caller's, and given back meanwhile.
func (x *Executor) patiently(ctx context.Context, room chan struct{}, try func() error) error {
	for {
		err := try()
		session, call, waits := waits(err)
		if !waits {
			return err
		}
		if err := enter(x.patient); err != nil {
			return schema.Errorf(schema.Backpressure, "%d requests wait for a person's answer", cap(x.patient)).With("session", session).
				With("next", "answer what waits: steno approvals ls; then send the call again")
		}
		<-room
		err = x.patience(ctx, session, call)
		<-x.patient
		room <- struct{}{} // whoever has it ends, or waits as we did
		if err != nil {
			return err
		}
	}
}

// patience waits until it is worth looking again.
func (x *Executor) patience(ctx context.Context, session, call string) error {
	woken, leave := x.waiters.join(session, call)
	defer leave()
	t := time.NewTimer(askAgain)
	defer t.Stop()
	select {
	case <-woken:
	case <-t.C:
	case <-x.stopping.Done():
		return goingAway(session)
	case <-ctx.Done():
		return x.ended(ctx, session)
	}
	return nil
}
