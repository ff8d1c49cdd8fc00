package executor

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/lease"
	"steno/replay"
	"steno/schema"
)

const (
	// guardEvery is how often the streams are looked at, guardSoon how soon at the
	// earliest where something is wrong with them.
	guardEvery = 2 * time.Second
	guardSoon  = 100 * time.Millisecond
	// maxSwept bounds what one look takes out of the queue.
	maxSwept = 100
)

// guard sees to it that the streams and the consumer are there, that nothing
// stays in the queue that nobody will get, and that open calls are offered again
// where the queue may have forgotten them. It returns when a drain begins.
func (q *queueDoor) guard() {
	for _, on := range []struct {
		what string
		hear nats.MsgHandler
	}{{"MAX_DELIVERIES", q.exceeded}, {"MSG_TERMINATED", q.terminated}} {
		// What is missed by it is found by a sweep.
		sub, err := q.x.cfg.Conn.QueueSubscribe("$JS.EVENT.ADVISORY.CONSUMER."+on.what+"."+StreamQueue+".>", q.x.cfg.Prefix+".advisories", on.hear)
		if err != nil {
			q.x.log.Warn("the queue's advisories are not heard", "err", err)
			continue
		}
		defer sub.Unsubscribe()
	}
	stop := q.x.stopping.Done()
	t := time.NewTicker(guardEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-q.kick:
		case <-stop:
			return
		}
		ctx, cancel := context.WithTimeout(q.x.stopping, lookWait)
		err := q.look(ctx)
		cancel()
		if q.x.stopping.Err() != nil {
			return
		}
		if err != nil && !q.mute {
			q.x.log.Warn("the queue cannot be used", "kind", schema.KindOf(err), "err", err)
		} else if err == nil && q.mute {
			q.x.log.Warn("the queue can be used again")
		}
		q.mute = err != nil
		select {
		case <-time.After(guardSoon):
		case <-stop:
			return
		}
	}
}

// counts are what the queue had in it at a look, and what its consumer had given
// out at that time or before.
type counts struct {
	stream    jetstream.StreamState
	delivered uint64
	pending   int
}

// look is one look at the streams.
func (q *queueDoor) look(ctx context.Context) error {
	s, anew, err := q.ensure(ctx)
	if err != nil {
		return err
	}
	before, err := q.js.Consumer(ctx, StreamQueue, consumer)
	if err != nil {
		return err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return err
	}
	after, err := q.js.Consumer(ctx, StreamQueue, consumer)
	if err != nil {
		return err
	}
	was, now := q.seen, &counts{info.State, before.CachedInfo().Delivered.Consumer, before.CachedInfo().NumAckPending}
	q.seen = now
	if anew {
		q.x.log.Warn("the queue was made anew: what waited in it for an executor is gone, but for what the logs have")
		q.idle = nil
	} else if was != nil {
		// What is no longer there was given out, before or since, or somebody has
		// taken it away.
		gone := was.stream.Msgs + (now.stream.LastSeq - min(was.stream.LastSeq, now.stream.LastSeq)) - min(now.stream.Msgs, was.stream.Msgs)
		given := after.CachedInfo().Delivered.Consumer - min(was.delivered, after.CachedInfo().Delivered.Consumer) + uint64(was.pending)
		if now.stream.Msgs <= was.stream.Msgs && gone > given {
			q.x.log.Warn("calls were taken out of the queue; what waited there is gone, but for what the logs have", "messages", gone-given)
			anew = true
		}
	}
	if anew {
		q.offer()
	}
	return q.sweep(ctx, s, before.CachedInfo(), info.State)
}

// exceeded hears that the consumer gives up a message. Anybody may say so, and the
// next looks find out.
func (q *queueDoor) exceeded(*nats.Msg) { q.lookNow() }

// terminated hears that somebody has ended a delivery for good. Executors say a
// kind with it, and have kept the message.
func (q *queueDoor) terminated(m *nats.Msg) {
	var a struct {
		Seq    uint64 `json:"stream_seq"`
		Reason string `json:"reason"`
	}
	if json.Unmarshal(m.Data, &a) == nil && !schema.Kind(a.Reason).Known() && a.Reason != deleted {
		q.x.log.Warn("a call was taken out of the queue by somebody else, and is nowhere kept", "message", a.Seq, "reason", a.Reason)
	}
}

// deleted is the reason that the server gives where a message was removed, as a sweep does.
const deleted = "Unacknowledged message was deleted"

// sweep takes out of the queue what its consumer gives to nobody any more: a
// consumer with a limit on deliveries leaves such messages where they are, for
// ever. They lie below what the consumer has done with. One that is seen there
// once may be on its way out.
func (q *queueDoor) sweep(ctx context.Context, s jetstream.Stream, c *jetstream.ConsumerInfo, st jetstream.StreamState) error {
	done := c.AckFloor.Stream
	if c.NumAckPending == 0 {
		done = c.Delivered.Stream
	}
	idle, all := map[uint64]bool{}, map[uint64]bool{}
	for seq := st.FirstSeq; st.Msgs > 0 && seq <= done && len(idle) < maxSwept; seq++ {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Sequence > done {
			break
		}
		if err != nil {
			return unavailable("the queue cannot be read", err)
		}
		seq = m.Sequence
		if idle[seq] = true; q.idle[seq] {
			all[seq] = true
		}
	}
	q.idle = idle
	for seq := range all {
		m, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // somebody else was faster
		}
		if err == nil {
			err = q.giveUp(ctx, s, m, c)
		}
		if err != nil {
			return err
		}
	}
	if len(idle) > 0 || len(all) > 0 {
		q.lookNow()
	}
	return nil
}

// giveUp parks a message that nobody gets any more. One whose call has a result
// has done its work.
func (q *queueDoor) giveUp(ctx context.Context, s jetstream.Stream, m *jetstream.RawStreamMsg, c *jetstream.ConsumerInfo) error {
	l := &letter{session: lastToken(m.Subject), seq: m.Sequence, queued: m.Time, deliveries: uint64(max(c.Config.MaxDeliver, 0)), data: m.Data, parked: true}
	l.why = schema.Errorf(schema.PoisonMessage, "the queue gives it to no executor any more; its consumer may deliver %d times", c.Config.MaxDeliver)
	if a, err := LookAtCall(ctx, q.x.cfg.Store, l.session, callOf(m.Data)); err != nil || a.Call.Result == nil {
		q.record(l)
		if err := q.bury(l); err != nil {
			return unavailable("a dead letter could not be kept", err)
		}
		q.x.log.Warn("a call that the queue gives to nobody any more is parked", "session", l.session, "message", l.seq)
	}
	return remove(ctx, s, m.Sequence)
}

// offer has open calls offered again.
func (q *queueDoor) offer() {
	select {
	case q.offers <- struct{}{}:
	default:
	}
}

// offering offers open calls again whenever it is to: at the start, and where
// the queue may have forgotten them. It returns when a drain begins.
func (q *queueDoor) offering() {
	for {
		select {
		case <-q.offers:
			q.x.offerAgain()
		case <-q.x.stopping.Done():
			return
		}
	}
}

// offerAgain goes by the logs: what is recorded and open and nobody works on is
// settled. A session that this process holds has its own; one that nobody holds
// is taken, if it has any. Others are their holders'.
func (x *Executor) offerAgain() {
	x.mu.RLock()
	held := maps.Clone(x.sessions)
	x.mu.RUnlock()
	for _, s := range held {
		if x.begin(s) {
			s.offerAgain()
			s.leave()
			x.work.Done()
		}
	}
	for id, err := range x.cfg.Store.Sessions(x.stopping) {
		if x.stopping.Err() != nil {
			return
		}
		if err != nil {
			x.log.Warn("open calls may wait until they are asked for: the sessions cannot be listed", "err", err)
			return
		}
		if held[id] != nil || !x.leftOpen(id) {
			continue
		}
		s, err := x.hold(x.stopping, id, nil)
		if err != nil {
			x.log.Info("a session with open calls is not taken", "session", id, "kind", schema.KindOf(err), "err", err)
			continue
		}
		s.leave()
	}
}

// leftOpen reports whether a session that nobody holds has calls to settle.
func (x *Executor) leftOpen(id string) bool {
	st, err := x.cfg.Store.Lease(x.stopping, id)
	if err != nil || st.State != lease.Available && st.State != lease.Stale {
		return false
	}
	state, damage, err := callsOf(x.stopping, x.cfg.Store, id, nil)
	if err != nil || damage != nil || state.Ended != nil {
		return false
	}
	for _, c := range state.Open() {
		if c.Waiting == nil || expired(c.Waiting) {
			return true
		}
	}
	return false
}

// offerAgain settles what is open here and nobody works on.
func (s *session) offerAgain() {
	if s.await(s.x.stopping) != nil {
		return
	}
	select {
	case <-s.settled:
	case <-s.x.stopping.Done():
		return
	}
	var open []replay.Call
	s.view(func(st *replay.State) {
		if st.Ended == nil {
			for _, c := range st.Open() {
				open = append(open, *c)
			}
		}
	})
	for i := range open {
		c := &open[i]
		s.mu.Lock()
		flies := s.flights[c.ID] != nil
		s.mu.Unlock()
		if flies || c.Waiting != nil {
			continue
		}
		if _, marked, err := s.requestOf(c); err != nil || marked && lastAttempt(c) == 0 {
			continue // only a request that carries what is hidden can run it
		}
		r, err := s.journal.Event(s.ctx, c.Seq)
		if c = s.copied(c.ID); err == nil && c.Result == nil {
			err = s.settle(c, r.Data)
		}
		if err != nil && s.sound() && s.x.stopping.Err() == nil {
			s.x.log.Warn("an open call was not settled", "session", s.id, "call", c.ID, "kind", schema.KindOf(err), "err", err)
		}
	}
}
