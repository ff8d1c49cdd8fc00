package executor

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"steno/journal"
	"steno/schema"
)

// A Client speaks to executors. It may be used from many goroutines.
//
// A request without an answer is repeated until its context ends, or nobody has
// been there to take it for 30 seconds; that is safe, since every verb is
// idempotent: a call by its id, an append by the ids of its events, which the
// client gives to those that have none.
//
// From its first request on it keeps one subscription on its connection.
type Client struct {
	conn    *nats.Conn
	prefix  string
	answers inboxes
	// Set by NewClient and by tests only.
	patience time.Duration
}

// NewClient makes a client of the executors behind prefix, "steno" if empty.
func NewClient(conn *nats.Conn, subjectPrefix string) (*Client, error) {
	p, err := prefix(subjectPrefix)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, prefix: p, answers: inboxes{conn: conn}, patience: Patience}, nil
}

// Open makes a session, or finds one that is there.
func (c *Client) Open(ctx context.Context, req OpenRequest) (a OpenAnswer, err error) {
	if req.Session == "" {
		req.Session = journal.NewID().String() // so that a repeat does not make another
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
			req.Events[i].ID = journal.NewID().String()
		}
	}
	return a, c.ask(ctx, "session.append", req, &a)
}

// End ends a session.
func (c *Client) End(ctx context.Context, req EndRequest) (a EndAnswer, err error) {
	return a, c.ask(ctx, "session.end", req, &a)
}

// Tools lists the tools that a session admits now.
func (c *Client) Tools(ctx context.Context, req ToolsRequest) (a ToolsAnswer, err error) {
	return a, c.ask(ctx, "session.tools", req, &a)
}

// Approvals lists what waits for a person.
func (c *Client) Approvals(ctx context.Context, req ApprovalsRequest) (a ApprovalsAnswer, err error) {
	return a, c.ask(ctx, "approval.list", req, &a)
}

// Answer says what a person has decided about a call. NotFound: there is no such
// question, or it is about another call. ApprovalExpired: it came too late.
// ApprovalDenied, CallConflict: another answer came first.
func (c *Client) Answer(ctx context.Context, req AnswerRequest) (a AnswerAnswer, err error) {
	return a, c.ask(ctx, "approval.answer", req, &a)
}

// Phase moves a session to another phase.
func (c *Client) Phase(ctx context.Context, req PhaseRequest) (a PhaseAnswer, err error) {
	return a, c.ask(ctx, "session.phase", req, &a)
}

// Posture changes the mode of the policy that a session goes by.
// ResumePolicyUnavailable: the policy's rules, which stay, cannot be had.
func (c *Client) Posture(ctx context.Context, req PostureRequest) (a PostureAnswer, err error) {
	return a, c.ask(ctx, "session.posture", req, &a)
}

// Calls lists calls of a session, from its log.
func (c *Client) Calls(ctx context.Context, req CallsRequest) (a CallsAnswer, err error) {
	return a, c.ask(ctx, "calls.list", req, &a)
}

// LookAtCall gives what is recorded of a call. NotFound: there is none.
func (c *Client) LookAtCall(ctx context.Context, req CallRequest) (a CallAnswer, err error) {
	return a, c.ask(ctx, "calls.get", req, &a)
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
	b, err := req.encode()
	if err != nil {
		return Answer{}, err
	}
	return c.outcome(ctx, "call."+session, req.CallID, b)
}

// Wait returns the result of a call once it is recorded. The call need not be
// there yet: it may lie in the queue; one that the queue has given up is the error
// of that, with given_up in its details. A session that nobody holds is taken, and
// what a dead process left of it is settled.
func (c *Client) Wait(ctx context.Context, session, callID string) (Answer, error) {
	b, err := encode(map[string]string{"session": session, "call_id": callID})
	if err != nil {
		return Answer{}, err
	}
	for pause := repeatSoon; ; pause = min(2*pause, repeatAfter) {
		a, err := c.outcome(ctx, "calls.wait", callID, b)
		if err == nil {
			return a, nil
		}
		if e := schema.AsError(err); e.Details["call_id"] != callID || e.Kind != schema.NotFound && e.Kind != schema.Backpressure || e.Details["given_up"] != nil {
			return a, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Answer{}, schema.Errorf(schema.KindOf(ctx.Err()), "call %s has no result yet", callID).With("session", session).With("call_id", callID).Cause(err)
		}
	}
}

// Cancel stops a call and returns the result that is recorded of it then: kind
// cancelled, or what the tool had done by that time. A call that has a result
// keeps it. NotFound: the call is neither recorded nor on its way.
func (c *Client) Cancel(ctx context.Context, req CancelRequest) (Answer, error) {
	b, err := encode(req)
	if err != nil {
		return Answer{}, err
	}
	return c.outcome(ctx, "calls.cancel", req.CallID, b)
}

// Resolve settles what became of a call whose outcome is open, and returns the
// result that is recorded for it. ResultConflict: there is nothing to settle,
// since the call has a genuine result, or none yet.
func (c *Client) Resolve(ctx context.Context, req ResolveRequest) (Answer, error) {
	b, err := encode(req)
	if err != nil {
		return Answer{}, err
	}
	return c.outcome(ctx, "calls.resolve", req.CallID, b)
}

// outcome asks for something that is answered with the result of a call.
func (c *Client) outcome(ctx context.Context, verb, call string, payload []byte) (Answer, error) {
	m, err := c.request(ctx, verb, payload)
	if err != nil {
		return Answer{}, err
	}
	head, err := schema.ParseHead(m.Header.Get(HeaderHead))
	return Answer{call, m.Data, head}, err
}

// encode gives what encode makes of a request, without its detours where the
// request is plain: arguments that are a compact object, and no other JSON.
func (r *Request) encode() ([]byte, error) {
	f := spare.Get().(*schema.Fields)
	plain := f.Read(r.Args) && r.Context == nil && r.Turn == nil && utf8.ValidString(r.CallID+r.Name+r.Key+r.Actor.ID+r.Actor.Via)
	f.Read(nil)
	spare.Put(f)
	if !plain {
		return encode(r)
	}
	var o schema.Object
	o.Grow(len(r.CallID)+len(r.Name)+len(r.Args)+len(r.Key)+64).Text("call_id", r.CallID).Text("name", r.Name).Raw("args", r.Args)
	if r.Key != "" {
		o.Text("key", r.Key)
	}
	if r.DryRun {
		o.Bool("dry_run", true)
	}
	if r.Actor != (Actor{}) {
		var who schema.Object
		if who.Text("id", r.Actor.ID); r.Actor.Via != "" {
			who.Text("via", r.Actor.Via)
		}
		o.Raw("actor", who.Bytes())
	}
	return o.Bytes(), nil
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

// forbidden reports whether the server has said that this client may not ask that, or
// not hear the answers. It says so to the connection, and not to the request.
func (c *Client) forbidden(subject string) bool {
	err := c.conn.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	c.answers.mu.Lock()
	defer c.answers.mu.Unlock()
	return strings.Contains(err.Error(), `"`+subject+`"`) || strings.Contains(err.Error(), `"`+c.answers.prefix)
}

// inboxes get the answers to the requests of one connection. They share a
// subscription: one for each request would have the server look for everybody's
// subscriptions anew after each.
type inboxes struct {
	conn *nats.Conn

	mu     sync.Mutex // guards the rest
	prefix string     // of their subjects; "" until the first is opened
	made   uint64     // how many there have been
	open   map[string]*inbox
	idle   []*inbox // closed and empty
}

// An inbox gets the answers to a request, which may be repeated.
type inbox struct {
	subject string
	of      *inboxes
	answers chan *nats.Msg
	quiet   *time.Timer // of the wait for the next answer
}

// newInbox makes room for as many answers at a time; more are lost.
func (of *inboxes) newInbox(room int) (*inbox, error) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.prefix == "" {
		p := of.conn.NewInbox() + "."
		if _, err := of.conn.Subscribe(p+"*", of.deliver); err != nil {
			return nil, unavailable("the broker does not take a subscription", err)
		}
		of.prefix, of.open = p, map[string]*inbox{}
	}
	of.made++
	var in *inbox
	if n := len(of.idle); n > 0 && cap(of.idle[n-1].answers) >= room {
		in, of.idle = of.idle[n-1], of.idle[:n-1]
	} else {
		in = &inbox{of: of, answers: make(chan *nats.Msg, room)}
	}
	in.subject = of.prefix + strconv.FormatUint(of.made, 36) // no late answer to another request gets here
	of.open[in.subject] = in
	return in, nil
}

func (of *inboxes) deliver(m *nats.Msg) {
	of.mu.Lock()
	defer of.mu.Unlock() // what is closed gets nothing more
	if in := of.open[m.Subject]; in != nil && in.takes(m) {
		select {
		case in.answers <- m:
		default:
		}
	}
}

// errQuiet says that no answer came in time.
var errQuiet = errors.New("no answer in time")

// next waits for the next answer: nats.ErrNoResponders if nobody listens.
func (in *inbox) next(ctx context.Context, patience time.Duration) (*nats.Msg, error) {
	if in.quiet == nil {
		in.quiet = time.NewTimer(patience)
	} else {
		in.quiet.Reset(patience)
	}
	select {
	case m := <-in.answers:
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		return m, nil
	case <-in.quiet.C:
		return nil, errQuiet
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (in *inbox) close() {
	if in.quiet != nil {
		in.quiet.Stop()
	}
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	delete(in.of.open, in.subject)
	for len(in.answers) > 0 {
		<-in.answers
	}
	if len(in.of.idle) < maxIdle {
		in.of.idle = append(in.of.idle, in)
	}
}

// Repeats of a request: while no answer comes, while nobody serves, and after
// an executor that is going away has said so.
const (
	repeatAfter = 2 * time.Second
	repeatSoon  = 100 * time.Millisecond
)

// maxAnswers is how many answers to one request may wait to be looked at,
// maxIdle how many inboxes are kept for the requests to come.
const (
	maxAnswers = 8
	maxIdle    = 256
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
	in, err := c.answers.newInbox(maxAnswers)
	if err != nil {
		return nil, err
	}
	defer in.close()
	subject := c.prefix + ".v1." + verb
	var refused error   // why the request before was not taken
	var alone time.Time // since when nobody is there; zero if somebody may be
	for {
		asked := time.Now()
		if err := c.conn.PublishRequest(subject, in.subject, payload); err != nil {
			return nil, unavailable("the request cannot be sent", err)
		}
		m, err := in.next(ctx, repeatAfter)
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
		case c.forbidden(subject):
			return nil, schema.Errorf(schema.NotAuthenticated, "the credentials of this connection do not allow %s, or its answers", verb).
				With("next", "use other credentials; with nats/agent.json connect with nats.CustomInboxPrefix(\"_INBOX_AGENT\"), and have somebody else open the sessions").Cause(c.conn.LastError())
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
