package executor

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"steno/journal"
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

// fetchWait is how long one request for a delivery stands. The server must not
// be left with one that nobody listens to any more: what it answers with would
// be silent for all of ackWait. So a drain waits for the end of the last one.
const fetchWait = 500 * time.Millisecond

// A delivery whose call cannot be done now is delivered again after a pause,
// which doubles from retryFirst to retryLast, and parked after so many.
const (
	retryFirst    = time.Second
	retryLast     = time.Minute
	maxDeliveries = 10
)

// A queueDoor takes calls from the work queue. A delivery is acknowledged after
// the result of its call is recorded.
type queueDoor struct {
	x        *Executor
	js       jetstream.JetStream
	consumer jetstream.Consumer
}

// openQueue makes the streams and the consumer if they are missing.
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
			s, err = js.Stream(ctx, cfg.Name) // made by somebody else, perhaps with limits
		}
		if err != nil {
			return nil, schema.Errorf(schema.Unavailable, "stream %s cannot be used", cfg.Name).With("next", "use a NATS server with JetStream switched on").Cause(err)
		}
		has := s.CachedInfo().Config
		if has.Metadata[metaStore] != x.cfg.Store.ID() {
			return nil, schema.Errorf(schema.InvalidConfig, "stream %s belongs to store %q; this executor has %s", cfg.Name, has.Metadata[metaStore], x.cfg.Store.ID()).
				With("next", "give all executors the same --dir, or use a server of its own")
		}
		if !slices.Contains(has.Subjects, cfg.Subjects[0]) {
			return nil, schema.Errorf(schema.InvalidConfig, "stream %s takes %q; this executor needs %s", cfg.Name, has.Subjects, cfg.Subjects[0]).
				With("next", "give all executors of a server the same prefix, or use an account of its own")
		}
	}
	q.consumer, err = js.CreateOrUpdateConsumer(ctx, StreamQueue, jetstream.ConsumerConfig{Durable: consumer,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: x.ackWait, MaxAckPending: 1 << 14, MaxDeliver: -1})
	if err != nil {
		return nil, unavailable("the queue's consumer cannot be used", err)
	}
	return q, nil
}

// fetch takes one delivery for each free worker, until a drain begins.
// Deliveries that are on their way are finished by the drain.
func (q *queueDoor) fetch() {
	stop := q.x.stopping.Done()
	free := make(chan struct{}, queueWorkers)
	for {
		select {
		case free <- struct{}{}:
		case <-stop:
			return
		}
		// While no call more may run here, another executor can have it.
		select {
		case q.x.calls <- struct{}{}:
			<-q.x.calls
		case <-stop:
			return
		}
		msg, err := q.consumer.Next(jetstream.FetchMaxWait(fetchWait))
		if err == nil && q.x.begin(nil) {
			entered := make(chan struct{})
			go func() {
				defer q.x.work.Done()
				defer func() { <-free }()
				q.deliver(msg, entered)
			}()
			select { // the next is not fetched before this one has its room
			case <-entered:
			case <-stop:
			}
			continue
		}
		<-free
		if err == nil {
			q.tell(msg, msg.Nak()) // handed back at once
			return
		}
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		q.x.log.Warn("the queue does not deliver", "err", err)
		select {
		case <-time.After(time.Second):
		case <-stop:
		}
	}
}

// deliver does the call of a delivery and tells the broker what became of it.
// It closes entered once the call has its room here.
func (q *queueDoor) deliver(msg jetstream.Msg, entered chan<- struct{}) {
	session := msg.Subject()[strings.LastIndexByte(msg.Subject(), '.')+1:]
	err := q.call(msg, session, entered)
	what := disposition(err)
	if _, _, waits := waits(err); waits && what == again {
		what = later
	}
	if what == again && q.x.stopping.Err() != nil {
		what = back
	}
	if what == again && deliveries(msg) >= maxDeliveries {
		what = park
	}
	switch what {
	case ack:
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		q.tell(msg, msg.DoubleAck(ctx)) // unconfirmed, it is delivered again and answered from the record
	case dead, park:
		if what == dead {
			q.record(msg, session, err)
		}
		if err := q.bury(msg, session, err, what == dead); err != nil {
			q.x.log.Error("a dead letter could not be kept; it is delivered again", "session", session, "err", err)
			q.tell(msg, msg.NakWithDelay(q.pause(msg)))
			return
		}
		q.tell(msg, msg.TermWithReason(string(schema.KindOf(err))))
	case again:
		q.tell(msg, msg.NakWithDelay(q.pause(msg)))
	case later:
		pause := q.pause(msg)
		if schema.AsError(err).Details["redacted"] != nil { // once it is allowed only this delivery can run it
			pause = min(pause, askAgain)
		}
		q.tell(msg, msg.NakWithDelay(pause))
	case back:
		q.tell(msg, msg.Nak())
	}
}

// call does the call of a delivery, and keeps the delivery alive meanwhile.
func (q *queueDoor) call(msg jetstream.Msg, session string, entered chan<- struct{}) error {
	ended := make(chan struct{})
	var alive sync.WaitGroup
	alive.Go(func() {
		t := time.NewTicker(q.x.ackWait / 3)
		defer t.Stop()
		for {
			select {
			case <-ended:
				return
			case <-t.C:
				_ = msg.InProgress() // if it does not arrive, the call is delivered again and joins
			}
		}
	})
	defer alive.Wait()
	defer close(ended)
	select {
	case q.x.calls <- struct{}{}:
		close(entered)
		defer func() { <-q.x.calls }()
	case <-q.x.stopping.Done():
		return goingAway(session)
	}
	_, err := q.x.route(through(q.x.ctx, viaQueue), callVerb, session, msg.Data(), 0, false)
	if errors.Is(err, schema.InvalidArgs) && !isObject(msg.Data()) {
		err = schema.Errorf(schema.PoisonMessage, "what was queued is no call: %s", schema.AsError(err).Message).With("session", session).Cause(err)
	}
	return err
}

// isObject tells a bad call from what was never one.
func isObject(text []byte) bool {
	out, _, err := schema.Compact(nil, text, 1)
	if err != nil {
		return schema.AsError(err).Details["reason"] != string(schema.InvalidJSON)
	}
	return out[0] == '{'
}

// tell logs that the broker could not be told what became of a delivery. It
// delivers it again.
func (q *queueDoor) tell(msg jetstream.Msg, err error) {
	if err != nil {
		q.x.log.Warn("the queue was not told what became of a delivery", "subject", msg.Subject(), "err", err)
	}
}

// What to do with a delivery.
type disposed int

const (
	ack   disposed = iota // a result is recorded
	dead                  // it can never work
	again                 // it may work later
	park                  // it may work later, and has been tried often enough
	later                 // it waits for a person
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

func deliveries(msg jetstream.Msg) uint64 {
	if m, err := msg.Metadata(); err == nil {
		return m.NumDelivered
	}
	return 1
}

// pause is the time until a delivery comes again.
func (q *queueDoor) pause(msg jetstream.Msg) time.Duration {
	return min(q.x.retryFirst<<min(deliveries(msg)-1, 6), retryLast)
}

// record writes a dead letter into the log of its session, where there is one
// that can be written. A delivery that comes again has the same id, so it is
// written once.
func (q *queueDoor) record(msg jetstream.Msg, session string, why error) {
	var o schema.Object
	var call struct {
		CallID string `json:"call_id"`
	}
	if schema.Unmarshal(msg.Data(), &call) == nil && schema.CheckCallID(call.CallID) == nil {
		o.Text("call_id", call.CallID)
	}
	text, marks := q.x.redact.Text(string(msg.Data()), "/message", nil)
	text, _ = schema.Truncate(text, maxDeadMessage)
	o.Text("reason", string(schema.KindOf(why))).Uint("deliveries", deliveries(msg)).Text("message", text)
	if len(marks) > 0 {
		o.Raw("redacted", appendMarks(nil, marks))
	}
	id := journal.NewID()
	if m, err := msg.Metadata(); err == nil {
		sum := sha256.Sum256(strconv.AppendUint([]byte(q.x.cfg.Store.ID()+" "), m.Sequence.Stream, 10))
		_ = id.SetTime(ulid.Timestamp(m.Timestamp)) // errs beyond the year 10889
		_ = id.SetEntropy(sum[:10])
	}
	b, err := encode(AppendRequest{Session: session, Events: []AppendEvent{{ID: id.String(), Type: schema.TypeDeadLetter, Data: o.Bytes()}}})
	if err == nil {
		_, err = q.x.route(q.x.ctx, deadVerb, session, b, 0, false)
	}
	if err != nil && schema.ValidSession(session) && !errors.Is(err, schema.NotFound) {
		q.x.log.Warn("a dead letter is not in the log of its session", "session", session, "kind", schema.KindOf(err), "err", err)
	}
}

// maxDeadMessage bounds what a log keeps of a dead letter.
const maxDeadMessage = 4 << 10

// bury keeps a message that can never work, with its reason, before the queue
// forgets it. One that is as long as a message can be loses its end, since its
// reason needs room, and one that is dead what is secret in it. One that is only
// parked is kept as it came, so that it can be queued again.
func (q *queueDoor) bury(msg jetstream.Msg, session string, why error, dead bool) error {
	if !schema.ValidSession(session) {
		session = "_"
	}
	data := msg.Data()
	if dead {
		data, _ = q.x.redact.JSON(data, "", nil)
	}
	reason, _ := q.x.redact.Text(schema.AsError(why).Message, "", nil)
	header := nats.Header{HeaderErrorKind: {string(schema.KindOf(why))}, "Steno-Error": {shorten(reason, 1<<10)},
		"Steno-Deliveries": {strconv.FormatUint(deliveries(msg), 10)}}
	if most := int(q.x.cfg.Conn.MaxPayload()) - 8<<10; len(data) > most {
		header.Set("Steno-Bytes", strconv.Itoa(len(data)))
		data = data[:most]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := q.js.PublishMsg(ctx, &nats.Msg{Subject: q.x.cfg.Prefix + ".v1.dead." + session, Data: data, Header: header})
	return err
}
