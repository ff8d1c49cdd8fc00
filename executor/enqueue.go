package executor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"steno/schema"
)

// Codes of the server: a stream has not stored a message, most often because it
// has reached a limit; it does not take one of that size; it has too many on
// their way.
const (
	errNotStored = 10077
	errTooLarge  = 10054
	errTooMany   = 10167
)

// Enqueue puts a call into the work queue. nil means that it is queued, as
// safely as the server syncs; its result comes from Wait, as an event, or as the
// answer to the same call through Call. What the door would refuse is refused
// here, before it is queued: InvalidArgs, PayloadTooLarge, LineTooLong.
// Backpressure: the queue is full. Unavailable: there is none, or it did not say
// that it has the call for 30 seconds, or until ctx ended. It is asked again every
// two seconds; the call runs once, however often it is queued.
func (c *Client) Enqueue(ctx context.Context, session string, req Request) error {
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	b, err := encode(req)
	if err != nil {
		return err
	}
	if _, err := parseRequest(b); err != nil {
		return schema.AsError(err).With("session", session).With("call_id", req.CallID)
	}
	// One that is parked must stay whole, with the reason beside it, and another
	// executor may have to pass it on.
	if most := int(c.conn.MaxPayload()) - headRoom; len(b) > most {
		return schema.Errorf(schema.PayloadTooLarge, "the call has %d bytes; the queue takes %d", len(b), most).With("session", session).With("call_id", req.CallID)
	}
	js, err := jetstream.New(c.conn)
	if err != nil {
		return unavailable("the queue cannot be used", err)
	}
	for began := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, repeatAfter)
		err := enqueue(try, js, c.prefix, session, b)
		unheard := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && time.Since(began) < c.patience
		if cancel(); !unheard {
			return err
		}
	}
}

// enqueue publishes a call and returns when it is in the queue.
func enqueue(ctx context.Context, js jetstream.JetStream, prefix, session string, payload []byte) error {
	_, err := js.Publish(ctx, prefix+".v1.queue."+session, payload)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch {
		case e.ErrorCode == errTooMany, e.ErrorCode == errNotStored && strings.HasPrefix(e.Description, "maximum "): // its messages or bytes; else the disk
			return schema.Errorf(schema.Backpressure, "the queue is full").With("session", session).
				With("next", "wait until executors have taken some, or give stream "+StreamQueue+" higher limits").Cause(err)
		case e.ErrorCode == errTooLarge:
			return schema.Errorf(schema.PayloadTooLarge, "the queue takes no call of %d bytes", len(payload)).With("session", session).Cause(err)
		}
	}
	return schema.Errorf(schema.Unavailable, "the call was not queued").With("session", session).Cause(err)
}

// Queue says how the work queue is.
func (c *Client) Queue(ctx context.Context) (a QueueAnswer, err error) {
	return a, c.ask(ctx, "calls.queue", struct{}{}, &a)
}

// Dead lists messages that the queue has given up: what can never work, and what
// is parked.
func (c *Client) Dead(ctx context.Context, req DeadRequest) (a DeadAnswer, err error) {
	return a, c.ask(ctx, "calls.dead", req, &a)
}

// Requeue sends such messages back into the queue, and says which it has left
// and why. That a message was sent back is noted in the log of its session, by
// whom and why; it runs once, however often it is sent.
func (c *Client) Requeue(ctx context.Context, req RequeueRequest) (a RequeueAnswer, err error) {
	return a, c.ask(ctx, "calls.requeue", req, &a)
}
