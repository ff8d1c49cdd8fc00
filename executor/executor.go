// Package executor takes tool calls from NATS, records them, runs the tools
// and answers.
//
// A call is identified by its session and its call id. It is on disk, with the
// decision that allowed it and the start of its attempt, before its tool runs;
// its result is on disk before anybody hears of it. A call with a recorded
// result is answered from the record and never run again. One that started and
// has no result has an unknown outcome: it is run again only if its tool is
// declared repeatable or read-only, or says when it is asked that the attempt did
// nothing; otherwise it gets a synthetic result of kind interrupted, and a
// person settles it.
//
// Calls come in through two doors into one room. The request door answers when
// the result is recorded. The queue door takes calls from a work queue that
// holds them while no executor runs, and acknowledges each after its record.
// Any executor may receive a call; one that does not hold the session's lease
// passes it to the one that does, and takes the session if nobody holds it.
//
// # Writing a tool
//
// [Define] makes a tool of a function, [LoadTools] makes tools of commands, and a
// [Tool] can be written out. [HostTools] hosts tools in another process, a worker,
// which executors with [Config.Workers] find and call. A [Registry] compiles their schemas and says what
// is wrong with them.
//
// What a call goes through, in this order: the tool is looked up; its arguments
// are validated against Input; its tier, the session's phase (Phases, Escalates)
// and the policy's mode must admit it; Ready and Available are asked; Paths are followed
// and must stay in the workspace; the policy decides, or a person. The call, the
// decision and the start are on disk before Run is called. So Run gets arguments
// that are valid, once for each attempt, and need not ask who allowed it.
//
// What to say of a tool, where the zero value is the safe one:
//
//   - Repeatable, if a second run after a crash does no harm; ReadOnly, if it
//     changes nothing. Of any other tool that was cut short nobody knows whether
//     it took effect, unless it has a Check that can tell.
//   - Tier, for policies, and Timeout, after which ctx ends. A Run that does not
//     return then is answered for with kind timeout; it keeps its slot.
//   - DryRun, if Run looks at Invocation.DryRun; otherwise it is not called for one.
//   - Bind, if it keeps something for each session, and Close, if it must let go.
//
// To reach the world, hand on Invocation.Key, which stays the same in every
// attempt, or the token of Epoch and Seq, which grows: a system that refuses a
// key it has seen, or a lower token, takes no effect twice.
//
// An error that Run returns is recorded and shown to the model: a *schema.Error
// as it is, of any other its class, and the operator's log has the rest. A
// [Result] with OK false says that the tool worked and the answer is no.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/executor/redact"
	"steno/journal"
	"steno/schema"
)

// Config says what an executor works with. Conn, Store, Tools and Holder must
// be set; the zero value of every other field is a sensible setting.
type Config struct {
	Conn   *nats.Conn
	Store  journal.Store
	Tools  *Registry
	Holder schema.Holder // this process; see lease.Self
	// Prefix begins every subject; "steno" if empty.
	Prefix string
	// Queue also serves the queue door, which needs JetStream.
	Queue bool
	// Policy says which calls may run in all sessions that this executor holds,
	// also where another one did before. Nil: each goes by the policy that is
	// recorded in it, and where there is none every valid call runs.
	Policy *Policy
	// DenyUnattended denies what a policy wants a person to be asked about, as
	// where nobody can be reached while this executor runs.
	DenyUnattended bool
	// Attended says that whoever makes a call of this executor can ask a person: a
	// request whose call waits for one is answered with backpressure at once, with
	// details.approval_id. Once that is answered the same request gets the result.
	Attended bool
	// Workers says which tools that workers host on Conn may be called; nil: none.
	Workers *Workers
	// Repeat says how many calls with the same result are too many.
	Repeat RepeatGuard
	// Redact takes secrets out of all that is recorded or logged; nil has the
	// built-in rules. Its secret is that of Store.
	Redact *redact.Redactor
	// Reach connects to a holder of sessions of the store that is not on the server
	// of Conn; nil if it cannot be reached. The connection is closed after a request.
	// Without it such a holder is there and not reached.
	Reach func(holder string) *nats.Conn
	// Protect names folders that no tool may see or touch: the store's.
	Protect []string
	// MaxCalls bounds the calls that run or wait in this process; more are
	// refused with backpressure. 1024 if zero.
	MaxCalls int
	// SessionCalls bounds the calls of one session that run side by side. 8 if
	// zero.
	SessionCalls int
	// Sessions bounds the sessions that this process holds: above it, those
	// that nobody uses are released, the least recently used first. 1000 if
	// zero.
	Sessions int
	// Logger gets what operators need to know, as the causes of tools that fail
	// unexpectedly, which nobody else is told. slog.Default if nil.
	Logger *slog.Logger
}

// An Executor serves the sessions of one store. Its methods may be called from
// many goroutines.
type Executor struct {
	cfg    Config
	log    *slog.Logger
	redact *redact.Redactor
	ctx    context.Context // ends the tools
	cancel context.CancelFunc
	// stopping ends when a drain begins: what only waits, for a slot or for
	// another holder, is handed back at once.
	stopping context.Context
	stop     context.CancelFunc
	service  micro.Service
	answers  inboxes       // of other executors
	calls    chan struct{} // a slot for each call that runs or waits, here or at its holder
	writes   chan struct{} // a slot for each request of another kind that may wait for the disk
	looks    chan struct{} // a slot for each other request
	work     sync.WaitGroup
	policies policies
	waiters  waiters
	reserve  reserve       // of descriptors
	guard    guards        // the folders of Config.Protect
	patient  chan struct{} // a slot for each request that waits for a person
	replies  replies       // requests that are being handled
	workers  *workers      // nil if there are none to be called
	// passResult brings a late result to the holder of its session. It is set by
	// New, since a verb may not lead to itself.
	passResult func(session string, payload []byte) error
	// Set by New and by tests only.
	ackWait, stopWait, retryFirst time.Duration

	unready atomic.Bool          // as the log was last told
	looked  atomic.Pointer[look] // the last one that is done
	shown   health               // in the statistics; guarded by the service's lock

	outgoing chan outgoing // what is to be sent
	load     load          // of that
	herald   sync.Once     // begins to send it
	// wallsTold says once what is around commands.
	wallsTold sync.Once
	live      chan outgoing // what is only ever live, and may be shed
	relay     sync.Once     // begins to send that
	hush      chan struct{} // closed when no more is to come
	hushed    chan struct{} // closed when all is sent
	uses      atomic.Uint64 // ends of uses of sessions, which give them their order

	// Guards the rest; never held during I/O. What each call needs takes it for
	// reading, since callers that wait for each other in turn stand still while
	// hundreds of others run.
	mu       sync.RWMutex
	look     *look // the newest at the store; nil before the first
	again    bool  // another is to follow it
	sessions map[string]*session
	room     int // how many may be held: Config.Sessions, and fewer while too many files are open
	thinned  int // how many are being released because there are too many
	draining bool
}

// New checks cfg and makes an executor that serves nothing yet. InvalidConfig
// names the setting that cannot be used.
func New(cfg Config) (*Executor, error) {
	switch {
	case cfg.Conn == nil:
		return nil, schema.Errorf(schema.InvalidConfig, "an executor needs a connection")
	case cfg.Store == nil:
		return nil, schema.Errorf(schema.InvalidConfig, "an executor needs a store")
	case cfg.Tools == nil:
		return nil, schema.Errorf(schema.InvalidConfig, "an executor needs tools")
	case cfg.Holder.ID == "":
		return nil, schema.Errorf(schema.InvalidConfig, "an executor needs a holder")
	case cfg.MaxCalls < 0 || cfg.SessionCalls < 0 || cfg.Sessions < 0:
		return nil, schema.Errorf(schema.InvalidConfig, "limits on calls and sessions cannot be negative")
	}
	var err error
	if cfg.Prefix, err = prefix(cfg.Prefix); err != nil {
		return nil, err
	}
	if cfg.Repeat, err = cfg.Repeat.filled(); err != nil {
		return nil, err
	}
	if cfg.MaxCalls == 0 {
		cfg.MaxCalls = 1024
	}
	if cfg.SessionCalls == 0 {
		cfg.SessionCalls = 8
	}
	if cfg.Sessions == 0 {
		cfg.Sessions = 1000
	}
	if cfg.Redact == nil {
		secret, err := cfg.Store.Secret()
		if err != nil {
			return nil, err
		}
		if cfg.Redact, err = redact.New(secret, redact.Rules{}); err != nil {
			return nil, err
		}
	}
	x := &Executor{cfg: cfg, redact: cfg.Redact, log: cfg.Logger, answers: inboxes{conn: cfg.Conn}, replies: replies{busy: map[repeat]struct{}{}}, calls: make(chan struct{}, cfg.MaxCalls),
		writes: make(chan struct{}, maxRequests), patient: make(chan struct{}, maxPatient), looks: make(chan struct{}, maxRequests), ackWait: ackWait, stopWait: stopWait, retryFirst: retryFirst, sessions: map[string]*session{},
		room: cfg.Sessions, outgoing: make(chan outgoing, maxOutgoing), live: make(chan outgoing, maxLive), hush: make(chan struct{}), hushed: make(chan struct{})}
	if x.log == nil {
		x.log = slog.Default()
	}
	x.log = slog.New(x.redact.Handler(x.log.Handler()))
	x.load.less.L = &x.load.mu
	if x.workers, err = newWorkers(x, cfg.Workers); err != nil {
		return nil, err
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	x.stopping, x.stop = context.WithCancel(x.ctx)
	x.passResult = func(session string, payload []byte) error {
		_, err := x.route(x.stopping, resultVerb, session, payload, 0, false)
		return err
	}
	return x, nil
}

// Start opens the doors. InvalidConfig: another executor behind the same
// prefix has another store, and two stores would be two truths. Unavailable:
// the broker does not serve.
func (x *Executor) Start(ctx context.Context) error {
	x.glance(true) // the statistics have something to tell from the beginning
	if err := x.sameStore(ctx); err != nil {
		return err
	}
	x.workers.begin(ctx) // calls that wait may need them
	var q *queueDoor
	if x.cfg.Queue {
		var err error
		if q, err = openQueue(ctx, x); err != nil {
			return err
		}
	}
	if err := x.serve(); err != nil {
		return err
	}
	if q != nil {
		q.offer() // what an earlier process has left
		for _, run := range []func(){q.fetch, q.guard, q.offering} {
			if x.begin(nil) {
				go func() {
					defer x.work.Done()
					run()
				}()
			}
		}
	}
	// The doors are open once the server has seen the subscriptions.
	if err := x.cfg.Conn.FlushTimeout(flushWait); err != nil {
		return unavailable("the broker does not answer", err)
	}
	_ = x.Ready()
	return nil
}

// flushWait is how long the server may take to see what it was sent, also where the
// machine has much else to do.
const flushWait = 10 * time.Second

// stopWait is how long a tool has to stop once it is told to.
const stopWait = 5 * time.Second

// Drain stops taking calls, lets running ones finish until ctx ends, then
// stops their tools and leaves their outcome to whoever takes the session
// next, and releases every lease. It returns when nothing runs any more.
// Detached: a tool did not stop; its session is given back without a word.
// Unavailable: the broker does not answer; one that is gone is no error.
func (x *Executor) Drain(ctx context.Context) error {
	x.mu.Lock()
	x.draining = true
	x.mu.Unlock()
	x.stop()
	var errs []error
	// Without a broker nobody asks, and whoever has asked asks again.
	wire := func(err error) {
		if err != nil && !x.cfg.Conn.IsReconnecting() {
			errs = append(errs, unavailable("the broker does not answer", err))
		}
	}
	if x.service != nil {
		gate, err := x.cfg.Conn.Subscribe(x.to()+">", x.putOff)
		if err == nil {
			defer gate.Unsubscribe()
			err = x.flush() // it is there before the service goes
		}
		wire(err)
		wire(x.service.Stop())
	}
	done := make(chan struct{})
	go func() { x.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		x.cancel()
		select {
		case <-done:
		case <-time.After(x.stopWait):
			errs = append(errs, schema.Errorf(schema.Detached, "a tool does not stop"))
		}
	}
	x.cancel()
	x.mu.Lock()
	l := x.look
	x.mu.Unlock()
	if l != nil {
		l.wait() // its file is gone before the store is closed
	}
	reasons := map[*session]string{}
	x.mu.Lock()
	for _, s := range x.sessions {
		if reasons[s] = "drained"; s.users.Load() > 0 {
			reasons[s] = "" // something is still at work there
		}
	}
	x.mu.Unlock()
	errs = append(errs, x.retireAll(reasons)...)
	errs = append(errs, x.closeFiles())
	x.tellAll()
	x.workers.end()
	// Whoever asked has an answer on the wire before the connection goes.
	wire(x.flush())
	return errors.Join(errs...)
}

// flush returns once the broker has what was sent to it, if it is there.
func (x *Executor) flush() error {
	if x.cfg.Conn.IsReconnecting() {
		return nats.ErrDisconnected
	}
	return x.cfg.Conn.FlushTimeout(flushWait)
}

// maxRequests bounds the requests in this process that are no calls: those that
// write, and those that do not. Each has its own room, so that what takes long,
// or waits for room on the disk, does not keep others out.
const maxRequests = 1024

// enter takes one of these slots, which is given back by reading from it.
func enter(slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
		return noRoom(slots)
	}
}

func noRoom(slots chan struct{}) *schema.Error {
	return schema.Errorf(schema.Backpressure, "%d requests run or wait in this executor", cap(slots))
}

// begin counts a piece of work that Drain waits for, and that uses a session
// unless s is nil; false while draining.
func (x *Executor) begin(s *session) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.draining {
		return false
	}
	x.work.Add(1)
	if s != nil {
		s.users.Add(1)
	}
	return true
}

func prefix(p string) (string, error) {
	if p == "" {
		return "steno", nil
	}
	for part := range splitDots(p) {
		if !schema.ValidSession(part) {
			return "", schema.Errorf(schema.InvalidConfig, "the subject prefix must be tokens of A-Z a-z 0-9 _ - with dots between; got %q", p)
		}
	}
	return p, nil
}

// goingAway refuses what a drain leaves to others.
func goingAway(session string) error {
	e := schema.Errorf(schema.Unavailable, "this executor is shutting down")
	if session != "" {
		e.With("session", session)
	}
	return e
}

// ended is why somebody who waits with ctx is not waited for any more.
func (x *Executor) ended(ctx context.Context, session string) error {
	if x.ctx.Err() != nil {
		return goingAway(session)
	}
	return ctx.Err()
}

func unavailable(what string, err error) error {
	return schema.Errorf(schema.Unavailable, "%s", what).Cause(err)
}
