package executor

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/schema"
)

// Names of the queue.
const (
	StreamQueue = "STENO_QUEUE" // calls on <prefix>.v1.queue.<session>
	StreamDead  = "STENO_DEAD"  // what can never work, on <prefix>.v1.dead.<session>
	consumer    = "STENO_EXECUTORS"
	metaStore   = "steno_store"
)

// ackWait is how long a delivery may be silent before it is given to somebody
// else. It is kept alive at a third of that while its call is on its way.
const ackWait = 30 * time.Second

// queueWorkers bounds the deliveries that one executor has at a time. It never
// fetches more than it has free, so what waits, waits where another executor
// can take it.
const queueWorkers = 64

// A queueDoor takes calls from the work queue. A delivery is acknowledged after
// the result of its call is recorded.
type queueDoor struct {
	x        *Executor
	js       jetstream.JetStream
	consumer jetstream.Consumer
	cancel   context.CancelFunc
	fetching sync.WaitGroup
}

// openQueue makes the streams and the consumer if they are missing, and begins
// to take calls.
func openQueue(ctx context.Context, x *Executor) (*queueDoor, error) {
	js, err := jetstream.New(x.cfg.Conn)
	if err != nil {
		return nil, unavailable("the queue cannot be used", err)
	}
	q := &queueDoor{x: x, js: js}
	meta := map[string]string{metaStore: x.cfg.Store.ID()}
	queue := jetstream.StreamConfig{Name: StreamQueue, Description: "calls that wait for an executor", Subjects: []string{x.cfg.Prefix + ".v1.queue.*"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, Metadata: meta}
	dead := jetstream.StreamConfig{Name: StreamDead, Description: "calls that can never work", Subjects: []string{x.cfg.Prefix + ".v1.dead.>"},
		Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, Metadata: meta}
	for _, cfg := range []jetstream.StreamConfig{queue, dead} {
		s, err := js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s, err = js.Stream(ctx, cfg.Name)
		}
		if err != nil {
			return nil, unavailable("stream "+cfg.Name+" cannot be used", err)
		}
		if has := s.CachedInfo().Config.Metadata[metaStore]; has != x.cfg.Store.ID() {
			return nil, schema.Errorf(schema.InvalidConfig, "stream %s belongs to store %q; this executor has %s", cfg.Name, has, x.cfg.Store.ID()).
				With("next", "give all executors the same --dir, or use a server of its own")
		}
	}
	q.consumer, err = js.CreateOrUpdateConsumer(ctx, StreamQueue, jetstream.ConsumerConfig{Durable: consumer,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: x.ackWait, MaxAckPending: 1 << 14, MaxDeliver: -1})
	if err != nil {
		return nil, unavailable("the queue's consumer cannot be used", err)
	}
	run, cancel := context.WithCancel(x.stopping)
	q.cancel = cancel
	q.fetching.Add(1)
	go q.fetch(run)
	return q, nil
}

// stop fetches no more. Deliveries that are on their way are finished by the
// drain.
func (q *queueDoor) stop() {
	q.cancel()
	q.fetching.Wait()
}

// fetch takes one delivery for each free worker.
func (q *queueDoor) fetch(ctx context.Context) {
	defer q.fetching.Done()
	free := make(chan struct{}, queueWorkers)
	pause := time.Second
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		msg, err := q.consumer.Next(jetstream.FetchContext(ctx))
		if ctx.Err() != nil {
			if err == nil {
				_ = msg.Nak() // handed back at once; without it after the wait
			}
			return
		}
		if err != nil {
			<-free
			if !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
				q.x.log.Warn("the queue does not deliver", "err", err)
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
			continue
		}
		if !q.x.begin() {
			_ = msg.Nak()
			return
		}
		go func() {
			defer q.x.work.Done()
			defer func() { <-free }()
			q.deliver(msg)
		}()
	}
}

// deliver does the call of a delivery and tells the broker what became of it.
func (q *queueDoor) deliver(msg jetstream.Msg) {
	alive, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		t := time.NewTicker(q.x.ackWait / 3)
		defer t.Stop()
		for {
			select {
			case <-alive.Done():
				return
			case <-t.C:
				_ = msg.InProgress() // if it does not arrive, the call is delivered again and joins
			}
		}
	}()
	session := msg.Subject()[strings.LastIndexByte(msg.Subject(), '.')+1:]
	err := goingAway(session)
	select {
	case q.x.calls <- struct{}{}:
		_, err = q.x.route(q.x.ctx, callVerb, session, msg.Data(), 0, false)
		<-q.x.calls
	case <-q.x.stopping.Done():
	}
	stop()
	how := disposition(err)
	if how == again && q.x.stopping.Err() != nil {
		how = back
	}
	switch how {
	case ack:
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := msg.DoubleAck(ctx); err != nil {
			// It is delivered again and answered from the record.
			q.x.log.Warn("an acknowledgement was not confirmed", "session", session, "err", err)
		}
	case dead:
		if err := q.bury(msg, session, err); err != nil {
			q.x.log.Error("a dead letter could not be kept; it is delivered again", "session", session, "err", err)
			_ = msg.NakWithDelay(retryDelay(msg))
			return
		}
		_ = msg.TermWithReason(string(schema.KindOf(err)))
	case again:
		_ = msg.NakWithDelay(retryDelay(msg))
	case back:
		_ = msg.Nak()
	}
}

// What to do with a delivery.
type disposed int

const (
	ack   disposed = iota // a result is recorded
	dead                  // it can never work
	again                 // it may work later
	back                  // this executor is going away
)

func disposition(err error) disposed {
	switch k := schema.KindOf(err); k {
	case "":
		return ack
	case schema.InvalidArgs, schema.PayloadTooLarge, schema.LineTooLong, schema.NotFound, schema.CallConflict, schema.SessionEnded,
		schema.CorruptLogLine, schema.TailSuspect, schema.UnsupportedSchemaVersion, schema.UnsafeStatePath, schema.LeaseStoreUnsupported:
		return dead
	default:
		return again
	}
}

// retryDelay doubles from a second to a minute.
func retryDelay(msg jetstream.Msg) time.Duration {
	n := uint64(1)
	if m, err := msg.Metadata(); err == nil {
		n = m.NumDelivered
	}
	return min(time.Second<<min(n-1, 6), time.Minute)
}

// bury keeps a message that can never work, with its reason, before the queue
// forgets it.
func (q *queueDoor) bury(msg jetstream.Msg, session string, why error) error {
	deliveries := "1"
	if m, err := msg.Metadata(); err == nil {
		deliveries = strconv.FormatUint(m.NumDelivered, 10)
	}
	if !schema.ValidSession(session) {
		session = "_"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := q.js.PublishMsg(ctx, &nats.Msg{Subject: q.x.cfg.Prefix + ".v1.dead." + session, Data: msg.Data(), Header: nats.Header{
		HeaderErrorKind: {string(schema.KindOf(why))}, "Steno-Error": {schema.AsError(why).Message}, "Steno-Deliveries": {deliveries}}})
	return err
}
