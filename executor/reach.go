package executor

import (
	"context"

	"github.com/nats-io/nats.go"
)

// A line leads to holders of sessions.
type line struct {
	conn    *nats.Conn
	answers *inboxes
}

// pass sends a request to the holder of a session and waits for its answer, for as
// long as the holder is there. reached is false if it is not: neither on our own
// server nor where Config.Reach finds it.
func (x *Executor) pass(ctx context.Context, via, verb, holder, session string, payload []byte, hops int) (out reply, reached bool, err error) {
	out, reached, err = x.passBy(ctx, line{x.cfg.Conn, &x.answers}, via, verb, holder, session, payload, hops)
	if reached || x.cfg.Reach == nil {
		return out, reached, err
	}
	conn := x.cfg.Reach(holder)
	if conn == nil {
		return out, false, err
	}
	defer conn.Close()
	return x.passBy(ctx, line{conn, &inboxes{conn: conn}}, via, verb, holder, session, payload, hops)
}

// Take takes a session up, as its first call would, so that whoever cannot have it
// knows at once: the kinds are those of journal.Open.
func (x *Executor) Take(ctx context.Context, session string) error {
	s, err := x.hold(ctx, session, nil)
	if err == nil {
		s.leave()
	}
	return err
}
