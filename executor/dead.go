package executor

import (
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"steno/executor/redact"
	"steno/journal"
	"steno/schema"
)

// Headers of what is kept in STENO_DEAD, beside its kind and its call.
const (
	headerError      = "Steno-Error"
	headerDeliveries = "Steno-Deliveries"
	headerBytes      = "Steno-Bytes"    // of the whole message, where its end is missing
	headerRedacted   = "Steno-Redacted" // what is secret in it is missing
)

// parkedToken ends the subject of what is parked.
const parkedToken = ".parked"

// A letter is a message that the queue is to forget, and why.
type letter struct {
	session    string // the last token of its subject, whatever that is
	seq        uint64 // in the queue
	queued     time.Time
	deliveries uint64
	data       []byte
	why        error
	parked     bool // it is kept as it came, to be queued again
}

func letterOf(d *delivery, why error, parked bool) *letter {
	return &letter{d.session, d.seq, d.queued, d.delivered, d.msg.Data, why, parked}
}

// id is one that an event about a message always gets, however often it is written.
func (q *queueDoor) id(of string, seq uint64, at time.Time) string {
	sum := sha256.Sum256([]byte(q.x.cfg.Store.ID() + " " + of + strconv.FormatUint(seq, 10)))
	var id ulid.ULID
	if id.SetTime(ulid.Timestamp(at)) != nil { // beyond the year 10889
		return journal.NewID().String()
	}
	_ = id.SetEntropy(sum[:10]) // it has its length
	return id.String()
}

// callOf is the id of the call that a message is about, "" where it says none.
func callOf(data []byte) string {
	var call struct {
		CallID string `json:"call_id"`
	}
	if schema.Unmarshal(data, &call) != nil || schema.CheckCallID(call.CallID) != nil {
		return ""
	}
	return call.CallID
}

// idOf is the id of a call that was queued, where there is nothing secret in it.
func (q *queueDoor) idOf(data []byte) string {
	id := callOf(data)
	if _, marks := q.x.redact.Text(id, "", nil); len(marks) > 0 {
		return ""
	}
	return id
}

// record writes a dead letter into the log of its session, where there is one
// that can be written. A delivery that comes again has the same id, so it is
// written once.
func (q *queueDoor) record(l *letter) {
	var o schema.Object
	if id := q.idOf(l.data); id != "" {
		o.Text("call_id", id)
	}
	text, marks := q.x.redact.Text(string(l.data), "/message", nil)
	text, _ = schema.Truncate(text, maxDeadMessage)
	o.Text("reason", string(schema.KindOf(l.why))).Uint("deliveries", l.deliveries).Text("message", text)
	if len(marks) > 0 {
		o.Raw("redacted", redact.AppendMarks(nil, marks))
	}
	if err := q.note(l.session, q.id("", l.seq, l.queued), schema.TypeDeadLetter, o.Bytes()); err != nil && schema.ValidSession(l.session) && !errors.Is(err, schema.NotFound) {
		q.x.log.Warn("a dead letter is not in the log of its session", "session", l.session, "kind", schema.KindOf(err), "err", err)
	}
}

// note records one event about a message, wherever its session is held.
func (q *queueDoor) note(session, id, typ string, data []byte) error {
	b, err := encode(AppendRequest{Session: session, Events: []AppendEvent{{ID: id, Type: typ, Data: data}}})
	if err == nil {
		_, err = q.x.route(q.x.ctx, deadVerb, session, b, 0, false)
	}
	return err
}

// maxDeadMessage bounds what a log keeps of a dead letter.
const maxDeadMessage = 4 << 10

// headRoom is what the headers of a dead letter may need of a message.
const headRoom = 8 << 10

// bury keeps a message that can never work, with its reason, before the queue
// forgets it. One that is as long as a message can be loses its end, since its
// reason needs room, and one that is dead what is secret in it. One that is only
// parked is kept as it came, so that it can be queued again. The same one is kept
// once, if it comes again soon.
func (q *queueDoor) bury(l *letter) error {
	session := l.session
	if !schema.ValidSession(session) {
		session = "_"
	}
	data := l.data
	kind := schema.KindOf(l.why)
	reason, _ := q.x.redact.Text(schema.AsError(l.why).Message, "", nil)
	header := nats.Header{HeaderErrorKind: {string(kind)}, headerError: {shorten(reason, 1<<10)}, headerDeliveries: {strconv.FormatUint(l.deliveries, 10)},
		nats.MsgIdHdr: {strconv.FormatUint(l.seq, 10) + "-" + strconv.FormatInt(l.queued.UnixNano(), 10)}}
	if id := q.idOf(data); id != "" {
		header.Set(HeaderCall, id)
	}
	subject := q.x.cfg.Prefix + ".v1.dead." + session
	if l.parked {
		subject += parkedToken
	} else {
		var marks []redact.Mark
		if data, marks = q.x.redact.JSON(data, "", nil); len(marks) > 0 {
			header.Set(headerRedacted, "true")
		}
	}
	if most := int(q.x.cfg.Conn.MaxPayload()) - headRoom; len(data) > most {
		header.Set(headerBytes, strconv.Itoa(len(data)))
		data = data[:most]
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookWait)
	defer cancel()
	_, err := q.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data, Header: header})
	return err
}

// A DeadLetter is a message that the queue has given up, in short.
type DeadLetter struct {
	Seq     uint64 `json:"seq"` // in STENO_DEAD
	Session string `json:"session"`
	CallID  string `json:"call_id,omitzero"`
	// Parked says that it might work later; otherwise it cannot ever.
	Parked     bool        `json:"parked"`
	Kind       schema.Kind `json:"kind"`
	Message    string      `json:"message"`
	Deliveries uint64      `json:"deliveries"`
	Bytes      int         `json:"bytes"`
	At         time.Time   `json:"at"`
	// Cannot says why it cannot be queued again; empty if it can.
	Cannot string `json:"cannot,omitzero"`
}

// maxLetterMessage bounds the message of a letter in a list.
const maxLetterMessage = 300

// readLetter sums up a message of STENO_DEAD.
func readLetter(m *jetstream.RawStreamMsg) DeadLetter {
	subject, parked := strings.CutSuffix(m.Subject, parkedToken)
	l := DeadLetter{Seq: m.Sequence, Session: lastToken(subject), Parked: parked, CallID: m.Header.Get(HeaderCall), Kind: schema.Kind(m.Header.Get(HeaderErrorKind)),
		Message: shorten(m.Header.Get(headerError), maxLetterMessage), Bytes: len(m.Data), At: m.Time.UTC()}
	l.Deliveries, _ = strconv.ParseUint(m.Header.Get(headerDeliveries), 10, 64) // it is ours
	if schema.CheckCallID(l.CallID) != nil {
		l.CallID = callOf(m.Data)
	}
	switch {
	case m.Header.Get(headerBytes) != "":
		l.Cannot = "its end is missing"
		l.Bytes, _ = strconv.Atoi(m.Header.Get(headerBytes))
	case m.Header.Get(headerRedacted) != "":
		l.Cannot = "what is secret in it is missing"
	case !schema.ValidSession(l.Session):
		l.Cannot = "it names no session"
	}
	return l
}

// DeadRequest asks for messages that the queue has given up, in the order in
// which it did. The zero value asks for all.
type DeadRequest struct {
	Session string `json:"session,omitzero"`
	CallID  string `json:"call_id,omitzero"`
	Kind    string `json:"kind,omitzero"`   // of the error
	Parked  bool   `json:"parked,omitzero"` // only those that might work later
	After   uint64 `json:"after,omitzero"`  // the seq of the last one that is known
	Limit   int    `json:"limit,omitzero"`  // 100 if zero; 500 at most
}

// DeadAnswer is one page of them.
type DeadAnswer struct {
	OK      bool         `json:"ok"`
	Letters []DeadLetter `json:"letters"`
	More    bool         `json:"more"`
}

// RequeueRequest sends such messages back into the queue.
type RequeueRequest struct {
	DeadRequest
	By     string `json:"by"`
	Reason string `json:"reason,omitzero"`
	DryRun bool   `json:"dry_run,omitzero"` // only say which
}

// RequeueAnswer says of each message that was asked for what became of it: Cannot
// says why it is left.
type RequeueAnswer struct {
	OK       bool         `json:"ok"`
	Letters  []DeadLetter `json:"letters"`
	Requeued int          `json:"requeued"`
	More     bool         `json:"more"` // go on after the last one
}

const maxDeadPage = 500

func (r *DeadRequest) check() error {
	switch {
	case r.Limit < 0 || r.Limit > maxDeadPage:
		return schema.Errorf(schema.InvalidArgs, "limit must be 1 to %d", maxDeadPage)
	case r.Session != "" && schema.CheckSession(r.Session) != nil:
		return schema.CheckSession(r.Session)
	case r.CallID != "" && schema.CheckCallID(r.CallID) != nil:
		return schema.CheckCallID(r.CallID)
	case r.Kind != "" && !schema.Kind(r.Kind).Known():
		return schema.Errorf(schema.InvalidArgs, "there is no kind %s", quoted(r.Kind)).With("next", "see the kinds in schema/KINDS.md, and those that are there: steno calls dead")
	}
	if r.Limit == 0 {
		r.Limit = 100
	}
	return nil
}

// letters gives each message that is asked for to see, until that says no. more
// says that there are others.
func (q *queueDoor) letters(ctx context.Context, r *DeadRequest, see func(*jetstream.RawStreamMsg, DeadLetter) bool) (more bool, err error) {
	s, err := q.js.Stream(ctx, StreamDead)
	if err != nil {
		return false, unavailable("what is dead or parked cannot be read", err)
	}
	of := []string{q.x.cfg.Prefix + ".v1.dead.>"}
	if r.Parked {
		of = []string{q.x.cfg.Prefix + ".v1.dead.*" + parkedToken}
	}
	if r.Session != "" {
		parked := q.x.cfg.Prefix + ".v1.dead." + r.Session + parkedToken
		if of = []string{parked}; !r.Parked {
			of = append(of, strings.TrimSuffix(parked, parkedToken))
		}
	}
	next := make([]*jetstream.RawStreamMsg, len(of)) // the first of each subject that is not seen
	after := r.After
	load := func(i int, from uint64) error {
		m, err := s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(of[i]))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			m, err = nil, nil
		}
		next[i] = m
		return err
	}
	for i := range of {
		if err := load(i, after+1); err != nil {
			return false, unavailable("what is dead or parked cannot be read", err)
		}
	}
	for n := 0; ; {
		first := -1
		for i, m := range next {
			if m != nil && (first < 0 || m.Sequence < next[first].Sequence) {
				first = i
			}
		}
		if first < 0 {
			return false, nil
		}
		m := next[first]
		l := readLetter(m)
		if (r.Kind == "" || string(l.Kind) == r.Kind) && (r.CallID == "" || l.CallID == r.CallID) {
			if n == r.Limit {
				return true, nil
			}
			if n++; !see(m, l) {
				return true, nil
			}
		}
		if err := load(first, m.Sequence+1); err != nil {
			return false, unavailable("what is dead or parked cannot be read", err)
		}
	}
}

// requeue sends one message back. That it was is recorded first, by whom and why;
// then it is published, and removed once that is confirmed. Whatever stops this in
// between, the same call is in the queue once more at most, and the journal runs
// it once.
func (q *queueDoor) requeue(ctx context.Context, m *jetstream.RawStreamMsg, l DeadLetter, by, reason string) error {
	var o schema.Object
	if l.CallID != "" {
		o.Text("call_id", l.CallID)
	}
	o.Text("text", "a message that the queue had given up is queued again").Text("kind", string(l.Kind)).Text("by", by)
	if reason != "" {
		o.Text("reason", reason)
	}
	if err := q.note(l.Session, q.id("requeued ", m.Sequence, m.Time), schema.TypeNote, o.Bytes()); err != nil {
		return err // it could not be recorded either
	}
	if err := enqueue(ctx, q.js, q.x.cfg.Prefix, l.Session, m.Data); err != nil {
		return err
	}
	s, err := q.js.Stream(ctx, StreamDead)
	if err == nil {
		err = remove(ctx, s, m.Sequence)
	}
	if err != nil {
		return unavailable("it is queued again, and stays in "+StreamDead+" too", err)
	}
	return nil
}

// remove removes a message, if nobody else has.
func remove(ctx context.Context, s jetstream.Stream, seq uint64) error {
	err := s.DeleteMsg(ctx, seq)
	if err == nil {
		return nil
	}
	if _, gone := s.GetMsg(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// givenUp is the error for a call that is not recorded, and that nobody will
// record as things are: the queue has given it up. Otherwise that is err.
func (x *Executor) givenUp(ctx context.Context, session, callID string, err error) error {
	q, e := x.queue()
	if e != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	_, e = q.letters(ctx, &DeadRequest{Session: session, CallID: callID, Limit: 1}, func(_ *jetstream.RawStreamMsg, l DeadLetter) bool {
		state, next := "dead", "mend the message and publish it again"
		if l.Parked {
			state, next = "parked", "mend what it says, then run: steno calls requeue "+session+" "+callID
		}
		err = schema.Errorf(l.Kind, "call %s was queued and is %s: %s", callID, state, l.Message).With("session", session).With("call_id", callID).
			With("given_up", state).With("next", next)
		return false
	})
	if e != nil && !errors.Is(e, schema.Unavailable) { // there is no queue here
		return e
	}
	return err
}
