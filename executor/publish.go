package executor

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"steno/journal"
	"steno/schema"
)

// publish tells everybody about a durable event.
func (s *session) publish(r journal.Record) {
	if r.Type == schema.TypeWriterOpened && s.journal != nil {
		s.x.log.Warn("a write failed; the session goes on in the next epoch", "session", s.id, "epoch", r.Epoch)
	}
	s.x.post(outgoing{session: s, typ: r.Type, seq: r.Seq, line: r.Line})
}

// An outgoing is an answer, or an event that is durable.
type outgoing struct {
	msg     *nats.Msg // nil for an event
	session *session
	typ     string
	seq     uint64
	line    []byte
}

// maxOutgoing is how many of them may be on their way, and maxLoad how many bytes,
// or one that has more alone; who has more waits.
const (
	maxOutgoing = 4096
	maxLoad     = 16 << 20
)

func (o *outgoing) bytes() int64 {
	if o.msg != nil {
		return int64(o.msg.Size())
	}
	return int64(len(o.line))
}

// A load counts the bytes that are on their way.
type load struct {
	bytes   atomic.Int64
	waiting atomic.Int64 // who waits for less
	mu      sync.Mutex
	less    sync.Cond
}

// add waits until there is room for n bytes, and takes it.
func (l *load) add(n int64) {
	if l.fits(n) {
		return
	}
	l.waiting.Add(1) // before it looks again: who takes something off looks for it afterwards
	defer l.waiting.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.fits(n) {
		l.less.Wait()
	}
}

func (l *load) fits(n int64) bool {
	for {
		now := l.bytes.Load()
		if now > 0 && now+n > maxLoad {
			return false
		}
		if l.bytes.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

func (l *load) remove(n int64) {
	l.bytes.Add(-n)
	if l.waiting.Load() > 0 {
		l.mu.Lock()
		l.less.Broadcast()
		l.mu.Unlock()
	}
}

// post has something sent. Behind the end of a drain it sends itself.
func (x *Executor) post(o outgoing) {
	x.herald.Do(func() { go x.proclaim() })
	x.load.add(o.bytes())
	select {
	case x.outgoing <- o:
	case <-x.hushed:
		x.emit(o)
	}
	select {
	case <-x.hushed:
		x.rest() // nobody else may look there any more
	default:
	}
}

// proclaim sends what is outgoing, in the order in which it comes. The connection
// has one lock, which hundreds of calls would wait for in turn.
func (x *Executor) proclaim() {
	const each, long, row, pause = 200 * time.Microsecond, time.Millisecond, 4, 32
	vain, alone := 0, time.Time{}
	for {
		select {
		case o := <-x.outgoing:
			if began := time.Now(); began.After(alone) { // what others are about to send goes out with it, in one piece
				runtime.Gosched()
				now := time.Now()
				lost := now.Sub(began) - time.Duration(len(x.outgoing))*each
				if lost < long {
					vain = 0
				} else if vain++; vain >= row {
					alone = now.Add(pause * lost) // somebody computes, and nobody was about to
				}
			}
			x.emit(o)
			x.rest()
			continue
		case <-x.hush:
		}
		x.rest()
		close(x.hushed)
		x.rest()
		return
	}
}

// rest sends what is there.
func (x *Executor) rest() {
	for {
		select {
		case o := <-x.outgoing:
			x.emit(o)
		default:
			return
		}
	}
}

// emit sends what was posted.
func (x *Executor) emit(o outgoing) {
	defer x.load.remove(o.bytes())
	if o.msg != nil {
		x.send(o.msg)
	} else {
		x.announce(o)
	}
}

// announce sends an event.
func (x *Executor) announce(o outgoing) {
	if err := x.cfg.Conn.Publish(o.session.subject+o.typ, o.line); err != nil {
		// The log is the truth and events are hints; nothing is lost with one.
		x.log.Warn("an event was not published", "session", o.session.id, "seq", o.seq, "err", err)
	}
}

// tellAll returns once all is sent that was outgoing before.
func (x *Executor) tellAll() {
	x.herald.Do(func() { close(x.hushed) })
	select {
	case <-x.hush:
	default:
		close(x.hush)
	}
	select {
	case <-x.hushed:
	case <-time.After(2 * time.Second): // a server that takes nothing
	}
}
