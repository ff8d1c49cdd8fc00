package executor

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/schema"
)

// Names of the queue.
const (
	StreamQueue = "STENO_QUEUE" // calls on <prefix>.v1.queue.<session>
	// StreamDead has what can never work, on <prefix>.v1.dead.<session>, and what is
	// parked, on <prefix>.v1.dead.<session>.parked.
	StreamDead = "STENO_DEAD"
	consumer   = "STENO_EXECUTORS"
	metaStore  = "steno_store"
)

// ackWait is how long a delivery may be silent before it is given to somebody
// else. It is kept alive at a third of that while its call is on its way.
const ackWait = 30 * time.Second

// Limits of a stream that is made by us. An operator may set others, which stay.
const (
	queueMessages = 1_000_000
	queueBytes    = 4 << 30
	deadBytes     = 1 << 30
)

// A delivery whose call cannot be done now is delivered again after a pause,
// which doubles from retryFirst to retryLast, and parked after so many tries.
const (
	retryFirst = time.Second
	retryLast  = time.Minute
	maxTries   = 10
	// maxDeliveries parks a delivery whose tries nobody has counted: each ended
	// with its executor.
	maxDeliveries = 100
)

// A queueDoor takes calls from the work queue. A delivery is acknowledged after
// the result of its call is recorded.
type queueDoor struct {
	x       *Executor
	js      jetstream.JetStream
	ackWait atomic.Int64  // of the consumer, as its operator has set it
	kick    chan struct{} // the streams are to be looked at now
	pulls   pulls
	shares  shares
	tries   tries

	// Of the guard.
	made   map[string]jetstream.StreamConfig // the streams as they are made, or were when they were seen last
	since  map[string]time.Time              // when they were made
	seen   *counts
	idle   map[uint64]bool // the same, as the last look has found it
	mute   bool            // the last look failed
	offers chan struct{}   // open calls are to be offered again
}

// openQueue makes the streams and the consumer if they are missing.
func openQueue(ctx context.Context, x *Executor) (*queueDoor, error) {
	js, err := jetstream.New(x.cfg.Conn)
	if err != nil {
		return nil, unavailable("the queue cannot be used", err)
	}
	meta := map[string]string{metaStore: x.cfg.Store.ID()}
	q := &queueDoor{x: x, js: js, kick: make(chan struct{}, 1), offers: make(chan struct{}, 1), since: map[string]time.Time{},
		made: map[string]jetstream.StreamConfig{
			StreamQueue: {Name: StreamQueue, Description: "calls that wait for an executor", Subjects: []string{x.cfg.Prefix + ".v1.queue.*"}, Metadata: meta,
				Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, MaxMsgs: queueMessages, MaxBytes: queueBytes},
			StreamDead: {Name: StreamDead, Description: "calls that can never work, and parked ones", Subjects: []string{x.cfg.Prefix + ".v1.dead.>"}, Metadata: meta,
				Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, MaxBytes: deadBytes},
		}}
	// One that is parked must stay whole, with the reason beside it.
	if most := x.cfg.Conn.MaxPayload() - headRoom; most > 0 {
		cfg := q.made[StreamQueue]
		cfg.MaxMsgSize = int32(min(most, math.MaxInt32))
		q.made[StreamQueue] = cfg
	}
	q.shares.room = max(queueWorkers/4, min(x.cfg.SessionCalls, queueWorkers*3/4))
	_, _, err = q.ensure(ctx)
	return q, err
}

// Codes of the server: a stream that reserves more than the disk has, or the
// account may have.
const (
	errStorage  = 10047
	errMemory   = 10028
	errResource = 10023
)

// vanishes is how long a server may take to be done with a stream that is gone from
// its list.
const vanishes = time.Second

// ensure makes what is missing of the streams and the consumer, and says whether
// a stream is another one than before.
func (q *queueDoor) ensure(ctx context.Context) (queue jetstream.Stream, anew bool, err error) {
	for _, name := range []string{StreamQueue, StreamDead} {
		s, err := q.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) && !q.since[name].IsZero() {
			// It has vanished, and the server may not be done with that: one that is made
			// too soon gets messages and never says so.
			select {
			case <-time.After(vanishes):
			case <-ctx.Done():
			}
			s, err = q.js.Stream(ctx, name)
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			s, err = q.create(ctx, name)
		}
		if err != nil {
			return nil, false, schema.Errorf(schema.Unavailable, "stream %s cannot be used", name).With("next", "use a NATS server with JetStream switched on").Cause(err)
		}
		info := s.CachedInfo()
		has, store := info.Config, q.x.cfg.Store.ID()
		if has.Metadata[metaStore] != store {
			return nil, false, schema.Errorf(schema.InvalidConfig, "stream %s belongs to store %q; this executor has %s", name, has.Metadata[metaStore], store).
				With("next", "give all executors the same --dir, or use a server of its own")
		}
		if want := q.made[name].Subjects[0]; !slices.Contains(has.Subjects, want) {
			return nil, false, schema.Errorf(schema.InvalidConfig, "stream %s takes %q; this executor needs %s", name, has.Subjects, want).
				With("next", "give all executors of a server the same prefix, or use an account of its own")
		}
		anew = anew || !q.since[name].IsZero() && !q.since[name].Equal(info.Created)
		q.made[name], q.since[name] = has, info.Created
		if name == StreamQueue {
			queue = s
		}
	}
	c, err := q.js.Consumer(ctx, StreamQueue, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c, err = q.js.CreateConsumer(ctx, StreamQueue, jetstream.ConsumerConfig{Durable: consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.x.ackWait,
			MaxAckPending: 1 << 14, MaxDeliver: -1})
		if errors.Is(err, jetstream.ErrConsumerExists) { // another executor was faster
			c, err = q.js.Consumer(ctx, StreamQueue, consumer)
		}
	}
	if errors.Is(err, jetstream.ErrNotPullConsumer) || err == nil && c.CachedInfo().Config.AckPolicy != jetstream.AckExplicitPolicy {
		return nil, false, schema.Errorf(schema.InvalidConfig, "consumer %s of stream %s is not what executors need: one that is asked, and told of each delivery", consumer, StreamQueue).
			With("next", "remove the consumer, and an executor makes it as it must be").Cause(err)
	}
	if err != nil {
		return nil, false, unavailable("the queue's consumer cannot be used", err)
	}
	if wait := c.CachedInfo().Config.AckWait; wait > 0 { // what an operator has set stays
		q.ackWait.Store(int64(wait))
	}
	return queue, anew, nil
}

// create makes a stream as it was, with room reserved for it if there is as much.
func (q *queueDoor) create(ctx context.Context, name string) (jetstream.Stream, error) {
	cfg := q.made[name]
	s, err := q.js.CreateStream(ctx, cfg)
	if e, ok := errors.AsType[*jetstream.APIError](err); ok && slices.Contains([]jetstream.ErrorCode{errStorage, errMemory, errResource}, e.ErrorCode) {
		cfg.MaxBytes = -1
		s, err = q.js.CreateStream(ctx, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return q.js.Stream(ctx, name) // another executor was faster
	}
	return s, err
}

// lookNow has the guard look at the streams.
func (q *queueDoor) lookNow() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// A delivery is a message of the queue, given to this executor.
type delivery struct {
	msg       *nats.Msg
	session   string // the last token of its subject, whatever that is
	seq       uint64 // in the stream
	delivered uint64 // how often it was, to anybody
	queued    time.Time
	alive     time.Time // when the server was last told that somebody is at work on it
}

// readDelivery reads what the server says of a message.
func readDelivery(m *nats.Msg) (*delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	return &delivery{msg: m, session: lastToken(m.Subject), seq: meta.Sequence.Stream, delivered: meta.NumDelivered, queued: meta.Timestamp, alive: time.Now()}, nil
}

// What to do with a delivery.
type disposed int

const (
	ack   disposed = iota // a result is recorded
	dead                  // it can never work
	again                 // it may work later
	park                  // it may work later, and has been tried often enough
	later                 // it waits for a person, or for others of its session
	back                  // this executor is going away
)

func disposition(err error) disposed {
	switch schema.KindOf(err) {
	case "":
		return ack
	case schema.PoisonMessage, schema.InvalidArgs, schema.PayloadTooLarge, schema.LineTooLong, schema.NotFound, schema.CallConflict, schema.DuplicateCall, schema.SessionEnded,
		schema.CorruptLogLine, schema.TailSuspect, schema.UnsupportedSchemaVersion, schema.UnsafeStatePath, schema.LeaseStoreUnsupported:
		return dead
	default:
		return again
	}
}

// tries count how often this executor has tried in vain what was delivered. What
// waits for a person, or for others, has not been tried.
type tries struct {
	mu sync.Mutex
	of map[uint64]int
}

// maxTried bounds the deliveries that are counted.
const maxTried = 1 << 16

// add counts a try, and says whether this executor has had the delivery before.
func (t *tries) add(seq uint64) (n int, before bool) {
	before = t.see(seq)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[seq]++
	return t.of[seq], before
}

// see remembers a delivery that was not tried, however often it comes.
func (t *tries) see(seq uint64) (before bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, before := t.of[seq]
	if t.of == nil || len(t.of) >= maxTried { // most of it was finished elsewhere
		t.of = map[uint64]int{}
	}
	t.of[seq] = n
	return before
}

func (t *tries) forget(seq uint64) {
	t.mu.Lock()
	delete(t.of, seq)
	t.mu.Unlock()
}
