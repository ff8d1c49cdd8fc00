package executor

import (
	"context"
	"errors"
	"strconv"
	"time"

	"steno/schema"
)

// deliver does the call of a delivery and tells the broker what became of it.
func (q *queueDoor) deliver(d *delivery) {
	what, pause, err := q.try(d)
	if what == again && q.x.stopping.Err() != nil {
		what = back
	}
	if what == again {
		n, before := q.tries.add(d.seq)
		pause = q.pause(n)
		if n >= maxTries || !before && d.delivered >= maxDeliveries {
			what = park
		}
	}
	switch what {
	case ack:
		q.tries.forget(d.seq)
		q.finish(d, "+ACK") // unconfirmed, it is delivered again and answered from the record
	case dead, park:
		l := letterOf(d, err, what == park)
		if what == dead {
			q.record(l)
		}
		if err := q.bury(l); err != nil {
			q.x.log.Error("a dead letter could not be kept; it is delivered again", "session", d.session, "err", err)
			n, _ := q.tries.add(d.seq)
			q.delay(d, q.pause(n))
			return
		}
		q.tries.forget(d.seq)
		q.finish(d, "+TERM "+string(schema.KindOf(err)))
	case later:
		q.tries.see(d.seq)
		q.delay(d, pause)
	case again:
		q.delay(d, pause)
	case back:
		q.tell(d, "-NAK")
	}
}

// try does the call of a delivery, if there is room for it. pause is for what is
// later.
func (q *queueDoor) try(d *delivery) (what disposed, pause time.Duration, err error) {
	room := func() { q.pulls.roomless.Add(-1) }
	leave, ok := q.shares.take(d.session, q.x.stopping.Done())
	if !ok {
		room()
		if q.x.stopping.Err() != nil {
			return back, 0, nil
		}
		// What comes again goes before what is new, so many of these must not come soon.
		return later, q.pause(int(min(d.delivered, maxTries))), nil
	}
	defer leave()
	select {
	case q.x.calls <- struct{}{}:
		room()
		defer func() { <-q.x.calls }()
	case <-q.x.stopping.Done():
		room()
		return back, 0, nil
	}
	payload := d.msg.Data
	_, err = q.x.route(through(q.x.ctx, viaQueue), callVerb, d.session, payload, 0, false)
	if errors.Is(err, schema.InvalidArgs) && !isObject(payload) {
		err = schema.Errorf(schema.PoisonMessage, "what was queued is no call: %s", schema.AsError(err).Message).With("session", d.session).Cause(err)
	}
	what = disposition(err)
	if _, _, waits := waits(err); what == again && (waits || errors.Is(err, schema.Backpressure)) { // which says that there is much to do, here or at the holder
		what, pause = later, q.pause(int(min(d.delivered, maxTries)))
		if schema.AsError(err).Details["redacted"] != nil { // once it is allowed only this delivery can run it
			pause = min(pause, askAgain)
		}
	}
	return what, pause, err
}

// isObject tells a bad call from what was never one.
func isObject(text []byte) bool {
	out, _, err := schema.Compact(nil, text, 1)
	if err != nil {
		return schema.AsError(err).Details["reason"] != string(schema.InvalidJSON)
	}
	return out[0] == '{'
}

// pause is the time until a delivery comes again, after so many tries.
func (q *queueDoor) pause(tries int) time.Duration {
	return min(q.x.retryFirst<<min(max(tries-1, 0), 6), retryLast)
}

// tell tells the broker what becomes of a delivery. If it does not hear of it,
// the delivery comes again.
func (q *queueDoor) tell(d *delivery, what string) {
	if err := q.x.cfg.Conn.Publish(d.msg.Reply, []byte(what)); err != nil {
		q.x.log.Warn("the queue was not told what became of a delivery", "session", d.session, "err", err)
	}
}

func (q *queueDoor) delay(d *delivery, pause time.Duration) {
	q.tell(d, `-NAK {"delay":`+strconv.FormatInt(int64(pause), 10)+`}`)
}

// confirmWait is how long the broker has to confirm that it has heard.
const confirmWait = 2 * time.Second

// finish tells the broker that a delivery is done, and returns when it has heard.
func (q *queueDoor) finish(d *delivery, what string) {
	in, err := q.x.answers.newInbox(1)
	if err == nil {
		defer in.close()
		if err = q.x.cfg.Conn.PublishRequest(d.msg.Reply, in.subject, []byte(what)); err == nil {
			_, err = in.next(context.Background(), confirmWait)
		}
	}
	if err != nil {
		q.x.log.Warn("the queue did not hear what became of a delivery; it may come again", "session", d.session, "err", err)
		q.lookNow()
	}
}
