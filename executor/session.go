package executor

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// A session is one that this process holds, from the moment it begins to open
// it. Locks are taken in the order mu, then the executor's or the journal's.
type session struct {
	id      string
	subject string // begins those of its events
	x       *Executor
	create  *OpenRequest  // nil if it must be there
	ready   chan struct{} // closed once it is open or cannot be opened
	err     error         // why it could not be opened; set before ready is closed

	retired sync.Once
	gave    error // what went wrong when it was given back; set by retired

	users atomic.Int64  // requests, calls on their way, and live; from 0 it grows only under the executor's mu
	last  atomic.Uint64 // when a use ended, in the order of all

	// Guarded by the executor's mu.
	leaving string // why it is being released; "" if it is not
	full    error  // why it waits for room on the disk; nil if it does not

	// Set before ready is closed and not changed afterwards.
	journal *journal.Journal
	startID ulid.ULID // of a session_started in place of one that is lost
	opened  time.Time // here
	settled chan struct{}
	slots   chan struct{} // one for each call that runs
	only    chan struct{} // one for a call of an exclusive tool
	appends chan struct{} // one for each request that appends, and may wait for room on the disk
	ctx     context.Context
	cancel  context.CancelFunc
	life    context.Context // of tools that go on where the session is lost; not the executor's, which all calls would take turns at
	unlive  context.CancelFunc

	spaceMu   sync.Mutex // guards workspace, keeps, left and inside, also while it is opened
	workspace *Workspace // nil if the session has none, or it is not open yet
	keeps     bool       // the workspace stays open while nobody uses it
	left      bool       // the session is given back: nothing is opened any more
	inside    int        // tools that go on in it where the session is lost

	// Held for reading while a call is admitted and its start recorded, and for
	// writing while the phase, the task or the policy changes. Taken before all others.
	phases sync.RWMutex
	noted  map[[sha256.Size]byte]uint64 // late results, and the numbers of their notes; guarded by phases

	repeats repeats

	answering sync.Mutex // held while a person's answer, or the end of a question, is recorded

	liveMu sync.Mutex
	told   told // guarded by liveMu

	boundMu   sync.Mutex  // guards instances and unbound
	instances []*instance // of tools, in the order in which they were made
	unbound   bool        // no more are made

	mu      sync.Mutex // guards the rest
	flights map[string]*flight
	ending  bool
}

// A flight is a call on its way through this process. Everybody who asks for
// the same call meanwhile waits for the same flight.
type flight struct {
	call   *Request
	begun  chan struct{} // closed once its start, or its end, is recorded; nil where nobody waits for that
	done   chan struct{}
	answer Answer
	err    error

	// What ends it before its tool has returned.
	cancelled atomic.Pointer[cancellation]       // who has cancelled it, and why
	quit      chan struct{}                      // closed when it is cancelled while it waits; guarded by the session's mu
	stop      atomic.Pointer[context.CancelFunc] // tells its tool to stop; nil before that runs
	only      bool                               // it has the session's only; its own goroutine's
	overdue   *time.Timer                        // of a tool that does not stop; set before stop
	claimed   atomic.Bool                        // somebody records its result
	detached  bool                               // that is not its own goroutine, whose this is
}

// hasBegun is for the flight's own goroutine.
func (f *flight) hasBegun() {
	if f.begun != nil {
		close(f.begun)
		f.begun = nil
	}
}

// newSession makes a session that live will open; live uses it until it is settled.
func newSession(x *Executor, id string, create *OpenRequest) *session {
	s := &session{id: id, subject: x.cfg.Prefix + ".v1.event." + id + ".", x: x, create: create, ready: make(chan struct{}), settled: make(chan struct{}), startID: journal.NewID(),
		slots: make(chan struct{}, x.cfg.SessionCalls), only: make(chan struct{}, 1), appends: make(chan struct{}, maxAppends), flights: map[string]*flight{}}
	s.users.Store(1)
	s.ctx, s.cancel = context.WithCancel(x.ctx)
	s.life, s.unlive = context.WithCancel(x.ctx)
	return s
}

// live opens the session and settles its open calls.
func (s *session) live() {
	defer s.leave()
	if s.err = s.open(); s.err != nil {
		s.x.retire(s, "") // out of the table before anybody can look again
		close(s.ready)
		return
	}
	close(s.ready)
	s.x.thin() // while this one is used another may be idle
	s.settleAll()
}

// open acquires the session and folds its log. Whoever asked for it first may
// go away; others may wait for it by now.
func (s *session) open() error {
	// A look at the lease costs less than the whole log, which journal.Open
	// reads before it asks.
	st, err := s.x.cfg.Store.Lease(s.ctx, s.id)
	decided := err == nil && (st.State == lease.Active || st.State == lease.Ambiguous && !st.Undecided)
	unread := decided && st.Holder == nil // the log may be damaged elsewhere too, which comes first
	if decided && !unread {
		return st.Err(s.id)
	}
	opt := journal.Options{Holder: s.x.cfg.Holder, NewState: func() journal.State { return replay.New() }, Durable: s.publish, Waiting: s.waits,
		Save: func(st journal.State) []byte { return st.(*replay.State).Save() }, Load: func(b []byte) (journal.State, error) { return replay.Load(b) }}
	if s.create != nil {
		opt.Create = true
		if opt.Started, err = s.started(); err != nil {
			return err
		}
	}
	j, err := s.acquireLease(opt)
	if s.ctx.Err() != nil && err != nil {
		return goingAway(s.id)
	}
	if err != nil {
		if couldNotWrite(err) {
			s.x.lookAgain()
		}
		if unread && errors.Is(err, schema.SessionWriterAmbiguous) {
			return st.Err(s.id) // it has seen more
		}
		return err
	}
	s.journal, s.opened = j, time.Now()
	s.x.log.Info("holds a session", "session", s.id, "epoch", j.Epoch(), "how", j.How())
	if s.create != nil { // before its calls are settled: they may need the workspace
		_ = s.supply(s.create.data()) // who opens it is told by doing it again
	}
	return nil
}

// supply records what a session is where damage has taken its session_started.
// Of several who say so at once one is heard.
func (s *session) supply(started []byte) error {
	lost := false
	s.view(func(st *replay.State) { lost = st.Started == nil && st.Ended == nil })
	if !lost || !says(started) {
		return nil
	}
	_, err := s.append(journal.Entry{ID: s.startID, Type: schema.TypeSessionStarted, Data: started})
	return err
}

// says reports whether the data of a session_started says anything.
func says(started []byte) bool { return string(started) != "{}" }

func couldNotWrite(err error) bool {
	return errors.Is(err, schema.LogWriteFailed) || errors.Is(err, schema.SyncFailed)
}

// await returns once the session is open, or why it cannot be opened.
func (s *session) await(ctx context.Context) error {
	select {
	case <-s.ready:
		return s.err
	case <-ctx.Done():
		return s.x.ended(ctx, s.id)
	}
}

// sound reports whether the session, which is open, can still be written.
func (s *session) sound() bool { return s.journal.Err() == nil }

// usable reports whether the session, which is open, will stay so while it has
// users.
func (s *session) usable() bool {
	s.x.mu.RLock()
	leaving := s.leaving != ""
	s.x.mu.RUnlock()
	return !leaving && s.sound()
}

// leave says that one of its users no longer needs the session.
func (s *session) leave() {
	if s.unuse() > 0 {
		return
	}
	s.restSpace()
	x := s.x
	x.mu.RLock()
	many := x.many() && !x.draining
	if many {
		x.work.Add(1)
	}
	x.mu.RUnlock()
	if many {
		go func() {
			defer x.work.Done()
			x.thin()
		}()
	}
}

func (s *session) view(f func(*replay.State)) {
	s.journal.View(func(st journal.State) { f(st.(*replay.State)) })
}

// append records entries; what failed on the way and was recorded all the same
// is no error. It waits for room on a full disk, until the session is given
// back. After an error that ends the journal the results of the tools that run
// here for the session can no longer be recorded, so they are stopped, and the
// session is given back at once: whoever is asked for it next may be another
// process.
func (s *session) append(entries ...journal.Entry) ([]journal.Record, error) {
	r, err := s.journal.Append(s.ctx, entries...)
	if err != nil && !s.sound() {
		s.x.retire(s, "")
	}
	if err != nil && couldNotWrite(err) || err == nil && s.x.unready.Load() {
		s.x.lookAgain()
	}
	return r, err
}

// close gives the lease and the workspace back.
func (s *session) close(reason string) error {
	s.cancel()
	errs := s.unbind()
	if s.journal != nil && reason != "" && s.sound() {
		errs = append(errs, s.journal.Release(context.Background(), reason))
	}
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	s.spaceMu.Lock()
	defer s.spaceMu.Unlock()
	s.left = true
	if s.inside == 0 {
		errs = append(errs, s.forsake())
	}
	return errors.Join(errs...)
}

// outlives keeps the workspace open for a tool, until it has outlived the
// session or not.
func (s *session) outlives() {
	s.spaceMu.Lock()
	s.inside++
	s.spaceMu.Unlock()
}

func (s *session) outlived() {
	s.spaceMu.Lock()
	defer s.spaceMu.Unlock()
	if s.inside--; s.inside == 0 && s.left {
		_ = s.forsake() // nothing was written through it
	}
}

// forsake ends what tools had of the session. The caller holds spaceMu.
func (s *session) forsake() error {
	s.unlive()
	if s.workspace == nil {
		return nil
	}
	if s.keeps {
		keptSpaces.Add(-1)
	}
	return s.workspace.Close()
}

// maxFlights bounds the calls of one session that run or wait, maxAppends the
// other requests that write: one session must not take every slot of the
// process.
const (
	maxFlights = 128
	maxAppends = 128
)

// What is looked for among the last calls is there, also from a checkpoint on.
const _ = uint(replay.Recent - max(2*maxFlights, maxFlights+maxRepeats))

// fly returns the flight of a call, a new one if there is none. run is the
// rest of the call's way; it gets the flight to say when it has begun.
func (s *session) fly(call *Request, begun chan struct{}, run func(*session, *flight) (Answer, error)) (*flight, error) {
	s.mu.Lock()
	if f := s.flights[call.CallID]; f != nil {
		s.mu.Unlock()
		if why := call.conflict(f.call.Name, f.call.sum, f.call.hidden(), f.call.DryRun); why != "" {
			return nil, conflict(s.id, call.CallID, why).With("tool", f.call.Name).With("args_sha256", f.call.sum)
		}
		return f, nil
	}
	if s.ending {
		s.mu.Unlock()
		// It may wait for room on the disk, and fail in the end.
		return nil, schema.Errorf(schema.Backpressure, "session %s is ending", s.id).With("session", s.id).
			With("next", "wait for the end, which refuses the call, or fails")
	}
	select {
	case <-s.settled:
		if len(s.flights) >= maxFlights {
			s.mu.Unlock()
			return nil, schema.Errorf(schema.Backpressure, "%d calls of session %s run or wait", maxFlights, s.id).With("session", s.id)
		}
	default: // what an earlier writer left is settled, however much it is
	}
	if !s.x.begin(s) {
		s.mu.Unlock()
		return nil, goingAway(s.id)
	}
	f := &flight{call: call, begun: begun, done: make(chan struct{})}
	s.flights[call.CallID] = f
	s.mu.Unlock()
	go func() {
		deepen(0)
		defer s.x.work.Done()
		defer s.leave()
		answered := false
		defer func() { // also where a tool ends its goroutine
			defer f.hasBegun() // not before it has landed: who waits for that must not find it in the air
			switch {
			case answered && f.detached:
			case !answered && !f.claimed.CompareAndSwap(false, true):
				f.hasBegun()
				<-f.done // so that nobody believes that nothing is at work any more
			case !answered:
				f.err = schema.Errorf(schema.OutcomeUnknown, "the tool ended without an answer").With("session", s.id).With("call_id", call.CallID)
				fallthrough
			default:
				s.land(f)
			}
		}()
		a, err := run(s, f)
		if answered = true; !f.detached {
			f.answer, f.err = a, err
		}
	}()
	return f, nil
}

// deepen gives a new goroutine at once the stack that a call needs: one that
// grows on the way is copied each time, with all that is on it. It is the frame
// that does it; what is in it is never looked at.
//
//go:noinline
func deepen(i uint) byte {
	if i == 0 {
		return 0
	}
	var room [12 << 10]byte
	return room[i%uint(len(room))]
}

// land ends a flight whose answer is set.
func (s *session) land(f *flight) {
	s.mu.Lock()
	delete(s.flights, f.call.CallID)
	s.mu.Unlock()
	close(f.done)
}

// end records session_ended. Calls that are open would lose their results by
// it, so it is refused while there are any. The same end again is answered from
// the record.
func (s *session) end(ctx context.Context, req EndRequest) (journal.Record, error) {
	select {
	case <-s.settled:
	case <-ctx.Done():
		return journal.Record{}, s.x.ended(ctx, s.id)
	}
	if s.x.stopping.Err() != nil { // the settlement may have been cut short
		return journal.Record{}, goingAway(s.id)
	}
	s.mu.Lock()
	open, ended := len(s.flights), (*replay.Ended)(nil)
	s.view(func(st *replay.State) {
		if ended = st.Ended; open == 0 {
			open = len(st.Open())
		}
	})
	if ended != nil && ended.Outcome == req.Outcome && ended.Reason == req.Reason {
		s.mu.Unlock()
		return s.journal.Event(ctx, ended.Seq)
	}
	if open > 0 && ended == nil {
		s.mu.Unlock()
		return journal.Record{}, schema.Errorf(schema.Backpressure, "%d calls of session %s are open", open, s.id).With("session", s.id).
			With("next", "wait for their results, and answer what waits for a person; look at them with: steno calls ls "+s.id+" --open; then end the session")
	}
	s.ending = true
	s.mu.Unlock()
	r, err := s.append(journal.Entry{Type: schema.TypeSessionEnded, Data: req.data()})
	s.mu.Lock()
	s.ending = false // from here on the log says so, and answers recorded calls
	s.mu.Unlock()
	if err != nil {
		return journal.Record{}, err
	}
	return r[0], nil
}
