package executor

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// queueWorkers bounds the deliveries that one executor has at a time. It never
// asks for more than it has free, so what waits, waits where another executor
// can take it.
const queueWorkers = 64

const (
	// pullWait is how long one request for deliveries stands. The server must not
	// be left with one that nobody listens to any more: what it answers with would
	// be silent for all of ackWait. So a drain waits for the end of the last one.
	pullWait = 500 * time.Millisecond
	// pullLost is how long behind its end a request is given up whose end was not
	// said: the server was gone.
	pullLost = time.Second
	// pullPause follows on one that the server has refused.
	pullPause = 200 * time.Millisecond
	// maxPulls bounds the requests that stand: each is a place in the server.
	maxPulls = 8
	// queueTick is how often the door looks at its clock.
	queueTick = 50 * time.Millisecond
)

// A pull is a place for one request for deliveries at a time. What comes of it
// comes by its subscription: a delivery has the subject that it was published on.
type pull struct {
	sub  *nats.Subscription
	open int       // deliveries that the request may still bring; 0 if there is none
	ends time.Time // of the request
}

// pulls are the fetching goroutine's.
type pulls struct {
	list  []*pull
	asked int       // deliveries that they may still bring
	after time.Time // nothing is asked for before
	// roomless counts the deliveries that wait for room among the calls. Anybody's.
	roomless atomic.Int64
}

// fetch takes deliveries while there is room for them, until a drain begins, and
// keeps them alive. It returns when there are none any more.
func (q *queueDoor) fetch() {
	in := make(chan *nats.Msg, 1024) // more than all pulls together can bring
	for range maxPulls {
		sub, err := q.x.cfg.Conn.ChanSubscribe(q.x.cfg.Conn.NewInbox(), in)
		if err != nil {
			q.x.log.Error("the queue does not deliver", "err", err)
			return
		}
		defer sub.Unsubscribe()
		q.pulls.list = append(q.pulls.list, &pull{sub: sub})
	}
	working := map[*delivery]bool{}
	ended := make(chan *delivery, queueWorkers)
	take := func(m *nats.Msg) {
		d, err := readDelivery(m)
		switch {
		case err != nil:
			q.x.log.Warn("the queue delivers what is no delivery", "subject", m.Subject, "err", err)
		case len(working) >= queueWorkers || !q.x.begin(nil):
			q.tell(d, "-NAK") // handed back at once
		default:
			working[d] = true
			q.pulls.roomless.Add(1)
			go func() {
				defer q.x.work.Done()
				defer func() { ended <- d }()
				q.deliver(d)
			}()
		}
	}
	tick := time.NewTicker(queueTick)
	defer tick.Stop()
	stop := q.x.stopping.Done()
	stopped := false
	for !stopped || q.pulls.asked > 0 || len(working) > 0 {
		if !stopped {
			q.ask(len(working))
		}
		select {
		case m := <-in:
			if q.arrived(m) {
				take(m)
			}
		case d := <-ended:
			delete(working, d)
		case now := <-tick.C:
			q.expire(now)
			q.keepAlive(now, working)
		case <-stop:
			stopped, stop = true, nil
		}
	}
}

// ask asks for as many deliveries as there is room for: among the workers, and
// among the calls of this executor. What may still come has its room already.
func (q *queueDoor) ask(working int) {
	p := &q.pulls
	n := queueWorkers - working - p.asked
	n = min(n, cap(q.x.calls)-len(q.x.calls)-int(p.roomless.Load())-p.asked)
	now := time.Now()
	i := slices.IndexFunc(p.list, func(l *pull) bool { return l.open == 0 })
	if n <= 0 || i < 0 || now.Before(p.after) {
		return
	}
	body := `{"batch":` + strconv.Itoa(n) + `,"expires":` + strconv.FormatInt(int64(pullWait), 10) + `}`
	if err := q.x.cfg.Conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+StreamQueue+"."+consumer, p.list[i].sub.Subject, []byte(body)); err != nil {
		p.after = now.Add(pullPause)
		return
	}
	p.list[i].open, p.list[i].ends = n, now.Add(pullWait+pullLost)
	p.asked += n
}

// arrived reports whether a message is a delivery. Anything else is the end of
// a request: a delivery says where it is acknowledged, whatever its headers say.
func (q *queueDoor) arrived(m *nats.Msg) bool {
	i := slices.IndexFunc(q.pulls.list, func(p *pull) bool { return p.sub == m.Sub })
	p := q.pulls.list[i] // there are no others on this channel
	if m.Reply != "" {
		if p.open > 0 {
			p.open--
			q.pulls.asked--
		}
		return true
	}
	switch m.Header.Get("Status") {
	case "100": // it lives
		return false
	case "408", "404": // nothing more came in time
	default: // the consumer is gone, or the server is going
		q.pulls.after = time.Now().Add(pullPause)
		q.lookNow()
	}
	q.end(p)
	return false
}

func (q *queueDoor) end(p *pull) {
	q.pulls.asked -= p.open
	p.open = 0
}

// expire gives up the requests that nobody answers.
func (q *queueDoor) expire(now time.Time) {
	for _, p := range q.pulls.list {
		if p.open > 0 && now.After(p.ends) {
			q.end(p)
			q.lookNow()
		}
	}
}

// keepAlive tells the server of the deliveries that are being worked on.
func (q *queueDoor) keepAlive(now time.Time, working map[*delivery]bool) {
	every := time.Duration(q.ackWait.Load()) / 3
	for d := range working {
		if now.Sub(d.alive) >= every {
			d.alive = now
			q.tell(d, "+WPI") // if it does not arrive, the call is delivered again and joins
		}
	}
}

// shares keep one session from taking all workers: its calls may be slow, or the
// process that holds it may stand still.
type shares struct {
	room int // deliveries of one session that are worked on at a time
	mu   sync.Mutex
	of   map[string]*share
}

type share struct {
	slots chan struct{}
	users int // that have a slot, or wait for one
}

// crowded is how long a delivery waits for its session's other ones before it
// makes room for those of others.
const crowded = 50 * time.Millisecond

// take takes a slot of the session, if there is one soon.
func (s *shares) take(session string, stop <-chan struct{}) (leave func(), ok bool) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*share{}
	}
	h := s.of[session]
	if h == nil {
		h = &share{slots: make(chan struct{}, s.room)}
		s.of[session] = h
	}
	h.users++
	s.mu.Unlock()
	left := func() {
		s.mu.Lock()
		if h.users--; h.users == 0 {
			delete(s.of, session)
		}
		s.mu.Unlock()
	}
	select {
	case h.slots <- struct{}{}:
		return func() { <-h.slots; left() }, true
	default:
	}
	t := time.NewTimer(crowded)
	defer t.Stop()
	select {
	case h.slots <- struct{}{}:
		return func() { <-h.slots; left() }, true
	case <-t.C:
	case <-stop:
	}
	left()
	return nil, false
}

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
