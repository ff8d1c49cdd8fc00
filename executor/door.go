package executor

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/journal"
	"steno/schema"
)

// Headers of answers and of requests that executors pass on.
const (
	HeaderSession   = "Steno-Session"
	HeaderCall      = "Steno-Call"
	HeaderHead      = "Steno-Head" // <epoch>.<seq>.<sum>
	HeaderExecutor  = "Steno-Executor"
	HeaderErrorKind = "Steno-Error-Kind"
	headerHops      = "Steno-Hops"
)

// serviceName is what executors call themselves to NATS.
const serviceName = "steno"

// Version is the version of the service, in semver.
const Version = "0.1.0"

// maxHops bounds how often a request is passed on.
const maxHops = 2

// A verb handles one endpoint for one session.
type verb struct {
	name string
	// run does the work in the process that holds the session, or opens it.
	run func(x *Executor, ctx context.Context, session string, payload []byte, here bool) (reply, error)
	// passed verbs write, so they go to the holder.
	passed bool
	// room holds a slot for each request that is at work.
	room func(x *Executor) chan struct{}
}

func ofCalls(x *Executor) chan struct{}  { return x.calls }
func ofWrites(x *Executor) chan struct{} { return x.writes }
func ofLooks(x *Executor) chan struct{}  { return x.looks }

// An endpoint is a subject that the service answers at. One that is direct
// leads to this very process.
type endpoint struct {
	name, subject   string // the subject without what begins all of its kind
	request, answer string // their schemas
	verb            verb
	direct          bool
}

var (
	callVerb = verb{"call", (*Executor).runCall, true, ofCalls}
	// recalledVerb is for calls that have no room.
	recalledVerb = verb{"call", (*Executor).runRecalled, false, ofLooks}
)

var callEndpoints = []endpoint{
	{firstEndpoint, "call.*", callSchema, resultSchema, callVerb, false},
	{"to-call", "call.*", callSchema, resultSchema, callVerb, true},
}

// firstEndpoint is the one that is registered first.
const firstEndpoint = "call"

// serve registers the micro service.
func (x *Executor) serve() error {
	svc, err := micro.AddService(x.cfg.Conn, micro.Config{
		Name: serviceName, Version: Version,
		Description:  "keeps the record of tool calls and runs them",
		StatsHandler: x.stats,
		Metadata:     x.metadata(),
	})
	if err != nil {
		return unavailable("the service cannot be registered", err)
	}
	x.service = svc
	for _, e := range slices.Concat(callEndpoints, outcomeEndpoints, callsEndpoints, queueEndpoints, lateEndpoints, workerEndpoints, workersListEndpoints, sessionEndpoints, appendEndpoints, resumeEndpoints, leaseEndpoints, approvalEndpoints) {
		opts := []micro.EndpointOpt{micro.WithEndpointMetadata(map[string]string{"request": e.request, "answer": e.answer, "errors": errorSchema})}
		if e.direct {
			opts = append(opts, micro.WithEndpointSubject(x.to()+e.subject), micro.WithEndpointQueueGroupDisabled())
		} else {
			opts = append(opts, micro.WithEndpointSubject(x.cfg.Prefix+".v1."+e.subject))
		}
		if err := svc.AddEndpoint(e.name, x.handle(e.verb, e.direct), opts...); err != nil {
			return errors.Join(unavailable("an endpoint cannot be registered", err), svc.Stop())
		}
	}
	return nil
}

// metadata is what is told of the service.
func (x *Executor) metadata() map[string]string {
	m := map[string]string{"store": x.cfg.Store.ID(), "executor": x.cfg.Holder.ID, "prefix": x.cfg.Prefix}
	for _, t := range x.cfg.Tools.Tools() {
		if t.walls == nil {
			continue
		}
		// What a tool's own limits add is in its ToolInfo; bash has none.
		if _, said := m["commands"]; !said || t.Name == "bash" {
			m["commands"] = t.walls()
		}
	}
	return m
}

// handle makes the handler of an endpoint. direct endpoints are addressed to
// this very process.
func (x *Executor) handle(v verb, direct bool) micro.HandlerFunc {
	return func(r micro.Request) {
		// A request that is repeated while we work on it is answered once: the
		// answer goes to the same place.
		same := repeatOf(r.Reply(), r.Subject(), r.Data())
		if !x.replies.begin(same) && r.Reply() != "" {
			return
		}
		v, room := v, v.room(x)
		err := enter(room)
		if err != nil && v.name == callVerb.name {
			v, room = recalledVerb, recalledVerb.room(x)
			err = enter(room)
		}
		if err == nil && !x.begin(nil) {
			<-room
			err = goingAway("")
		}
		if err != nil {
			x.replies.end(same)
			x.respond(r.Reply(), reply{}, err)
			return
		}
		// micro runs one handler at a time; a call may take an hour.
		go func() {
			defer x.work.Done()
			defer x.replies.end(same)
			defer func() { <-room }()
			session := ""
			if i := strings.LastIndexByte(r.Subject(), '.'); strings.HasSuffix(r.Subject()[:i], v.name) {
				session = r.Subject()[i+1:] // of a subject that ends in <verb>.<session>
			}
			hops := 0
			if n := nats.Header(r.Headers()).Get(headerHops); n != "" { // somebody has passed it on
				hops, _ = strconv.Atoi(n)
			}
			ctx := x.ctx
			if direct && nats.Header(r.Headers()).Get(headerVia) == viaQueue {
				ctx = through(ctx, viaQueue)
			}
			var out reply
			try := func() (err error) {
				out, err = x.route(ctx, v, session, r.Data(), max(0, hops), direct)
				return err
			}
			var failed error
			if direct { // whoever has passed it on waits for a person, if need be
				failed = try()
			} else {
				failed = x.patiently(x.ctx, room, try)
			}
			x.respond(r.Reply(), out, failed)
		}()
	}
}

// A repeat is what two requests have in common that are the same one. Others
// may well want their answers at the same place.
type repeat struct {
	reply, subject string
	payload        [sha256.Size]byte
}

func repeatOf(reply, subject string, payload []byte) repeat {
	return repeat{reply, subject, sha256.Sum256(payload)}
}

// replies are the requests that are being handled.
type replies struct {
	mu   sync.Mutex
	busy map[repeat]struct{}
}

// begin reports whether nobody handles the same request yet.
func (r *replies) begin(same repeat) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.busy)
	r.busy[same] = struct{}{}
	return len(r.busy) > n
}

func (r *replies) end(same repeat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, same)
}

func (r *replies) has(same repeat) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, busy := r.busy[same]
	return busy
}

// to begins the subjects that lead to this very process.
func (x *Executor) to() string { return x.cfg.Prefix + ".v1.to." + x.cfg.Holder.ID + "." }

// putOff answers requests to this very process while it drains: until its
// leases are released others can only send here what they cannot do. What it
// still works on gets its answer.
func (x *Executor) putOff(m *nats.Msg) {
	if !x.replies.has(repeatOf(m.Reply, m.Subject, m.Data)) {
		x.respond(m.Reply, reply{}, goingAway(""))
	}
}

// routeRetry paces the looks at who holds a session, holderQuiet is how long a
// holder may be silent before the lease is looked at again. A repeat joins the
// running call, so it costs nothing.
const (
	routeRetry  = 50 * time.Millisecond
	holderQuiet = 2 * time.Second
	// routeTries bounds the looks while a holder is there and cannot be
	// reached: it may be about to open its doors, or be another program that
	// has none.
	routeTries = 20
)

// route does a verb in this process if it holds the session or can take it,
// and passes it to the holder otherwise.
func (x *Executor) route(ctx context.Context, v verb, session string, payload []byte, hops int, direct bool) (reply, error) {
	if !v.passed || direct {
		return v.run(x, ctx, session, payload, direct)
	}
	if session == "" {
		var err error
		if session, err = sessionOf(payload); err != nil {
			return reply{}, err
		}
	}
	if err := schema.CheckSession(session); err != nil {
		return reply{}, err
	}
	if v.name == appendVerb.name {
		payload = withIDs(payload)
	}
	lost := false
	for try := 0; ; try++ {
		out, err := v.run(x, ctx, session, payload, false)
		if lost && errors.Is(err, schema.NotFound) {
			err = schema.Errorf(schema.OutcomeUnknown, "session %s was taken away while the request was at work", session).
				With("session", session).With("next", "look what became of the store's folder")
		}
		if holder := holderOf(err); errors.Is(err, schema.SessionWriterActive) && holder != "" && holder != x.cfg.Holder.ID {
			if hops >= maxHops {
				return reply{}, schema.Errorf(schema.Unavailable, "the request was passed on %d times without reaching the holder of session %s", hops, session).
					With("session", session)
			}
			var reached bool
			var passed error
			if out, reached, passed = x.pass(x.stopping, viaOf(ctx), v.name, holder, session, payload, hops); reached {
				err = passed
			}
			if reached && !errors.Is(err, schema.SessionWriterLost) {
				return out, sinceLost(lost, err)
			}
			// It is gone, or it does not listen here, or it has lost the session
			// and somebody else has it, or nobody.
		} else if !errors.Is(err, schema.SessionWriterLost) && holder != x.cfg.Holder.ID {
			return out, sinceLost(lost, err)
		}
		// Where we lost it ourselves, whoever has it now knows what became of
		// the request.
		lost = lost || errors.Is(err, schema.SessionWriterLost)
		if try == routeTries {
			if errors.Is(err, schema.SessionWriterLost) {
				err = schema.Errorf(schema.Unavailable, "session %s does not stay with any holder", session).With("session", session)
			}
			return reply{}, sinceLost(lost, err)
		}
		select {
		case <-time.After(routeRetry):
		case <-x.stopping.Done():
			return reply{}, goingAway(session)
		}
	}
}

// sinceLost is the error of a try. What it has not stored an earlier one may have,
// in which the session was lost.
func sinceLost(lost bool, err error) error {
	e, ok := errors.AsType[*schema.Error](err)
	if !lost || !ok || e.Details["outcome"] != journal.NotStored.String() {
		return err
	}
	unsure := *e
	unsure.Details = maps.Clone(e.Details)
	return unsure.With("outcome", journal.Unknown.String())
}

// passBy is pass by one way.
func (x *Executor) passBy(ctx context.Context, by line, via, verb, holder, session string, payload []byte, hops int) (out reply, reached bool, err error) {
	in, err := by.answers.newInbox(maxAnswers)
	if err != nil {
		return reply{}, true, err
	}
	defer in.close()
	msg := &nats.Msg{Subject: x.cfg.Prefix + ".v1.to." + holder + "." + verb + "." + session, Reply: in.subject, Data: payload,
		Header: nats.Header{headerHops: {strconv.Itoa(hops + 1)}, headerVia: {via}}}
	for {
		if err := by.conn.PublishMsg(msg); errors.Is(err, nats.ErrMaxPayload) { // nothing has run
			return reply{}, true, schema.Errorf(schema.PayloadTooLarge, "the request has %d bytes, and no room for what says that it is passed on: the server takes %d", len(payload), by.conn.MaxPayload()).
				With("session", session)
		} else if err != nil {
			return reply{}, true, unavailable("the request cannot be passed on", err)
		}
		m, err := in.next(ctx, holderQuiet)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return reply{}, false, nil
		case err == nil:
			if kind := m.Header.Get(HeaderErrorKind); kind != "" {
				if err := schema.ParseEnvelope(m.Data); err != nil {
					return reply{}, true, err
				}
			}
			return reply{m.Data, m.Header}, true, nil
		case ctx.Err() != nil:
			return reply{}, true, goingAway(session)
		}
		// It works on it, or it is dead; the lease tells.
		st, err := x.cfg.Store.Lease(ctx, session)
		if err != nil {
			return reply{}, true, err
		}
		if st.Holder == nil || st.Holder.ID != holder || st.Kind != schema.SessionWriterActive {
			return reply{}, false, nil
		}
	}
}

// request is the door for calls, behind which what is secret in them is known.
func (x *Executor) request(ctx context.Context, payload []byte) (*Request, error) {
	r, err := parseRequest(payload)
	if err != nil {
		return nil, err
	}
	r.Actor.via(viaOf(ctx))
	return r, r.hide(x.redact)
}

// runCall is the call endpoint: the session is a token of the subject.
func (x *Executor) runCall(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	if err := schema.CheckSession(session); err != nil {
		return reply{}, err
	}
	req, err := x.request(ctx, payload)
	if err != nil {
		return reply{}, err
	}
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	a, err := s.do(ctx, req)
	if err != nil {
		return reply{}, err
	}
	return reply{a.Data, x.headers(session, a.Head, a.CallID)}, nil
}

// runRecalled answers a call that there is no room for, if its result is
// recorded and this process holds its session.
func (x *Executor) runRecalled(ctx context.Context, session string, payload []byte, _ bool) (reply, error) {
	if err := schema.CheckSession(session); err != nil {
		return reply{}, err
	}
	req, err := x.request(ctx, payload)
	if err != nil {
		return reply{}, err
	}
	a, err := x.recall(ctx, session, req)
	if err != nil {
		return reply{}, err
	}
	return reply{a.Data, x.headers(session, a.Head, a.CallID)}, nil
}

// find gives a session that this process holds, and takes it unless the
// request was meant for the holder. The caller leaves it.
func (x *Executor) find(ctx context.Context, id string, here bool) (*session, error) {
	if here {
		return x.held(ctx, id)
	}
	return x.hold(ctx, id, nil)
}

// holderOf is the holder that a refusal names.
func holderOf(err error) string {
	e, ok := errors.AsType[*schema.Error](err)
	if !ok {
		return ""
	}
	h, _ := e.Details["holder"].(string)
	return h
}
