package executor

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"steno/schema"
)

// QueueAnswer says how the work queue is.
type QueueAnswer struct {
	OK bool `json:"ok"`
	QueueState
}

// A QueueState is what a queue has in it, and around it.
type QueueState struct {
	Messages    uint64  `json:"messages"`  // all that are in the queue
	Pending     uint64  `json:"pending"`   // of these, those that nobody has had yet
	InFlight    int     `json:"in_flight"` // those that an executor has, or that come again after a pause
	Redelivered int     `json:"redelivered"`
	Parked      uint64  `json:"parked"` // in STENO_DEAD, and might work later
	Dead        uint64  `json:"dead"`   // in STENO_DEAD, and can never
	OldestAge   float64 `json:"oldest_age_seconds"`
	Asking      int     `json:"asking"` // requests of executors that have room for more
	Bytes       uint64  `json:"bytes"`
	// Limits of the queue and of STENO_DEAD; -1 for none.
	MaxMessages  int64  `json:"max_messages"`
	MaxBytes     int64  `json:"max_bytes"`
	DeadBytes    uint64 `json:"dead_bytes"`
	MaxDeadBytes int64  `json:"max_dead_bytes"`
}

var (
	queueVerb   = verb{"queue", (*Executor).runQueue, false, ofLooks}
	deadsVerb   = verb{"dead", (*Executor).runDeads, false, ofLooks}
	requeueVerb = verb{"requeue", (*Executor).runRequeue, false, ofWrites}
)

const (
	queueAnswerSchema = `{"type":"object","required":["ok","messages","pending","in_flight","redelivered","parked","dead","oldest_age_seconds","asking","bytes",` +
		`"max_messages","max_bytes","dead_bytes","max_dead_bytes"],"properties":{"ok":{"const":true}}}`
	deadProperties = `"session":` + sessionID + `,"call_id":{"type":"string"},"kind":{"type":"string"},"parked":{"type":"boolean"},` +
		`"after":{"type":"integer","minimum":0},"limit":{"type":"integer","minimum":1,"maximum":500}`
	deadSchema    = `{"type":"object","properties":{` + deadProperties + `}}`
	deadLetters   = `"letters":{"type":"array","items":{"type":"object","required":["seq","session","parked","kind","message","deliveries","bytes","at"]}},"more":{"type":"boolean"}`
	deadAnswer    = `{"type":"object","required":["ok","letters","more"],"properties":{"ok":{"const":true},` + deadLetters + `}}`
	requeueSchema = `{"type":"object","required":["by"],"properties":{` + deadProperties + `,` + who + `,"reason":{"type":"string","maxLength":1024},"dry_run":{"type":"boolean"}}}`
	requeueAnswer = `{"type":"object","required":["ok","letters","requeued","more"],"properties":{"ok":{"const":true},"requeued":{"type":"integer"},` + deadLetters + `}}`
)

var queueEndpoints = []endpoint{
	{"calls-queue", "calls.queue", `{"type":"object"}`, queueAnswerSchema, queueVerb, false},
	{"calls-dead", "calls.dead", deadSchema, deadAnswer, deadsVerb, false},
	{"calls-requeue", "calls.requeue", requeueSchema, requeueAnswer, requeueVerb, false},
}

// queue is the queue as far as verbs need it, which any executor may answer.
func (x *Executor) queue() (*queueDoor, error) {
	js, err := jetstream.New(x.cfg.Conn)
	if err != nil {
		return nil, unavailable("the queue cannot be used", err)
	}
	return &queueDoor{x: x, js: js}, nil
}

// lookWait bounds a look at the queue.
const lookWait = 5 * time.Second

func (x *Executor) runQueue(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req struct{}
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	q, err := x.queue()
	if err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	a := QueueAnswer{OK: true}
	if a.QueueState, err = q.state(ctx); err != nil {
		return reply{}, unavailable("the queue cannot be looked at", err)
	}
	return answer(a, x, "", schema.Head{})
}

func (q *queueDoor) state(ctx context.Context) (a QueueState, err error) {
	s, err := q.js.Stream(ctx, StreamQueue)
	if err != nil {
		return a, err
	}
	c, err := q.js.Consumer(ctx, StreamQueue, consumer)
	if err != nil {
		return a, err
	}
	d, err := q.js.Stream(ctx, StreamDead)
	if err != nil {
		return a, err
	}
	parked, err := d.Info(ctx, jetstream.WithSubjectFilter(q.x.cfg.Prefix+".v1.dead.*"+parkedToken))
	if err != nil {
		return a, err
	}
	info, of := s.CachedInfo(), c.CachedInfo()
	a = QueueState{Messages: info.State.Msgs, Pending: of.NumPending, InFlight: of.NumAckPending, Redelivered: of.NumRedelivered, Asking: of.NumWaiting,
		Bytes: info.State.Bytes, MaxMessages: info.Config.MaxMsgs, MaxBytes: info.Config.MaxBytes, DeadBytes: parked.State.Bytes, MaxDeadBytes: parked.Config.MaxBytes}
	for _, n := range parked.State.Subjects {
		a.Parked += n
	}
	a.Dead = parked.State.Msgs - min(a.Parked, parked.State.Msgs)
	if a.Messages > 0 {
		m, err := s.GetMsg(ctx, info.State.FirstSeq)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // just now somebody has done it
		case err != nil:
			return a, err
		default:
			a.OldestAge = max(0, time.Since(m.Time).Seconds())
		}
	}
	return a, nil
}

func (x *Executor) runDeads(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req DeadRequest
	_, err := door(payload, &req, levelData)
	if err == nil {
		err = req.check()
	}
	if err != nil {
		return reply{}, err
	}
	q, err := x.queue()
	if err != nil {
		return reply{}, err
	}
	a := DeadAnswer{OK: true, Letters: []DeadLetter{}}
	a.More, err = q.letters(ctx, &req, func(_ *jetstream.RawStreamMsg, l DeadLetter) bool {
		a.Letters = append(a.Letters, l)
		return true
	})
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}

func (x *Executor) runRequeue(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req RequeueRequest
	replaced, err := door(payload, &req, levelData)
	if err == nil {
		err = req.check()
	}
	if err == nil {
		err = asks("", "", "any", req.By, req.Reason, replaced)
	}
	if err != nil {
		return reply{}, err
	}
	x.plain(&req.By, &req.Reason)
	q, err := x.queue()
	if err != nil {
		return reply{}, err
	}
	a := RequeueAnswer{OK: true, Letters: []DeadLetter{}}
	full := false
	a.More, err = q.letters(ctx, &req.DeadRequest, func(m *jetstream.RawStreamMsg, l DeadLetter) bool {
		if l.Cannot == "" && !req.DryRun {
			if err := q.requeue(ctx, m, l, req.By, req.Reason); err != nil {
				l.Cannot = string(schema.KindOf(err)) + ": " + shorten(schema.AsError(err).Message, maxLetterMessage)
				full = errors.Is(err, schema.Backpressure)
			} else {
				a.Requeued++
			}
		}
		a.Letters = append(a.Letters, l)
		return !full && x.stopping.Err() == nil
	})
	if err != nil && len(a.Letters) == 0 {
		return reply{}, err
	}
	a.More = a.More || err != nil // whoever goes on is told
	return answer(a, x, "", schema.Head{})
}
