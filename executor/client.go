package executor

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/schema"
)

// A Client speaks to executors. It may be used from many goroutines.
//
// A request without an answer is repeated until its context ends, or nobody has
// been there to take it for 30 seconds; that is safe, since every verb is
// idempotent: a call by its id, an append by the ids of its events, which the
// client gives to those that have none.
type Client struct {
	conn   *nats.Conn
	prefix string
	// Set by NewClient and by tests only.
	patience time.Duration
}

// NewClient makes a client of the executors behind prefix, "steno" if empty.
func NewClient(conn *nats.Conn, subjectPrefix string) (*Client, error) {
	p, err := prefix(subjectPrefix)
	if err != nil {
		return nil, err
	}
	return &Client{conn, p, Patience}, nil
}

// Open makes a session, or finds one that is there.
func (c *Client) Open(ctx context.Context, req OpenRequest) (a OpenAnswer, err error) {
	if req.Session == "" {
		req.Session = newID().String() // so that a repeat does not make another
	}
	return a, c.ask(ctx, "session.open", req, &a)
}

// Get sums up a session.
func (c *Client) Get(ctx context.Context, session string) (a GetAnswer, err error) {
	return a, c.ask(ctx, "session.get", map[string]string{"session": session}, &a)
}

// List gives one page of sessions.
func (c *Client) List(ctx context.Context, req ListRequest) (a ListAnswer, err error) {
	return a, c.ask(ctx, "session.list", req, &a)
}

// Append records events of an agent, all or none.
func (c *Client) Append(ctx context.Context, session string, events ...AppendEvent) (a AppendAnswer, err error) {
	req := AppendRequest{Session: session, Events: append([]AppendEvent(nil), events...)}
	for i := range req.Events {
		if req.Events[i].ID == "" {
			req.Events[i].ID = newID().String()
		}
	}
	return a, c.ask(ctx, "session.append", req, &a)
}

// End ends a session.
func (c *Client) End(ctx context.Context, req EndRequest) (a EndAnswer, err error) {
	return a, c.ask(ctx, "session.end", req, &a)
}

// Release asks a holder to let go of a session, and returns once it has, so
// that the next writer gets it. Unavailable: the holder is not there, or does
// not listen on this server. Backpressure: calls of the session are on their
// way. SessionWriterLost: that holder does not hold it.
func (c *Client) Release(ctx context.Context, holder string, req ReleaseRequest) (a ReleaseAnswer, err error) {
	if err := schema.CheckSession(req.Session); err != nil {
		return a, err
	}
	if !schema.ValidSession(holder) { // it would become part of a subject
		return a, schema.Errorf(schema.InvalidArgs, "the holder's id is none of ours").With("session", req.Session)
	}
	return a, c.ask(ctx, "to."+holder+".release."+req.Session, req, &a)
}

// Call runs a tool and returns its recorded result, also where the tool failed.
func (c *Client) Call(ctx context.Context, session string, req Request) (Answer, error) {
	if err := schema.CheckSession(session); err != nil {
		return Answer{}, err // it would become part of a subject
	}
	b, err := encode(req)
	if err != nil {
		return Answer{}, err
	}
	m, err := c.request(ctx, "call."+session, b)
	if err != nil {
		return Answer{}, err
	}
	head, err := schema.ParseHead(m.Header.Get(HeaderHead))
	return Answer{req.CallID, m.Data, head}, err
}

// errNoRoom is what a server answers where a stream has reached a limit that
// its operator has set.
const errNoRoom = 10077

// Enqueue puts a call into the work queue. nil means that it is queued, as
// safely as the server syncs; its result comes as an event, or as the answer
// to the same call through Call. Backpressure: the queue is full.
func (c *Client) Enqueue(ctx context.Context, session string, req Request) error {
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	b, err := encode(req)
	if err != nil {
		return err
	}
	js, err := jetstream.New(c.conn)
	if err != nil {
		return unavailable("the queue cannot be used", err)
	}
	_, err = js.Publish(ctx, c.prefix+".v1.queue."+session, b)
	if e, ok := errors.AsType[*jetstream.APIError](err); ok && e.ErrorCode == errNoRoom {
		return schema.Errorf(schema.Backpressure, "the queue is full").With("session", session).Cause(err)
	}
	if err != nil {
		return unavailable("the call was not queued", err)
	}
	return nil
}

// encode is a request as JSON, with the values in it as they were given: what
// must be replaced in them is replaced, and counted, where they are recorded.
func encode(req any) ([]byte, error) {
	b, err := json.Marshal(req, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil, schema.Errorf(schema.InvalidArgs, "the request has no JSON form: %v", err)
	}
	return b, nil
}

func (c *Client) ask(ctx context.Context, verb string, req, answer any) error {
	b, err := encode(req)
	if err != nil {
		return err
	}
	m, err := c.request(ctx, verb, b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return schema.Errorf(schema.Internal, "the answer cannot be read").Cause(err)
	}
	return nil
}

// An inbox gets the answers to a request, which may be repeated. It is small:
// a subscription of the usual kind takes half a megabyte.
type inbox struct {
	subject string
	sub     *nats.Subscription
	answers chan *nats.Msg
}

func newInbox(conn *nats.Conn) (*inbox, error) {
	in := &inbox{subject: conn.NewRespInbox(), answers: make(chan *nats.Msg, 64)}
	var err error
	if in.sub, err = conn.ChanSubscribe(in.subject, in.answers); err != nil {
		return nil, unavailable("the broker does not take a subscription", err)
	}
	return in, nil
}

// next waits for the next answer: nats.ErrNoResponders if nobody listens.
func (in *inbox) next(ctx context.Context) (*nats.Msg, error) {
	select {
	case m := <-in.answers:
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// close ends the subscription. A connection that is closed has none.
func (in *inbox) close() { _ = in.sub.Unsubscribe() }

// Repeats of a request: while no answer comes, while nobody serves, and after
// an executor that is going away has said so.
const (
	repeatAfter = 2 * time.Second
	repeatSoon  = 100 * time.Millisecond
)

// Patience is how long a request waits while there is no connection, or no
// executor on the server.
const Patience = 30 * time.Second

// request asks until there is an answer, ctx ends, or nobody has been there for
// too long. Its error then says what was known last: Unavailable if nobody
// served, Timeout or Cancelled if somebody may be at work.
func (c *Client) request(ctx context.Context, verb string, payload []byte) (*nats.Msg, error) {
	if int64(len(payload)) > c.conn.MaxPayload() {
		return nil, schema.Errorf(schema.PayloadTooLarge, "the request has %d bytes; the server takes %d", len(payload), c.conn.MaxPayload())
	}
	in, err := newInbox(c.conn)
	if err != nil {
		return nil, err
	}
	defer in.close()
	var refused error   // why the request before was not taken
	var alone time.Time // since when nobody is there; zero if somebody may be
	for {
		asked := time.Now()
		if err := c.conn.PublishRequest(c.prefix+".v1."+verb, in.subject, payload); err != nil {
			return nil, unavailable("the request cannot be sent", err)
		}
		wait, cancel := context.WithTimeout(ctx, repeatAfter)
		m, err := in.next(wait)
		cancel()
		if !errors.Is(err, nats.ErrNoResponders) && (err == nil || c.conn.IsConnected()) {
			alone = time.Time{}
		} else if alone.IsZero() {
			alone = asked
		} else if time.Since(alone) >= c.patience && ctx.Err() == nil {
			return nil, schema.Errorf(schema.Unavailable, "nobody has been there to answer for %s; what was asked for may have been recorded", c.patience)
		}
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			err = schema.Errorf(schema.Unavailable, "no executor answers")
		case err == nil && m.Header.Get(HeaderErrorKind) == "":
			return m, nil
		case err == nil:
			if err = schema.ParseEnvelope(m.Data); err == nil {
				err = schema.Errorf(schema.Internal, "the answer cannot be read")
			}
			if !errors.Is(err, schema.Unavailable) {
				return nil, err
			}
		case ctx.Err() != nil:
			if refused != nil && time.Since(asked) < repeatSoon { // there was no time for another answer
				return nil, schema.AsError(refused).Cause(ctx.Err())
			}
			return nil, schema.Errorf(schema.KindOf(ctx.Err()), "no answer in time; what was asked for may go on").
				With("next", schema.Unavailable.Next("")).Cause(ctx.Err())
		default:
			refused = nil
			continue // no answer yet; the repeat joins the running call
		}
		refused = err
		select {
		case <-time.After(repeatSoon):
		case <-ctx.Done():
			return nil, schema.AsError(err).Cause(ctx.Err())
		}
	}
}
