package executor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A Recording answers a program that runs again as its session was answered,
// from the log alone: no tool is called and nothing is recorded. It is for one
// run, and may be used from many goroutines.
//
// A call gets the recorded result of the call with its id. A call whose id is
// not recorded is taken for the next one, by order, that has not been asked for;
// calls that were open at the same time may come in any order. What the record
// does not have, or has with another tool or other arguments, is
// ReplayDivergence, with both sides: asked, and recorded, which is what would
// have come.
type Recording struct {
	session string
	store   string
	redact  *Redactor
	state   *replay.State
	calls   []*recordedCall // in the order of their seq
	events  []recordedEvent // that an agent appended

	mu       sync.Mutex               // guards what follows, and what of the calls is asked
	named    map[string]*recordedCall // by ids that are not recorded
	noted    map[string]int           // events, by ids that are not recorded
	appended int                      // how many of the events have come again
	diverged int
}

type recordedCall struct {
	*replay.Call
	args   jsontext.Value // as recorded
	result jsontext.Value // nil if there is none
	asked  bool
}

type recordedEvent struct {
	id, typ string
	seq     uint64
	sum     schema.Sum
	data    []byte
}

// OpenRecording reads a session up to event asOf, all of it if that is 0. redact
// must have the rules with which it was recorded, as far as they changed its
// arguments. The results are kept in memory. Damage is an error.
func OpenRecording(ctx context.Context, store journal.Store, session string, asOf uint64, redact *Redactor) (*Recording, error) {
	r := &Recording{session: session, store: store.ID(), redact: redact, state: replay.New(), named: map[string]*recordedCall{}, noted: map[string]int{}}
	args, results := map[string]jsontext.Value{}, map[string]jsontext.Value{}
	scan := journal.NewScan(store, session, journal.ScanOptions{Strict: true, State: r.state})
	for it, err := range scan.Items(ctx) {
		if err != nil {
			return nil, err
		}
		e := it.Event
		if e == nil {
			continue
		}
		var d struct {
			CallID string         `json:"call_id"`
			Args   jsontext.Value `json:"args"`
		}
		switch {
		case e.Type == schema.TypeToolCall || e.Type == schema.TypeToolResult:
			if err := schema.Unmarshal(e.Data, &d); err != nil {
				return nil, err
			}
			if e.Type == schema.TypeToolCall {
				args[d.CallID] = bytes.Clone(d.Args)
			} else {
				results[d.CallID] = bytes.Clone(e.Data)
			}
		case schema.Appendable(e.Type) == nil:
			r.events = append(r.events, recordedEvent{e.ID.String(), e.Type, e.Seq, e.Sum, bytes.Clone(e.Data)})
		}
		if e.Seq == asOf {
			break
		}
	}
	if r.state.Head.Seq == 0 || r.state.Head.Seq < asOf {
		return nil, schema.Errorf(schema.NotFound, "session %s has no event %d: it ends with %d", session, asOf, r.state.Head.Seq).With("session", session)
	}
	for _, c := range r.state.Calls {
		r.calls = append(r.calls, &recordedCall{Call: c, args: args[c.ID], result: results[c.ID]})
	}
	return r, nil
}

// Diverged is how often something was asked for that the record does not have.
func (r *Recording) Diverged() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.diverged
}

// Answer gives the recorded result of a call. ReplayDivergence: the record does
// not have it. InvalidArgs and others: no door would take it.
func (r *Recording) Answer(req Request) (Answer, error) {
	b, err := req.encode()
	if err != nil {
		return Answer{}, err
	}
	return r.answer(b)
}

func (r *Recording) answer(payload []byte) (Answer, error) {
	req, err := parseRequest(payload)
	if err == nil {
		err = req.hide(r.redact)
	}
	if err != nil {
		return Answer{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, why := r.find(req)
	if why == "" && c.result == nil {
		why = "the record has the call and no result"
	}
	if why != "" {
		args, _ := r.redact.JSON(req.Args, "/args", nil)
		return Answer{}, r.diverge(why, side(req.CallID, req.Name, args), c).With("call_id", req.CallID)
	}
	c.asked = true
	data := c.result
	if req.CallID != c.ID { // the caller knows the call by another id, and may ask again
		r.named[req.CallID] = c
		if data, err = withCallID(data, req.CallID); err != nil {
			return Answer{}, err
		}
	}
	return Answer{req.CallID, data, r.state.Head}, nil
}

// find gives the call that is asked for, or why it is none. The caller holds mu.
func (r *Recording) find(req *Request) (c *recordedCall, why string) {
	for _, c := range r.calls {
		if c.ID == req.CallID || c == r.named[req.CallID] {
			if differs := req.conflict(c.Name, c.ArgsSHA256, c.Redacted, c.DryRun); differs != "" {
				return c, "the record has it with " + differs
			}
			return c, ""
		}
	}
	var first *recordedCall
	ends := ^uint64(0) // of the first one that was over before the others began
	for _, c := range r.calls {
		if c.asked || c.Seq > ends {
			continue
		}
		if first == nil {
			first = c
		}
		if req.conflict(c.Name, c.ArgsSHA256, c.Redacted, c.DryRun) == "" {
			return c, ""
		}
		if c.Result != nil {
			ends = min(ends, c.firstResult())
		}
	}
	if first == nil {
		return nil, "the record has no more calls"
	}
	return first, "the record has another call here: " + req.conflict(first.Name, first.ArgsSHA256, first.Redacted, first.DryRun)
}

func (c *recordedCall) firstResult() uint64 {
	if len(c.Superseded) > 0 {
		return c.Superseded[0]
	}
	return c.Result.Seq
}

// diverge is the error that shows both sides. The caller holds mu.
func (r *Recording) diverge(why, asked string, c *recordedCall) *schema.Error {
	r.diverged++
	e := schema.Errorf(schema.ReplayDivergence, "%s", why).With("session", r.session).With("asked", asked)
	if c != nil {
		e.With("recorded", side(c.ID, c.Name, c.args)).With("seq", c.Seq)
	}
	return e
}

func side(id, name string, args jsontext.Value) string {
	return id + " " + name + " " + shorten(string(schema.Previews(args)), 1<<10)
}

// withCallID is the data of a result under another call id.
func withCallID(data []byte, id string) ([]byte, error) {
	var f schema.Fields
	if !f.Read(data) {
		return nil, schema.Errorf(schema.Internal, "a result cannot be read")
	}
	var o schema.Object
	for i := range f.Len() {
		if key, v := f.At(i); string(key) == "call_id" {
			o.Text("call_id", id)
		} else {
			o.Raw(string(key), v)
		}
	}
	return o.Bytes(), nil
}

// Serve answers at the subjects of executors, until stop. Nothing else may serve
// behind the prefix: a call could reach it.
func (r *Recording) Serve(conn *nats.Conn, subjectPrefix string) (stop func() error, err error) {
	p, err := prefix(subjectPrefix)
	if err != nil {
		return nil, err
	}
	svc, err := micro.AddService(conn, micro.Config{Name: "steno", Version: Version, Description: "answers from the record of a session",
		Metadata: map[string]string{"store": r.store, "recording": r.session, "prefix": p}})
	if err != nil {
		return nil, unavailable("the service cannot be registered", err)
	}
	failed := func(err error) (func() error, error) {
		return nil, errors.Join(unavailable("an endpoint cannot be registered", err), svc.Stop())
	}
	for _, e := range []endpoint{{firstEndpoint, "call.*", callSchema, resultSchema, verb{}, false}, {"calls-wait", "calls.wait", waitSchema, resultSchema, verb{}, false},
		{"session-open", "session.open", openSchema, openAnswerSchema, verb{}, false}, {"session-get", "session.get", sessionSchema, getSchema, verb{}, false},
		{"session-append", "session.append", appendSchema, appendAnswerSchema, verb{}, false}, {"session-end", "session.end", endSchema, endAnswerSchema, verb{}, false}} {
		handler := micro.HandlerFunc(func(m micro.Request) { r.respond(conn, p, m.Subject(), m.Reply(), m.Data()) })
		err := svc.AddEndpoint(e.name, handler, micro.WithEndpointSubject(p+".v1."+e.subject),
			micro.WithEndpointMetadata(map[string]string{"request": e.request, "answer": e.answer, "errors": errorSchema}))
		if err != nil {
			return failed(err)
		}
	}
	// All else is a miss, and no silence.
	sub, err := conn.Subscribe(p+".v1.>", func(m *nats.Msg) {
		if !r.serves(strings.TrimPrefix(m.Subject, p+".v1.")) {
			r.respond(conn, p, m.Subject, m.Reply, m.Data)
		}
	})
	if err != nil {
		return failed(err)
	}
	return func() error { return errors.Join(sub.Unsubscribe(), svc.Stop()) }, nil
}

var recordingVerbs = []string{"calls.wait", "session.open", "session.get", "session.append", "session.end"}

func (r *Recording) serves(subject string) bool {
	session, call := strings.CutPrefix(subject, "call.")
	return call && !strings.Contains(session, ".") || slices.Contains(recordingVerbs, subject)
}

// respond answers a request, not by the methods of micro: those write what the
// service reads for its statistics.
func (r *Recording) respond(conn *nats.Conn, p, subject, to string, payload []byte) {
	if to == "" || to[0] == '$' || strings.HasPrefix(to, p+".v1.") {
		return
	}
	msg := &nats.Msg{Subject: to, Header: nats.Header{}}
	data, err := r.handle(strings.TrimPrefix(subject, p+".v1."), payload)
	if msg.Data = data; err != nil {
		msg.Data, _ = r.redact.JSON(schema.Envelope(err), "", nil)
		failure(msg, schema.AsError(err))
	}
	msg.Header.Set(HeaderSession, r.session)
	msg.Header.Set(HeaderHead, r.state.Head.String())
	_ = conn.PublishMsg(msg) // the request is repeated, or nobody waits
}

func (r *Recording) handle(verb string, payload []byte) ([]byte, error) {
	if session, ok := strings.CutPrefix(verb, "call."); ok && r.serves(verb) {
		if session != r.session {
			return nil, notFound(session)
		}
		a, err := r.answer(payload)
		return a.Data, err
	}
	if !r.serves(verb) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return nil, r.diverge("a recording answers calls, and what an agent says of its session; not "+verb, verb, nil)
	}
	session, err := sessionOf(payload)
	if err == nil && session != r.session {
		err = notFound(session)
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch verb {
	case "calls.wait":
		return r.waited(payload)
	case "session.append":
		return r.append(payload)
	case "session.end":
		return r.end(payload)
	}
	sum := summaryOf(r.session, r.state)
	if verb == "session.open" {
		return encode(OpenAnswer{OK: true, Session: r.session, Workspace: sum.Workspace, Head: sum.Head})
	}
	return encode(sum)
}

func (r *Recording) waited(payload []byte) ([]byte, error) {
	var req struct {
		Session string `json:"session"`
		CallID  string `json:"call_id"`
	}
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	for _, c := range r.calls {
		if (c.ID == req.CallID || c == r.named[req.CallID]) && c.result != nil {
			return withCallID(c.result, req.CallID)
		}
	}
	return nil, r.diverge("the record has no result of it", req.CallID, nil).With("call_id", req.CallID)
}

// append says of events that are the recorded ones where they stand.
func (r *Recording) append(payload []byte) ([]byte, error) {
	var req AppendRequest
	if _, err := door(payload, &req, levelBatch); err != nil {
		return nil, err
	}
	entries, err := req.entries(false)
	if err != nil {
		return nil, err
	}
	a := AppendAnswer{OK: true, Head: r.state.Head.String()}
	next := r.appended
	for _, e := range entries {
		id := e.ID.String()
		i := slices.IndexFunc(r.events, func(x recordedEvent) bool { return x.id == id })
		if n, ok := r.noted[id]; i < 0 && ok { // it is asked for again
			i = n
		} else if i < 0 {
			if i = next; i < len(r.events) {
				next++
			}
		} else {
			next = max(next, i+1)
		}
		asked := e.Type + " " + shorten(string(e.Data), 1<<10)
		if i == len(r.events) {
			return nil, r.diverge("the record has no more events", asked, nil)
		}
		x := &r.events[i]
		if x.typ != e.Type || !bytes.Equal(x.data, e.Data) {
			return nil, r.diverge("the record has another event here", asked, nil).With("recorded", x.typ+" "+shorten(string(x.data), 1<<10)).With("seq", x.seq)
		}
		r.noted[id] = i
		a.Events = append(a.Events, Appended{x.id, x.seq, x.typ, x.sum})
	}
	r.appended = next
	return encode(a)
}

func (r *Recording) end(payload []byte) ([]byte, error) {
	var req EndRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	if is := r.state.Ended; is == nil || is.Outcome != req.Outcome || is.Reason != req.Reason {
		recorded := "no end"
		if is != nil {
			recorded = is.Outcome + " " + is.Reason
		}
		return nil, r.diverge("the session ended otherwise", req.Outcome+" "+req.Reason, nil).With("recorded", recorded)
	}
	return encode(EndAnswer{OK: true, Seq: r.state.Ended.Seq, Head: r.state.Head.String()})
}
